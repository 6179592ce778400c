"""However little goes at once, a consumer handles everything once and in order: each limit is lowered far below what
there is to do."""

from collections import defaultdict
from typing import Any

import pytest
from factory import Iterator

from sqlqueue import Delivery, NewMessage, Reject, Retry, publish, publish_many
from sqlqueue.consumers.engine import log_end, reader, throttle
from sqlqueue.consumers.engine import settler as releases
from sqlqueue.core.keys import partition_of
from sqlqueue.database import sizes
from sqlqueue.database.log import Log
from sqlqueue.leases import acquire as acquiring
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import fetch, notifier, settle, status
from sqlqueue.log.groups import register
from sqlqueue.models import BlockedRange, DeliveryState, Message, PartitionLease, Receipt
from sqlqueue.operations.reschedule import Changed, acknowledge, reschedule
from tests.consuming import QUICK, Consuming
from tests.factories import DeliveryStateFactory
from tests.processes import wait_until

pytestmark = pytest.mark.once

KEYS, OF_A_KEY = 24, 5
ALIAS, GROUP = "default", "default"


@pytest.fixture(autouse=True)
def three_partitions(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 3, "HISTORY": "all", "HEARTBEAT_INTERVAL": 0.1}


def offsets_of(number: int) -> list[int]:
    """Return where the message of this number stands, of every key."""
    found = Message.objects.filter(topic="t").values_list("offset", "payload")
    return [offset for offset, (_, its) in found if its == number]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (fetch, "STREAMS_OF_ONE_FETCH"),
        (release, "GROUP_TOPICS_AT_ONCE"),
        (acquiring, "ROWS_AT_ONCE"),
        (sizes, "DELETED_AT_ONCE"),
        (settle, "CHUNK"),
        (releases, "RELEASED_AT_ONCE"),
        (throttle, "MOST"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_everything_is_handled_once_and_in_order(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    monkeypatch.setattr(module, name, 1)
    broken = [True]
    seen: dict[str, list[int]] = defaultdict(list)

    @consuming.consumer("t", batch_size=50, max_attempts=5)
    def handle(delivery: Delivery) -> None:
        key, number = delivery.payload
        if broken and number == 0:
            raise Retry(delay=3600)
        if number == 1:
            raise Reject("no")
        seen[key].append(number)

    others: list[Any] = []
    consuming.consumer("t", lambda delivery: others.append(delivery.payload), group="others")
    publish_many("t", [NewMessage([f"k{n % KEYS}", n // KEYS], key=f"k{n % KEYS}") for n in range(KEYS * OF_A_KEY)])
    consuming.drain()
    assert (seen, BlockedRange.objects.count()) == ({}, KEYS)
    assert len(status.unacked_streams(Log.of(ALIAS), GROUP, "t")) == 3
    broken.clear()
    assert reschedule(Log.of(ALIAS), GROUP, "t", offsets_of(0)) == Changed(KEYS, 0)
    consuming.drain()  # another owner's: it reads what the first one has left
    assert seen == {f"k{key}": [0, 2, 3, 4] for key in range(KEYS)}
    assert sorted(others) == sorted(Message.objects.filter(topic="t").values_list("payload", flat=True))
    assert Message.objects.dead_letters(GROUP, "t").count() == KEYS
    assert Receipt.objects.filter(consumer_group=GROUP, topic="t").count() == KEYS * (OF_A_KEY + 1)
    assert not BlockedRange.objects.exists()
    assert not DeliveryState.objects.exists()
    assert status.unacked_streams(Log.of(ALIAS), GROUP, "t") == []
    assert not PartitionLease.objects.exclude(holder="").exists()


def test_news_of_all_partitions_are_found_past_what_one_watch_passes(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_end, "WATCH_SPAN", 2)
    seen: list[Any] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    publish("t", "first")
    consuming.start()
    wait_until(lambda: seen == ["first"])
    publish_many("t", [NewMessage(n, key=f"k{n}") for n in range(60)])
    wait_until(lambda: len(seen) == 61, message="messages behind a gap are not found")


def test_more_changes_by_hand_than_one_look_finds_are_all_noticed(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CHANGES_AT_ONCE", 2)
    seen: list[Any] = []

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1 and delivery.payload[1] == 0:
            raise Retry(delay=3600)
        seen.append(delivery.payload)

    publish("t", ["holds the watermark", 0], key="h")
    publish_many("t", [NewMessage([f"k{n % 20}", n // 20], key=f"k{n % 20}") for n in range(40)])
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(retry_count=1, in_flight=0).count() == 21)
    first = [offset for offset in offsets_of(0) if offset != min(offsets_of(0))]
    assert acknowledge(Log.of(ALIAS), GROUP, "t", first[:10]) == Changed(10, 0)
    assert reschedule(Log.of(ALIAS), GROUP, "t", first[10:]) == Changed(10, 0)
    wait_until(lambda: len(seen) == 30, 20, lambda: f"{len(seen)} of 30: some changes are not noticed")


def test_what_is_due_in_the_partitions_of_others_hides_no_change_by_hand(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CHANGES_AT_ONCE", 2)
    register(Log.of(ALIAS), GROUP, "t")
    heartbeat.beat(Log.of(ALIAS), "another", [(GROUP, "t")], 300)
    acquire(Log.of(ALIAS), "another", GROUP, "t", [0, 1], priorities=1, lease_duration=300, horizon=0)
    for partition in (0, 1):
        of = {"consumer_group": GROUP, "partition": partition, "retry_count": 1}
        DeliveryStateFactory.create_batch(5, **of, message_offset=Iterator(range(900, 905)))
    attempts: list[int] = []

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise Retry(delay=3600)

    key = next(key for key in map(str, range(100)) if partition_of(key, 3) == 2)
    offset = publish("t", 1, key=key).offset
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(message_offset=offset, retry_count=1, in_flight=0).exists())
    assert reschedule(Log.of(ALIAS), GROUP, "t", [offset]) == Changed(1, 0)
    wait_until(lambda: attempts == [1, 2], 20, "the change is not noticed")


def test_a_consumer_beyond_those_that_are_rung_hears_of_news_by_itself(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "WAKE": True}
    monkeypatch.setattr(notifier, "MOST_ADDRESSES", 0)
    monkeypatch.setattr(notifier, "_listeners", [])  # as if it were in another process
    seen: list[Any] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    consuming.start()
    monkeypatch.setattr(notifier, "_listeners", [])
    for number in range(3):
        publish("t", number)
        wait_until(lambda: seen == [*range(number + 1)])  # noqa: B023  called in this iteration


def test_what_a_person_has_acked_hides_nothing_that_is_rescheduled_beyond_it(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows stay as long as the first of their key waits, here in the first partition."""
    monkeypatch.setattr(reader, "CHANGES_AT_ONCE", 3)
    attempts: dict[str, int] = defaultdict(int)

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        attempts[delivery.key] += 1
        raise Retry(delay=3600)

    first, last = (
        next(key for key in map(str, range(99)) if partition_of(key, 3) == partition) for partition in (0, 2)
    )
    offsets = [publish("t", 1, key=key).offset for key in [*[first] * 11, last]]
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(retry_count=1, in_flight=0).count() == 2)
    wait_until(lambda: BlockedRange.objects.exists())
    assert acknowledge(Log.of(ALIAS), GROUP, "t", offsets[1:-1]) == Changed(10, 0)
    assert reschedule(Log.of(ALIAS), GROUP, "t", [offsets[-1]]) == Changed(1, 0)
    wait_until(lambda: attempts[last] == 2, 20, "the change is not noticed")
    assert DeliveryState.objects.filter(acked=True).count() == 10
