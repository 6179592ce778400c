"""--drain: a subscriber leaves when everything that is due now has been settled, and not before."""

import threading
import time
from collections.abc import Sequence

import pytest
from django.db import connection, transaction

from sqlqueue import NewMessage, Postpone, Retry, publish, publish_many
from sqlqueue.core.keys import partition_of
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log.schedule import move_due
from sqlqueue.log.status import anything_due
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Offset, Topic
from tests.consuming import QUICK, Consuming, states
from tests.logs import LOG
from tests.processes import wait_until


def test_it_leaves_when_all_is_settled(consuming: Consuming) -> None:
    seen: list[int] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    for number in range(100):
        publish("t", number, key=str(number % 7))
    assert consuming.drain().settled == 100
    assert sorted(seen) == list(range(100))
    assert not DeliveryState.objects.exists()


def test_it_stays_while_retries_are_due(consuming: Consuming) -> None:
    @consuming.consumer("t", max_attempts=9)
    def fail(delivery) -> None:
        if delivery.attempt < 5:
            raise Retry(delay=0)

    publish("t", 1)
    assert consuming.drain().settled == 5


def test_it_leaves_what_waits_and_what_is_blocked_behind_it(consuming: Consuming) -> None:
    seen: list[int] = []

    @consuming.consumer("t")
    def later(delivery) -> None:
        seen.append(delivery.payload)
        raise Retry(delay=60)

    offsets = [publish("t", number, key="a").offset for number in range(5)]
    consuming.drain()
    assert seen == [0]
    consuming.drain()  # the next owner finds the rows
    assert seen == [0]
    assert states("t") == [(offsets[0], 1, False)]
    blocked = BlockedRange.objects.get()
    assert (blocked.partition_key, blocked.low, blocked.high) == ("a", offsets[0], offsets[-1])


def test_it_leaves_what_stands_behind_a_message_that_waits_in_strict_order(consuming: Consuming) -> None:
    seen: list[int] = []

    @consuming.consumer("t", ordering="partition")
    def later(delivery) -> None:
        seen.append(delivery.payload)
        raise Postpone(delay=60)

    for number in range(5):
        publish("t", number, key="a")
    consuming.drain()
    assert seen == [0]


def test_it_leaves_what_is_paused(consuming: Consuming) -> None:
    seen: list[str] = []
    for topic in ("paused-topic", "paused-group", "open"):
        consuming.consumer(topic, lambda delivery: seen.append(delivery.topic))
    consuming.drain()
    Topic.objects.filter(name="paused-topic").update(paused=True)
    ConsumerGroup.objects.filter(topic="paused-group").update(paused=True)
    for topic in ("paused-topic", "paused-group", "open"):
        publish(topic, 1)
    consuming.drain()
    assert seen == ["open"]


def test_it_stays_while_another_still_works(consuming: Consuming) -> None:
    gate = consuming.gate()
    consuming.consumer("t", lambda delivery: gate.wait())
    publish("t", 1, key="a")
    working = consuming.start()
    wait_until(lambda: Offset.objects.filter(claimed_to__gt=0).exists())
    draining = consuming.start(drain=True)
    time.sleep(1.0)
    assert draining.running, "it left while a handler of another still ran"
    gate.set()
    draining.join()
    assert working.running


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_an_open_transaction_holds_it_up_no_longer_than_its_messages_are_invisible(consuming: Consuming) -> None:
    seen: list[int] = []
    published, commit = threading.Event(), consuming.gate()
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    publish("t", 0, key="a")

    def late() -> None:
        with transaction.atomic():
            publish("t", 1, key="a")
            published.set()
            commit.wait()
        connection.close()

    thread = threading.Thread(target=late)
    thread.start()
    assert published.wait(30)
    publish("t", 2, key="a")
    consuming.drain()
    assert seen == [0, 2]
    commit.set()
    thread.join()
    consuming.drain()
    assert seen == [0, 2, 1]


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_two_of_them_leave_what_was_released_behind_a_message_that_waits(
    consuming: Consuming, settings, ordering: str
) -> None:
    """It is due by its own row, and only its owner remembers behind what it stands."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 2}
    seen: list[int] = []

    @consuming.consumer("t", ordering=ordering)
    def handle(delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload == 0:
            raise Retry(delay=0.5 if delivery.attempt == 1 else 3600)

    for partition in range(2):
        key = next(key for key in map(str, range(50)) if partition_of(key, 2) == partition)
        publish_many("t", [NewMessage(number, key=key) for number in range(20)])
    hosts = [consuming.start(), consuming.start()]
    wait_until(
        lambda: (
            seen == [0, 0, 0, 0] and all(len(host.subscriber.ownership.assigned_partitions()) == 1 for host in hosts)
        )
    )
    # A second attempt that has ended is written a moment later: its row is due until then.
    wait_until(lambda: all(host.subscriber.idle and not host.subscriber.anything_due() for host in hosts))
    assert not anything_due(LOG, "default", "t", ordering)
    DeliveryState.objects.filter(retry_count__gt=0).update(invisible_until=DatabaseNow())
    assert anything_due(LOG, "default", "t", ordering)


def test_what_enters_the_log_between_two_looks_is_not_missed(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler, of this process or another, may move a due message at any moment."""
    consuming.consumer("t", lambda delivery: None)
    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.start()
    try:
        subscriber.run_once()
        assert not subscriber.anything_due()
        unread = subscriber.reader.unread

        def unread_before_it_is_moved(streams: Sequence[AssignedPartition]) -> bool:
            found = unread(streams)
            move_due(LOG)
            return found

        monkeypatch.setattr(subscriber.reader, "unread", unread_before_it_is_moved)
        publish("t", 1, delay=0)
        assert subscriber.anything_due()
    finally:
        subscriber.close()
