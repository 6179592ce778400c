"""A loop that hangs holds up no other process: its leases are not renewed on its behalf."""

import logging
import re
import threading

import pytest

from sqlqueue import publish
from sqlqueue.models import PartitionLease, SubscriberHeartbeat
from sqlqueue.signals import delivery_settled
from tests.consuming import QUICK, Consuming, watermark
from tests.processes import wait_until
from tests.progress import keys_of_partitions

OPTIONS = {**QUICK, "PARTITIONS": 4, "LEASE_DURATION": 1.0, "HEARTBEAT_INTERVAL": 0.3}


def test_another_process_takes_over_from_a_loop_that_hangs_and_that_one_drops_everything(
    consuming: Consuming, settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.SQLQUEUE = OPTIONS
    handled: list[str] = []
    consuming.consumer("t", lambda delivery: handled.append(delivery.id), group="g")
    go_on, hangs = consuming.gate(), threading.Event()

    def hang_once(**facts: object) -> None:
        if not hangs.is_set():
            hangs.set()
            go_on.wait()

    def holders() -> set[str]:
        return set(PartitionLease.objects.values_list("holder", flat=True))

    one = consuming.start()
    wait_until(lambda: holders() == {one.name})
    delivery_settled.connect(hang_once)
    try:
        with caplog.at_level(logging.ERROR, "sqlqueue"):
            publish("t", 0, id="first")
            assert hangs.wait(60)
            two = consuming.start()
            ids = {f"{key}-{number}" for key in keys_of_partitions(4) for number in range(10)}
            for id in ids:
                publish("t", 1, key=id.rpartition("-")[0], id=id)
            wait_until(lambda: set(handled) == {"first"} | ids, message="who hangs keeps its partitions")
            assert holders() == {two.name}
            assert not SubscriberHeartbeat.objects.alive().filter(subscriber=one.name).exists()
        assert re.search(r"event=loop_hangs .* at=.*hang_once", caplog.text)
        settled = {partition: watermark("t", "g", partition) for partition in range(4)}
        go_on.set()
        wait_until(lambda: len(holders()) == 2, message="who came to life takes no part again")
        assert all(watermark("t", "g", partition) >= settled[partition] for partition in range(4))
        publish("t", 0, id="last")
        wait_until(lambda: "last" in handled)
    finally:
        delivery_settled.disconnect(hang_once)
    assert sorted(handled) == sorted({"first", "last"} | ids)
