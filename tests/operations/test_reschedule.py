"""What a person decides of single deliveries: when they are due, that they are done."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue import Delivery, InvalidMessage, Postpone, Retry, publish
from sqlqueue.core.outcomes import ACKED
from sqlqueue.database.log import Log
from sqlqueue.log.groups import register
from sqlqueue.models import BlockedRange, DeliveryState, Message, PartitionLease
from sqlqueue.operations.reschedule import (
    CHUNK,
    Changed,
    acknowledge,
    reprioritize,
    republish,
    reschedule,
    reschedule_rows,
)
from sqlqueue.stats.group_status import RETRYING, WAITING, status, statuses_of
from tests.consuming import QUICK, Consuming, watermark
from tests.factories import DeliveryStateFactory
from tests.processes import wait_until

ALIAS, GROUP = "default", "default"


@pytest.fixture(autouse=True)
def _quick(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "HEARTBEAT_INTERVAL": 0.2}


def state_of(offset: int) -> str:
    return status(Log.of(ALIAS), Message.objects.get(offset=offset), GROUP).state


@pytest.mark.parametrize("error", [Retry(delay=3600), Postpone(delay=3600)])
def test_what_waits_is_delivered_when_a_person_wants_it(consuming: Consuming, error: Exception) -> None:
    attempts: list[int] = []

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) == 1:
            raise error

    offset = publish("t", 1, key="a").offset
    host = consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(in_flight=0).exists())
    assert state_of(offset) == (RETRYING if isinstance(error, Retry) else WAITING)
    assert reschedule(Log.of(ALIAS), GROUP, "t", [offset]) == Changed(1, 0)
    wait_until(lambda: len(attempts) == 2, message="the rescheduled message was not delivered")
    assert attempts[1] == (2 if isinstance(error, Retry) else 1)
    wait_until(lambda: state_of(offset) == ACKED)
    wait_until(lambda: host.subscriber.settled == 2)  # counted after the commit


def test_attempts_can_be_given_anew(consuming: Consuming) -> None:
    attempts: list[int] = []

    @consuming.consumer("t", max_attempts=2)
    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise Retry(delay=3600)

    offset = publish("t", 1).offset
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(in_flight=0, retry_count=1).exists())
    reschedule(Log.of(ALIAS), GROUP, "t", [offset], attempts=0)
    wait_until(lambda: attempts == [1, 1])


def test_an_ack_on_behalf_of_the_group_frees_the_key(consuming: Consuming) -> None:
    seen: list[int] = []

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        if delivery.payload == 1:
            raise Retry(delay=3600)
        seen.append(delivery.payload)

    first = publish("t", 1, key="a").offset
    publish("t", 2, key="a")
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(message_offset=first, retry_count=1, in_flight=0).exists())
    assert seen == []
    assert acknowledge(Log.of(ALIAS), GROUP, "t", [first]) == Changed(1, 0)
    wait_until(lambda: seen == [2], message="the key stayed blocked")
    wait_until(lambda: not DeliveryState.objects.exists())


def test_what_a_group_has_not_read_can_be_cancelled(consuming: Consuming) -> None:
    seen: list[int] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    register(Log.of(ALIAS), GROUP, "t")
    offsets = [publish("t", number, key="a").offset for number in range(3)]
    assert [state_of(offset) for offset in offsets] == [WAITING] * 3
    assert acknowledge(Log.of(ALIAS), GROUP, "t", offsets[:2]) == Changed(2, 0)
    consuming.drain()
    assert seen == [2]
    partition = Message.objects.get(offset=offsets[0]).partition
    assert watermark("t", GROUP, partition) == offsets[-1]
    assert not DeliveryState.objects.exists()


def test_what_waits_behind_its_key_can_be_cancelled(consuming: Consuming) -> None:
    seen: list[int] = []
    broken = {0}

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        if delivery.payload in broken:
            raise Retry(delay=3600)
        seen.append(delivery.payload)

    offsets = [publish("t", number, key="a").offset for number in range(5)]
    consuming.drain()
    assert BlockedRange.objects.get().low < offsets[1] <= offsets[4] <= BlockedRange.objects.get().high
    assert [state_of(offset) for offset in offsets] == [RETRYING, *[WAITING] * 4]
    blocked = Message.objects.get(offset=offsets[2])
    assert [one.state for one in statuses_of(Log.of(ALIAS), [blocked])[blocked.offset]] == [WAITING]
    assert reschedule(Log.of(ALIAS), GROUP, "t", offsets[1:]) == Changed(0, 4)
    consuming.start()
    wait_until(lambda: not PartitionLease.objects.filter(holder="").exists())
    assert acknowledge(Log.of(ALIAS), GROUP, "t", [offsets[2]]) == Changed(1, 0)
    assert acknowledge(Log.of(ALIAS), GROUP, "t", [offsets[2]]) == Changed(0, 1)
    assert [state_of(offset) for offset in offsets] == [RETRYING, WAITING, ACKED, WAITING, WAITING]
    broken.clear()
    reschedule(Log.of(ALIAS), GROUP, "t", offsets[:1])
    wait_until(lambda: len(seen) == 4, message=f"{seen}")
    assert seen == [0, 1, 3, 4]
    partition = Message.objects.get(offset=offsets[0]).partition
    wait_until(lambda: watermark("t", GROUP, partition) == offsets[-1])
    wait_until(lambda: not DeliveryState.objects.exists())
    assert not BlockedRange.objects.exists()


def test_what_waits_behind_its_key_can_get_another_priority(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {"priorities": 2}}}
    seen: list[int] = []
    broken = {0}

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        if delivery.payload in broken:
            raise Retry(delay=3600)
        seen.append(delivery.payload)

    offsets = [publish("t", number, key="a", priority=1).offset for number in range(3)]
    consuming.drain()
    assert reprioritize(Log.of(ALIAS), GROUP, "t", offsets[1:2], 0) == Changed(1, 0)
    consuming.drain()
    assert seen == [1]
    broken.clear()
    reschedule(Log.of(ALIAS), GROUP, "t", offsets[:1])
    consuming.drain()
    assert seen == [1, 0, 2]
    assert not DeliveryState.objects.exists()
    assert not BlockedRange.objects.exists()


def test_what_a_handler_has_is_left(consuming: Consuming) -> None:
    gate, seen = consuming.gate(), []

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        gate.wait(30)

    offset = publish("t", 1).offset
    consuming.start()
    wait_until(lambda: seen == [1])
    assert acknowledge(Log.of(ALIAS), GROUP, "t", [offset]) == Changed(0, 1)
    assert reschedule(Log.of(ALIAS), GROUP, "t", [offset]) == Changed(0, 1)
    gate.set()
    wait_until(lambda: state_of(offset) == ACKED)
    assert seen == [1]


def test_another_priority_is_a_copy_and_an_ack_in_one(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {"priorities": 2}}}
    seen: list[int] = []
    broken = {1}

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        if delivery.payload in broken:
            raise Retry(delay=3600)
        seen.append(delivery.payload)

    register(Log.of(ALIAS), "others", "t")
    failing = publish("t", 1, key="a", priority=1).offset
    consuming.drain()
    unread = publish("t", 2, key="a", priority=1).offset
    assert (state_of(failing), state_of(unread)) == (RETRYING, WAITING)
    broken.clear()
    assert reprioritize(Log.of(ALIAS), GROUP, "t", [failing, unread], 0) == Changed(2, 0)
    assert reprioritize(Log.of(ALIAS), GROUP, "t", [failing, unread], 0) == Changed(0, 2)
    consuming.drain()
    assert seen == [1, 2]
    assert list(Message.objects.order_by("offset").values_list("priority", "target_group")) == [
        (1, ""),
        (1, ""),
        (0, GROUP),
        (0, GROUP),
    ]
    assert status(Log.of(ALIAS), Message.objects.get(offset=failing), "others").state == WAITING
    with pytest.raises(InvalidMessage, match="priority 2"):
        reprioritize(Log.of(ALIAS), GROUP, "t", [failing], 2)


def test_what_is_for_another_group_is_not_acknowledged(consuming: Consuming) -> None:
    for group in (GROUP, "others"):
        register(Log.of(ALIAS), group, "t")
    offset = publish("t", 1).offset
    assert republish("t", "others", [offset]) == 1
    copy = Message.objects.get(target_group="others").offset
    assert acknowledge(Log.of(ALIAS), GROUP, "t", [copy]) == Changed(0, 1)
    assert acknowledge(Log.of(ALIAS), "others", "t", [copy]) == Changed(1, 0)


def test_many_groups_cost_no_more_statements_than_one(consuming: Consuming) -> None:
    offset = publish("t", 1).offset
    message = Message.objects.get(offset=offset)
    register(Log.of(ALIAS), "g0", "t")
    with CaptureQueriesContext(connection) as one:
        assert len(statuses_of(Log.of(ALIAS), [message])[message.offset]) == 1
    for number in range(1, 20):
        register(Log.of(ALIAS), f"g{number}", "t")
    with CaptureQueriesContext(connection) as many:
        assert [one.state for one in statuses_of(Log.of(ALIAS), [message])[message.offset]] == [WAITING] * 20
    assert len(many) == len(one)


def test_more_than_one_statement_takes_keep_their_own_attempts() -> None:
    rows = [DeliveryStateFactory(retry_count=number % 7) for number in range(2 * CHUNK + 50)]
    left = DeliveryStateFactory(retry_count=3)
    ids = [row.pk for row in rows]
    for attempts in (None, 5):
        with transaction.atomic():
            assert reschedule_rows(Log.of(ALIAS), ids, 3600, attempts) == len(rows)
        for row in DeliveryState.objects.exclude(pk=left.pk):
            before = rows[ids.index(row.pk)].retry_count
            assert row.retry_count == (before if attempts is None else attempts)
    waits = dict(DeliveryState.objects.values_list("pk", "invisible_until"))
    later = waits.pop(left.pk) + timedelta(minutes=50)
    assert min(waits.values()) > later
    assert max(waits.values()) < later + timedelta(minutes=50)
    left.refresh_from_db()
    assert left.retry_count == 3
