"""Messages that expire: dead letters without their handler, by the database's clock, in order, and replayable."""

import asyncio
import functools
import operator
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection

from sqlqueue import (
    InvalidMessage,
    NewMessage,
    Postpone,
    Retry,
    publish,
    publish_many,
    publish_on_commit,
    replay,
    subscribe,
)
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.sizes import LIGHT
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import groups
from sqlqueue.log.schedule import move_due
from sqlqueue.models import DeliveryState, Message, Offset, PartitionLease, Receipt, ScheduledMessage, dead_letter_topic
from sqlqueue.operations.edit_scheduled import edit, run_now
from sqlqueue.operations.reschedule import republish
from sqlqueue.signals import deliveries_dispatched
from sqlqueue.testing import drain
from tests.consuming import QUICK, Consuming, watermark
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def quick(settings: Any, consuming: Consuming) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}


def end_time(*numbers: int) -> None:
    """Let the time of these messages be over (by their payloads; of all without any)."""
    for message in Message.objects.exclude(expires_at=None):
        if not numbers or message.payload in numbers:
            Message.objects.filter(pk=message.pk).update(expires_at=datetime.now(timezone.utc) - HOUR)


def expired() -> list[tuple[object, int]]:
    """Return (payload, attempts) of the dead letters, which all have expired, in the order of the log."""
    found = Message.objects.filter(topic=dead_letter_topic("t")).order_by("original_offset")
    assert {(each.last_error, each.fingerprint, each.expires_at) for each in found} <= {("expired", "expired", None)}
    return [(each.payload, each.failure_count) for each in found]


def keep(seen: list[Any]) -> Any:
    return lambda delivery: seen.append(delivery.payload)


def test_what_expired_is_a_dead_letter_and_its_handler_is_not_called(consuming: Consuming) -> None:
    publish_many("t", [NewMessage(n, key="a", expires=HOUR if n % 2 else None) for n in range(6)])
    end_time(1, 5)
    seen: list[int] = []
    consuming.consumer("t", keep(seen))
    consuming.drain()
    assert seen == [0, 2, 3, 4]
    assert expired() == [(1, 0), (5, 0)]
    assert watermark("t") >= Message.objects.filter(topic="t").order_by("offset").last().offset  # type: ignore[union-attr]
    assert not DeliveryState.objects.filter(acked=False).exists()


def test_it_is_not_before_its_time(consuming: Consuming) -> None:
    publish("t", 1, expires=60)
    seen: list[int] = []
    consuming.consumer("t", keep(seen))
    consuming.drain()
    assert (seen, expired()) == ([1], [])


def test_time_passes_while_a_message_waits_in_memory_behind_another(consuming: Consuming) -> None:
    publish("t", 1, key="a")
    publish("t", 2, key="a", expires=0.3)
    publish("t", 3, key="a")
    seen: list[int] = []

    def slow(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload == 1:
            time.sleep(0.5)

    consuming.consumer("t", slow)
    consuming.drain()
    assert seen == [1, 3]
    assert expired() == [(2, 0)]


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_handler_in_flight_runs_to_its_end(consuming: Consuming, succeeds: bool) -> None:
    publish("t", 1, expires=HOUR)
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        end_time()
        seen.append(delivery.payload)
        if not succeeds:
            raise Retry("again", delay=0)

    consuming.consumer("t", handle)
    consuming.drain()
    assert (seen, expired()) == ([1], [] if succeeds else [(1, 1)])


def test_a_retry_that_comes_too_late_is_none(consuming: Consuming) -> None:
    publish("t", 1, key="a", expires=60)
    publish("t", 2, key="a")
    seen: list[int] = []

    def fail(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload == 1:
            raise Retry("again", delay=40)

    consuming.consumer("t", fail, max_attempts=None)
    drain(ahead=39)
    assert seen == [1]
    drain(ahead=41)
    assert seen == [1, 1]  # the second attempt was in time
    assert expired() == []
    drain(ahead=81)
    assert seen == [1, 1, 2]
    assert expired() == [(1, 2)]


def test_postponed_for_ever_it_expires(consuming: Consuming) -> None:
    publish("t", 1, expires=60)
    seen: list[int] = []

    def postpone(delivery: Delivery) -> None:
        seen.append(1)
        raise Postpone(delay=10)

    consuming.consumer("t", postpone)
    drain(ahead=100)
    assert 2 <= len(seen) <= 7
    assert expired() == [(1, 0)]


@pytest.mark.parametrize("atomic", [False, True])
def test_a_batch_goes_on_without_what_expired(consuming: Consuming, atomic: bool) -> None:
    publish_many("t", [NewMessage(n, key="a", expires=HOUR) for n in range(4)])
    end_time(0, 2)
    seen: list[list[int]] = []
    consuming.consumer("t", lambda some: seen.append([each.payload for each in some]), batch=True, atomic=atomic)
    consuming.drain()
    assert functools.reduce(operator.iadd, seen, []) == [1, 3]
    assert expired() == [(0, 0), (2, 0)]
    assert watermark("t") >= Message.objects.filter(topic="t").order_by("offset").last().offset  # type: ignore[union-attr]


def test_a_batch_of_which_all_expired_is_not_called(consuming: Consuming) -> None:
    publish_many("t", [NewMessage(n, expires=HOUR) for n in range(4)])
    end_time()
    seen: list[Any] = []
    consuming.consumer("t", seen.append, batch=True)
    consuming.drain()
    assert seen == []
    assert expired() == [(n, 0) for n in range(4)]


def test_an_atomic_handler_and_an_async_one_are_not_called(consuming: Consuming) -> None:
    publish_many("t", [NewMessage(n, key="a", expires=HOUR) for n in range(4)])
    end_time(0, 3)
    atomic: list[int] = []
    on_loop: list[int] = []

    async def handler(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        on_loop.append(delivery.payload)

    async def batch_handler(deliveries: list[Delivery]) -> None:
        on_loop.extend(each.payload for each in deliveries)

    consuming.consumer("t", keep(atomic), group="atomic", atomic=True)
    consuming.consumer("t", handler, group="loop")
    consuming.consumer("t", batch_handler, group="batches", batch=True)
    consuming.drain()
    assert atomic == [1, 2]
    assert sorted(on_loop) == [1, 1, 2, 2]
    assert sorted(expired()) == [(0, 0)] * 3 + [(3, 0)] * 3  # type: ignore[type-var]


def test_a_pulled_delivery_that_expired_is_not_given() -> None:
    publish_many("t", [NewMessage(n, key="a", expires=HOUR) for n in range(4)])
    end_time(0, 2)
    seen = []
    with subscribe("t", timeout=1.0) as deliveries:
        for delivery in deliveries:
            seen.append(delivery.payload)
            delivery.ack()
    assert seen == [1, 3]
    assert expired() == [(0, 0), (2, 0)]


def test_expired_messages_of_one_key_do_not_hold_up_those_behind_them(consuming: Consuming) -> None:
    publish_many("t", [NewMessage(n, key="a", expires=HOUR) for n in range(300)])
    end_time()
    publish("t", "last", key="a")
    seen: list[Any] = []
    dispatched: list[int] = []

    def count(count: int, **kwargs: Any) -> None:
        dispatched.append(count)

    consuming.consumer("t", keep(seen))
    deliveries_dispatched.connect(count)
    try:
        consuming.drain(timeout=30)
    finally:
        deliveries_dispatched.disconnect(count)
    assert seen == ["last"]
    assert [payload for payload, _ in expired()] == list(range(300))
    assert sum(dispatched) == 301, "some were released, and dispatched again"


def test_one_that_was_in_flight_with_a_killed_process_is_not_delivered_again(consuming: Consuming) -> None:
    publish_many("t", [NewMessage(n, key="a", expires=HOUR if n == 0 else None) for n in range(2)])
    horizon = highest_offset(LOG)
    groups.register(LOG, "g", "t")
    acquire(LOG, "killed", "g", "t", [0], priorities=1, lease_duration=3600, horizon=horizon)
    Offset.objects.update(claimed_to=horizon)
    PartitionLease.objects.update(holder="", valid_until=None)
    end_time(0)
    seen: list[int] = []
    consuming.consumer("t", keep(seen), group="g")
    consuming.drain()
    assert seen == [1]
    assert expired() == [(0, 1)]


def test_among_several_owners_each_message_is_handled_or_expired_and_never_both(
    consuming: Consuming, settings: Any
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 4}
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        time.sleep(0.002)
        seen.append(delivery.payload)

    consuming.consumer("t", handle)
    first = consuming.start(threads=1)
    publish_many(
        "t", [NewMessage(n, key=f"k{n % 9}", expires=0.001 + n % 40 / 100 if n % 3 else None) for n in range(300)]
    )
    second = consuming.start(threads=1)
    wait_until(lambda: len(seen) + Message.objects.filter(topic=dead_letter_topic("t")).count() >= 300, timeout=60)
    first.stop()
    second.stop()
    consuming.drain()
    dead = [payload for payload, _ in expired()]
    assert sorted(seen + dead) == list(range(300))  # type: ignore[operator]
    assert dead
    assert {n for n in range(300) if n % 3 == 0} <= set(seen)


def test_each_group_has_the_message_or_its_dead_letter(consuming: Consuming) -> None:
    publish("t", 1, expires=HOUR)
    early: list[int] = []
    late: list[int] = []
    consuming.consumer("t", keep(early), group="early")
    consuming.consumer("t", keep(late), group="late")
    consuming.drain("early")
    end_time()
    consuming.drain("late")
    assert (early, late) == ([1], [])
    assert Message.objects.get(topic=dead_letter_topic("t")).failed_group == "late"
    assert Receipt.objects.get(outcome="dead").consumer_group == "late"


def test_its_replay_and_its_copies_do_not_expire(consuming: Consuming) -> None:
    publish("t", 1, expires=HOUR)
    offset = Message.objects.values_list("offset", flat=True).get()
    end_time()
    seen: list[int] = []
    consuming.consumer("t", keep(seen))
    consuming.drain()
    assert seen == []
    assert replay("t") == 1
    republish("t", "default", [offset])
    republish("t", "default", [offset], delay=0.001)
    drain(ahead=1)
    assert seen == [1, 1, 1]


@pytest.mark.parametrize("payload", ["light", "x" * LIGHT, b"light", b"x" * LIGHT], ids=lambda each: str(each)[:6])
def test_of_a_scheduled_message_the_time_counts_from_when_it_is_due(consuming: Consuming, payload: object) -> None:
    publish("t", payload, delay=3600, expires=60)
    number = ScheduledMessage.objects.values_list("pk", flat=True).get()
    assert move_due(LOG) == 0
    run_now(LOG, [number])
    assert move_due(LOG) == 1
    message = Message.objects.get(topic="t")
    assert message.expires_at is not None
    assert 55 <= (message.expires_at - datetime.now(timezone.utc)).total_seconds() <= 60


def test_a_scheduled_message_that_the_scheduler_finds_too_late_has_expired(consuming: Consuming) -> None:
    publish_many("t", [NewMessage(n, delay=3600, expires=60) for n in range(2)])
    late, in_time = ScheduledMessage.objects.order_by("pk").values_list("pk", flat=True)
    now = datetime.now(timezone.utc)
    edit(LOG, late, at=now - timedelta(seconds=61))
    edit(LOG, in_time, at=now - timedelta(seconds=30))
    seen: list[int] = []
    consuming.consumer("t", keep(seen))
    drain()
    assert seen == [1]
    assert expired() == [(0, 0)]


def test_simulated_time_lets_messages_expire(consuming: Consuming) -> None:
    publish("t", 1, key="a", expires=HOUR)
    seen: list[int] = []

    def fail(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        raise Retry("again", delay=1800)

    consuming.consumer("t", fail, max_attempts=None)
    drain(ahead=HOUR * 2)
    assert seen in ([1, 2], [1, 2, 3])  # the third is due when the time ends
    assert [payload for payload, _ in expired()] == [1]
    end = Message.objects.get(topic="t").expires_at
    assert end is not None
    assert timedelta(minutes=59) < end - datetime.now(timezone.utc) <= HOUR


@pytest.mark.parametrize("expires", [0, -1, 0.0005, timedelta(0), timedelta(days=3651), float("nan"), True, "1h"])
def test_a_time_that_makes_no_sense(expires: Any) -> None:
    for refused in (publish, publish_on_commit):
        with pytest.raises(InvalidMessage, match="expires must"):
            refused("t", 1, expires=expires)
    with pytest.raises(InvalidMessage, match="expires must"):
        publish_many("t", [NewMessage(1, expires=expires)])
    assert not Message.objects.exists()


def test_a_message_that_would_have_expired_already() -> None:
    an_hour_ago = datetime.now(timezone.utc) - HOUR
    with pytest.raises(InvalidMessage, match=r"would have expired .* s ago: expires counts from when it is due"):
        publish("t", 1, at=an_hour_ago, expires=60)
    assert publish("t", 1, at=an_hour_ago, expires=HOUR * 2).created


@pytest.mark.parametrize("after", [0, -1.0, 1e12])
def test_plain_sql_with_a_time_that_makes_no_sense_is_refused(after: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sqlqueue_scheduled_message (topic, payload, expires_after) VALUES ('t', '1', %s)", [after]
        )
    move_due(LOG)
    assert "expires_after must lie between" in str(ScheduledMessage.objects.get().refusal)


def test_plain_sql_gives_a_message_its_time() -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO sqlqueue_scheduled_message (topic, payload, expires_after) VALUES ('t', '1', 3600)")
    move_due(LOG)
    end = Message.objects.get().expires_at
    assert end is not None
    assert HOUR - timedelta(seconds=30) <= end - datetime.now(timezone.utc) <= HOUR
