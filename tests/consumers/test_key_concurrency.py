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
from sqlqueue.operations.reschedule import reschedule
from sqlqueue.stats.message_status import status_of
from tests.consumer_processes import holders
from tests.consuming import QUICK, Consuming, offset_row, watermark
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


# A rate limit of each key: what it holds back is charged nothing, stops no other key, and outlasts its process.


def test_a_key_that_waits_stops_no_other_and_goes_on_in_order_when_the_limit_is_lifted(
    consuming: Consuming, settings: Any
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "HEARTBEAT_INTERVAL": 0.5}
    done: list[tuple[str, int, int]] = []
    consuming.consumer(
        "calls",
        lambda delivery: done.append((delivery.key, delivery.payload, delivery.attempt)),
        rate_limit_per_key="1/d",
        batch_size=5,
    )
    publish_many("calls", [NewMessage(n, key="much") for n in range(100)])
    publish_many("calls", [NewMessage(0, key=f"k{n}") for n in range(100)])
    publish_many("calls", [NewMessage(n) for n in range(10)])
    first = consuming.start()
    wait_until(lambda: len(done) == 111)
    wait_until(lambda: offset_row("calls").position >= Message.objects.latest("offset").offset)
    assert watermark("calls") == Message.objects.earliest("offset").offset
    assert BlockedRange.objects.get().partition_key == "much"
    assert list(DeliveryState.objects.filter(acked=False).values_list("retry_count", "in_flight")) == [(0, 0)]
    head = Message.objects.get(offset=DeliveryState.objects.get(acked=False).message_offset)
    assert status_of(Log.of(options.DATABASE), head).groups["default"].state == "limited"
    first.stop()
    second = consuming.start()  # it knows nothing of what started in the other, but the row does
    publish_many("calls", [NewMessage(1, key="k1")])
    wait_until(lambda: done[-1] == ("k1", 1, 1))
    wait_until(lambda: second.subscriber.settled)
    assert len(done) == 112
    second.stop()
    third = consuming.start()
    publish_many("calls", [NewMessage(n, key="new") for n in range(2)])
    wait_until(lambda: ("new", 0, 1) in done)
    wait_until(lambda: third.subscriber.settled)
    override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"rate_limit_per_key": None})
    wait_until(lambda: ("new", 1, 1) in done)
    assert done.count(("new", 0, 1)) == 1
    held_back = DeliveryState.objects.filter(acked=False).values_list("message_offset", flat=True)
    reschedule(Log.of(options.DATABASE), **GROUP_TOPIC, offsets=held_back)
    wait_until(lambda: len(done) == 213)
    assert [number for key, number, attempt in done if key == "much" and attempt == 1] == list(range(100))


def test_what_is_too_late_for_its_handler_uses_nothing_of_its_keys_rate(consuming: Consuming) -> None:
    done: list[Any] = []
    consuming.consumer("calls", lambda delivery: done.append(delivery.payload), rate_limit_per_key="1/d")
    publish_many("calls", [NewMessage(n, key="a", expires=0.001) for n in range(10)])
    publish_many("calls", [NewMessage("in time", key="a")])
    consuming.start()
    wait_until(lambda: done == ["in time"])
    assert Message.objects.dead_letters().count() == 10


@pytest.mark.once
@pytest.mark.parametrize("more", [{"ordering": "none"}, {"ordering": "partition"}, {"batch": True}])
def test_it_needs_keys_in_order_and_no_batch(consuming: Consuming, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match='needs ordering="key"'):
        consuming.consumer("calls", print, rate_limit_per_key="1/s", **more)
