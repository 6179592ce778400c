"""A process that is killed holds its key's place until its lease ends, and then each message is delivered."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sqlqueue import publish
from sqlqueue.models import BlockedRange, PartitionLease, SubscriberHeartbeat
from tests.consumer_processes import GROUP, QUICK, Consumers, holders
from tests.processes import wait_until
from tests.progress import wait_until_settled

pytestmark = [pytest.mark.long("sqlite"), pytest.mark.django_db(transaction=True)]
TOPIC = "keyed"


@pytest.fixture
def consumer_options(settings: Any) -> dict[str, Any]:
    settings.SQLQUEUE = {**QUICK, "TOPICS": {TOPIC: {"partitions": 1}}}
    return settings.SQLQUEUE


def test_a_key_goes_on_one_by_one_after_a_kill(consumers: Consumers, tmp_path: Path) -> None:
    first = consumers.start(TOPIC, processes=0)
    wait_until(lambda: holders(TOPIC) and "" not in holders(TOPIC))
    todo = {"notes": str(consumers.notes)}
    publish(TOPIC, {**todo, "wait_for": str(tmp_path / "never")}, key="held", id="0")
    for number in range(1, 30):
        publish(TOPIC, todo, key="held", id=str(number))
    consumers.publish(TOPIC, "other")
    wait_until(lambda: consumers.noted("end")["other", 1] == 1)
    wait_until(BlockedRange.objects.exists)
    assert set(consumers.noted("begin")) == {("0", 1), ("other", 1)}
    second = consumers.start(TOPIC, processes=0)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert set(consumers.noted("begin")) == {("0", 1), ("other", 1)}, "the lease of the dead one has not ended"
    SubscriberHeartbeat.objects.filter(pid=first.pid).delete()  # as if it had expired, with its share
    PartitionLease.objects.filter(topic=TOPIC).update(holder="", valid_until=None)
    wait_until_settled(TOPIC, GROUP)
    second.terminate()
    second.wait()
    assert {name for name, _ in consumers.noted("end")} == {"other", *map(str, range(30))}
    assert consumers.noted("begin")["0", 2] == 1
    begun = [line.split() for line in consumers.notes.read_text().splitlines() if "other" not in line][1:]
    assert [kind for kind, *_ in begun] == ["begin", "end"] * 30, "two of the key were in flight at once"
