"""Messages in doubt are alone in their process, and delay nothing else for long."""

import threading
import time
from typing import Any

import pytest

from sqlqueue import Delivery, NewMessage, publish, publish_many
from sqlqueue.consumers.engine import in_doubt
from sqlqueue.consumers.engine.in_doubt import InDoubtPhases
from sqlqueue.database.horizon import highest_offset
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import groups
from sqlqueue.models import DeliveryState, Offset, PartitionLease
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.once

IN_DOUBT = 30


def leave_in_flight(topic: str) -> None:
    """What a process leaves behind that is killed while it has a partition's messages in flight."""
    have_in_flight(topic)
    PartitionLease.objects.filter(topic=topic).update(holder="", valid_until=None)


def have_in_flight(topic: str) -> None:
    """Have a partition's messages in flight."""
    horizon = highest_offset(LOG)
    groups.register(LOG, "g", topic)
    acquire(LOG, "killed", "g", topic, [0], priorities=1, lease_duration=3600, horizon=horizon)
    Offset.objects.filter(topic=topic).update(claimed_to=horizon)


@pytest.mark.parametrize("handler", ["short", "longer than a phase"])
def test_others_are_delivered_between_them_and_never_beside_one(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(in_doubt, "PHASE", 0.1)
    seconds = 0.02 if handler == "short" else 0.12
    lock = threading.Lock()
    running: list[str] = []
    beside: list[list[str]] = []
    done: list[str] = []

    def handle(delivery: Delivery) -> None:
        with lock:
            running.append(delivery.topic)
            if "in_doubt" in running:
                beside.append(list(running))
        time.sleep(seconds)
        with lock:
            running.remove(delivery.topic)
            done.append(delivery.topic)
        if delivery.topic == "others":
            publish("others", None)  # there is always more to do

    publish_many("in_doubt", [NewMessage(n, key=f"k{n}") for n in range(IN_DOUBT)])
    leave_in_flight("in_doubt")
    publish_many("others", range(4))
    consuming.consumer("in_doubt", handle, group="g")
    consuming.consumer("others", handle, group="g")
    host = consuming.start()
    wait_until(lambda: done.count("in_doubt") == IN_DOUBT, timeout=120)
    host.stop()
    assert {len(together) for together in beside} == {1}
    assert done.index("others") < 15, "everything else has waited until the messages in doubt were done"
    assert done[: done.index("in_doubt")].count("others") < 50
    wait_until(lambda: not DeliveryState.objects.filter(topic="in_doubt", acked=False).exists())


def test_no_partition_waits_for_all_those_of_another(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    done: list[str] = []
    for topic, count in (("many", IN_DOUBT), ("few", 2), ("other", 2)):
        publish_many(topic, [NewMessage(n, key=f"k{n}") for n in range(count)])
        leave_in_flight(topic)
        consuming.consumer(topic, lambda delivery: done.append(delivery.topic), group="g")
    consuming.drain()
    assert sorted(done[:6]) == ["few", "few", "many", "many", "other", "other"]
    assert len(done) == IN_DOUBT + 4


def test_a_phase_lasts_as_long_as_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_doubt, "PHASE", 1.0)
    phases = InDoubtPhases()
    assert not phases.of_others(10.0)
    phases.waits(10.0)  # until 12.0 others are in flight
    assert [phases.lasts(moment) for moment in (12.0, 12.9, 13.0)] == [True, True, False]
    assert [phases.of_others(moment) for moment in (15.9, 16.0)] == [True, False]
    assert phases.lasts(20.0)


def test_what_runs_for_long_keeps_its_own_group_waiting_and_no_other(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that runs a long handler takes over what another had in flight when it was killed."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(in_doubt, "PHASE", 0.1)
    gate = consuming.gate()
    done: list[str] = []

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "long":
            gate.wait(60)
        done.append(delivery.topic)
        if delivery.topic == "others" and not gate.is_set():
            publish("others", None)

    for topic in ("long", "others", "in_doubt"):
        consuming.consumer(topic, handle, group="g", ordering="none")
    publish("long", "long")
    publish_many("in_doubt", range(5))
    have_in_flight("in_doubt")
    host = consuming.start()
    wait_until(lambda: len(host.subscriber.in_flight) == 1)
    PartitionLease.objects.filter(topic="in_doubt").update(holder="", valid_until=None)
    wait_until(lambda: any(stream.in_doubt.entries for stream in host.subscriber.ownership.assigned_partitions()))
    publish("long", "another")
    publish("others", None)
    wait_until(lambda: done.count("others") > 20)
    assert set(done) == {"others"}  # what is in doubt waits to be alone, and the long group waits for it
    gate.set()
    wait_until(lambda: done.count("in_doubt") == 5 and done.count("long") == 2)
    assert done.index("in_doubt") < len(done) - 1 - done[::-1].index("long")


def test_a_wait_in_vain_ends_with_a_phase_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_doubt, "PHASE", 1.0)
    phases = InDoubtPhases()
    assert [phases.waits(moment, [("g", "t")]) for moment in (10.0, 10.9, 11.2)] == [True, True, False]
    assert [phases.of_others(moment) for moment in (12.3, 12.4)] == [True, False]
    assert ("g", "t") in phases.held_back
    assert ("g", "u") not in phases.held_back


def test_what_ran_for_long_goes_on_after_as_long_a_time_as_was_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_doubt, "PHASE", 1.0)
    phases, long = InDoubtPhases(), ("g", "t")
    assert [phases.waits(moment, [long]) for moment in (10.0, 11.0)] == [True, False]
    assert [phases.waits(moment, [long]) for moment in (12.0, 13.0)] == [True, False]
    assert phases.lasts(15.0)  # the handler has ended, five seconds after the first look: held back until 20.0
    held = {}
    for tenth in range(150, 230):
        phases.lasts(tenth / 10)
        held[tenth] = long in phases.held_back
    assert all(held[tenth] for tenth in range(150, 200))
    assert not any(held[tenth] for tenth in range(212, 230))


def test_a_group_with_a_long_handler_does_not_wait_for_all_messages_in_doubt(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of hundreds that was in doubt kept the group of a handler that had been slow once from every message."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(in_doubt, "PHASE", 0.05)
    gate = consuming.gate()
    done: list[str] = []

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "slow":
            gate.wait(60)
        elif delivery.topic == "in_doubt":
            time.sleep(0.02)
        done.append(delivery.topic)

    publish_many("in_doubt", range(100))
    have_in_flight("in_doubt")
    publish("long", "slow")
    for topic in ("long", "in_doubt"):
        consuming.consumer(topic, handle, group="g", ordering="none")
    host = consuming.start()
    wait_until(lambda: len(host.subscriber.in_flight) == 1)
    PartitionLease.objects.filter(topic="in_doubt").update(holder="", valid_until=None)
    wait_until(lambda: any(stream.in_doubt.entries for stream in host.subscriber.ownership.assigned_partitions()))
    time.sleep(0.1)  # the messages in doubt wait for longer than a phase
    gate.set()
    wait_until(lambda: "in_doubt" in done)
    publish("long", "quick")
    wait_until(lambda: done.count("in_doubt") == 100, timeout=60)
    assert done[:70].count("long") == 2, "the group has waited until nothing was in doubt"
