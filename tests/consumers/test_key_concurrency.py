"""A limit of what is in flight of each key: it holds back nothing else, over priorities, and while it is changed."""

import threading
from collections import Counter
from typing import Any

import pytest

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.conf import settings as options
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.groups import override_flow
from sqlqueue.models import BlockedRange, DeliveryState, Message
from sqlqueue.stats.message_status import status_of
from tests.consumer_processes import holders
from tests.consuming import QUICK, Consuming, offset_row
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
GROUP_TOPIC = {"group": "default", "topic": "calls"}


class KeysAtWork:
    """A handler that knows how many messages of each key it has; those of the held key wait for the gate."""

    def __init__(self, gate: threading.Event, held: str = "held") -> None:
        self.gate, self.held, self.lock = gate, held, threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.done: list[tuple[str, Any, int]] = []

    def handle(self, delivery: Any) -> None:
        key = delivery.key
        with self.lock:
            self.now[key] += 1
            self.most[key] = max(self.most[key], self.now[key])
        if key == self.held:
            self.gate.wait()
        with self.lock:
            self.now[key] -= 1
            self.done.append((key, delivery.payload, delivery.attempt))


def test_a_held_key_stops_no_other_in_several_processes_and_is_charged_nothing(
    consuming: Consuming, settings: Any
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 2}
    work = KeysAtWork(consuming.gate())
    consuming.consumer("calls", work.handle, ordering="none", concurrency_limit_per_key=2, batch_size=5)
    hosts = [consuming.start(threads=8), consuming.start(threads=8)]
    wait_until(lambda: sorted(holders("calls").values()) == [1, 1] and "" not in holders("calls"))
    publish_many("calls", [NewMessage(n, key="held") for n in range(200)])
    publish_many("calls", [NewMessage(n, key=f"k{n}") for n in range(100)])
    publish_many("calls", [NewMessage(n) for n in range(10)])
    wait_until(lambda: len(work.done) == 110)
    end = Message.objects.filter(partition_key="held").latest("offset")
    wait_until(lambda: offset_row("calls", partition=end.partition).position >= end.offset)
    assert work.now["held"] == 2
    assert BlockedRange.objects.get().partition_key == "held"
    assert DeliveryState.objects.filter(acked=False).exclude(in_flight=0).count() == 2
    assert not DeliveryState.objects.filter(acked=False, in_flight=0).exists()
    last = Message.objects.filter(partition_key="held").latest("offset")
    assert status_of(Log.of(options.DATABASE), last).groups["default"].state == "limited"
    kept = [each.entries for host in hosts for each in host.subscriber.ownership.assigned_partitions()]
    assert sum(len(entries) for entries in kept) <= 2 + 10
    work.gate.set()
    wait_until(lambda: len(work.done) == 310)
    assert work.most["held"] == 2
    assert {attempt for _, _, attempt in work.done} == {1}
    assert sorted(number for key, number, _ in work.done if key == "held") == list(range(200))
    wait_until(lambda: not BlockedRange.objects.exists())


def test_it_holds_over_the_priorities_of_a_key(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "TOPICS": {"calls": {"priorities": 2}}}
    work = KeysAtWork(consuming.gate())
    consuming.consumer("calls", work.handle, ordering="none", concurrency_limit_per_key=1)
    for priority in (1, 0):
        publish_many("calls", [NewMessage(n, key="held", priority=priority) for n in range(20)])
    publish("calls", 0, key="other", priority=0)
    publish("calls", 0, key="other", priority=1)
    consuming.start()
    wait_until(lambda: len(work.done) == 2)
    assert work.now["held"] == 1
    work.gate.set()
    wait_until(lambda: len(work.done) == 42)
    assert work.most["held"] == 1


def test_it_is_set_raised_and_lifted_while_consumers_run(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "HEARTBEAT_INTERVAL": 0.2}
    work = KeysAtWork(consuming.gate())
    consuming.consumer("calls", work.handle, ordering="none")
    publish("calls", 0)
    host = consuming.start(threads=16)
    wait_until(lambda: len(work.done) == 1)

    def limit(most: int | None) -> None:
        override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"concurrency_limit_per_key": most})
        [subscription] = host.subscriber.subscriptions
        wait_until(lambda: subscription.flow.concurrency_per_key == most)

    limit(2)
    publish_many("calls", [NewMessage(n, key="held") for n in range(60)])
    publish_many("calls", [NewMessage(n, key="other") for n in range(10)])
    wait_until(lambda: len(work.done) == 11)
    assert work.now["held"] == 2
    wait_until(BlockedRange.objects.exists)
    limit(5)
    wait_until(lambda: work.now["held"] == 5)
    limit(None)
    wait_until(lambda: work.now["held"] == 16)
    work.gate.set()
    wait_until(lambda: len(work.done) == 71)
    assert work.most["held"] == 16


@pytest.mark.once
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, 'needs ordering="none"'),
        ({"ordering": "partition"}, 'needs ordering="none"'),
        ({"ordering": "none", "batch": True}, "no batch"),
    ],
)
def test_it_needs_whole_partitions_without_order_or_batches(
    consuming: Consuming, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        consuming.consumer("calls", print, concurrency_limit_per_key=2, **more)
