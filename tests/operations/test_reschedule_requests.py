"""Many deliveries that wait are made due with one order: those that a filter selects, throttled, each once."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from sqlqueue import ConfigurationError, Delivery, InvalidMessage, NewMessage, Postpone, Retry, publish_many
from sqlqueue.core.keys import partition_of
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log.groups import remove
from sqlqueue.models import DeliveryState, Message, Request
from sqlqueue.models.request import CANCELLED, DONE, FAILED, RUNNING
from sqlqueue.operations import requests, reschedule_requests
from sqlqueue.operations.requests import cancel, carry_out
from sqlqueue.operations.reschedule_requests import FAILING, POSTPONED, WaitingDeliveries, request_rescheduling
from tests.consuming import QUICK, Consuming
from tests.epochs import alter
from tests.factories import DeliveryStateFactory
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction

LONG = 3600.0
ALL = WaitingDeliveries("t", "g")


class Patient:
    """A handler that puts off what it is given, until it is mended: those below 10 fail, others are postponed."""

    def __init__(self) -> None:
        self.broken = True
        self.seen: list[int] = []
        self.attempts: dict[int, int] = {}

    def __call__(self, delivery: Delivery) -> None:
        number = delivery.payload
        if self.broken:
            raise Retry(f"Shop {number} is closed", delay=LONG) if number < 10 else Postpone(delay=LONG)
        self.seen.append(number)
        self.attempts[number] = delivery.attempt


@pytest.fixture
def patient(consuming: Consuming, settings: Any) -> Patient:
    """Ten deliveries that failed and five that were postponed, all for an hour; the same of another group."""
    settings.SQLQUEUE = {**QUICK, "HEARTBEAT_INTERVAL": 0.2}
    patient = Patient()
    consuming.consumer("t", patient, group="g")
    consuming.consumer("t", Patient(), group="other")
    publish_many("t", [NewMessage(n, key=str(n)) for n in range(15)])
    consuming.drain()
    assert DeliveryState.objects.filter(consumer_group="g", in_flight=0, acked=False).count() == 15
    return patient


def offsets(*numbers: int) -> list[int]:
    # Compared here: MySQL finds no number of a JSON column by payload__in.
    every = Message.objects.order_by("offset").values_list("offset", "payload")
    return [offset for offset, payload in every if payload in numbers]


def due(group: str = "g") -> list[int]:
    """What is due now, by the messages' payloads."""
    rows = DeliveryState.objects.unsettled().filter(in_flight=0, invisible_until__lte=DatabaseNow())
    offsets = list(rows.filter(consumer_group=group).values_list("message_offset", flat=True))
    return sorted(Message.objects.filter(offset__in=offsets).values_list("payload", flat=True))


def state(order: Request) -> tuple[str, int, int]:
    order.refresh_from_db()
    return order.state, order.done, order.total


def carry_out_all() -> int:
    steps = 0
    while carry_out(LOG):
        steps += 1
        assert steps < 100, list(Request.objects.values())
    return steps


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (lambda: ALL, range(15)),
        (lambda: WaitingDeliveries("t", "g", FAILING), range(10)),
        (lambda: WaitingDeliveries("t", "g", POSTPONED), range(10, 15)),
        (lambda: WaitingDeliveries("t", "g", error="shop 3 IS"), [3]),
        (lambda: WaitingDeliveries("t", "g", error="closed", above=offsets(4)[0]), range(5, 10)),
        (lambda: WaitingDeliveries("t", "g", through=offsets(2)[0]), range(3)),
        (lambda: WaitingDeliveries("t", "g", key="7"), [7]),
    ],
)
def test_what_is_chosen_becomes_due_and_nothing_else(
    patient: Patient, chosen: Callable[[], WaitingDeliveries], expected: Any
) -> None:
    made = request_rescheduling(LOG, chosen())
    assert due() == []
    carry_out_all()
    assert due() == list(expected)
    assert due("other") == []
    assert state(made) == (DONE, len(expected), len(expected))


def test_of_a_key_its_messages_of_every_epoch(patient: Patient) -> None:
    begun = alter("t", 3)
    publish_many("t", [NewMessage(100, key="7")])
    message = Message.objects.latest("offset")
    later = timezone.now() + timedelta(hours=1)
    where = {"consumer_group": "g", "topic": "t", "partition": begun.partition_of("7")}
    Message.objects.filter(pk=message.pk).update(partition=where["partition"])
    DeliveryStateFactory(**where, message_offset=message.offset, invisible_until=later)
    made = request_rescheduling(LOG, WaitingDeliveries("t", "g", key="7"))
    carry_out_all()
    assert due() == [7, 100]
    assert state(made) == (DONE, 2, 2)


def test_of_a_key_all_its_messages_in_its_partition_only(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = next(f"beside {n}" for n in range(100) if partition_of(f"beside {n}", 4) == partition_of("7", 4))
    publish_many("t", [NewMessage(number, key=key) for number, key in ((100, "7"), (101, beside), (102, "7"))])
    for message in Message.objects.filter(offset__gt=offsets(14)[0]):
        where = {"consumer_group": "g", "topic": "t", "partition": message.partition}
        later = timezone.now() + timedelta(hours=1)
        DeliveryStateFactory(**where, message_offset=message.offset, invisible_until=later)
    looked_at = []
    next_stream = reschedule_requests._next_partition

    def looking(*given: Any) -> tuple[int, int] | None:
        looked_at.append(next_stream(*given))
        return looked_at[-1]

    monkeypatch.setattr(reschedule_requests, "_next_partition", looking)
    made = request_rescheduling(LOG, WaitingDeliveries("t", "g", key="7"))
    carry_out_all()
    assert due() == [7, 100, 102]
    assert state(made) == (DONE, 3, 3)
    assert looked_at == [(partition_of("7", 4), 0), None]


def test_consumers_carry_it_out_and_deliver(consuming: Consuming, patient: Patient) -> None:
    consuming.start("g")
    patient.broken = False
    made = request_rescheduling(LOG, ALL, attempts=0)
    wait_until(lambda: sorted(patient.seen) == list(range(15)))
    wait_until(lambda: state(made) == (DONE, 15, 15))
    assert set(patient.attempts.values()) == {1}


def test_attempts_stay_unless_they_are_given(patient: Patient) -> None:
    request_rescheduling(LOG, WaitingDeliveries("t", "g", FAILING))
    carry_out_all()
    rows = DeliveryState.objects.filter(consumer_group="g", message_offset__in=offsets(*range(10)))
    assert set(rows.values_list("retry_count", flat=True)) == {1}
    DeliveryState.objects.update(invisible_until=timezone.now() + timedelta(hours=1))
    request_rescheduling(LOG, WaitingDeliveries("t", "g", FAILING), attempts=3)
    carry_out_all()
    assert set(rows.values_list("retry_count", flat=True)) == {3}


def test_they_can_be_put_off_further(patient: Patient) -> None:
    request_rescheduling(LOG, WaitingDeliveries("t", "g", POSTPONED), delay=7200)
    carry_out_all()
    late = DeliveryState.objects.filter(invisible_until__gt=timezone.now() + timedelta(seconds=LONG + 600))
    assert late.count() == 5
    assert due() == []


def test_a_rate_is_kept_and_an_order_can_be_cancelled(patient: Patient) -> None:
    made = request_rescheduling(LOG, ALL, rate=2)
    assert not carry_out(LOG)
    assert not carry_out(LOG)  # another process, within the same second
    assert state(made) == (RUNNING, 2, 15)
    Request.objects.update(updated_at=timezone.now() - timedelta(seconds=2))
    assert not carry_out(LOG)
    assert state(made) == (RUNNING, 4, 15)
    assert cancel(LOG, made.pk)
    assert not cancel(LOG, made.pk)
    Request.objects.update(updated_at=timezone.now() - timedelta(seconds=2))
    carry_out(LOG)
    assert state(made) == (CANCELLED, 4, 15)
    assert len(due()) == 4


def test_a_rate_does_not_slow_down_the_search(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reschedule_requests, "PARTITIONS_OF_A_STEP", 1)
    made = request_rescheduling(LOG, WaitingDeliveries("t", "g", error="shop 9 is"), rate=1)
    carry_out_all()
    assert state(made)[:2] == (RUNNING, 1) or state(made) == (DONE, 1, 1)
    assert due() == [9]


def test_steps_are_bounded_and_look_at_each_once(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reschedule_requests, "AT_ONCE", 2)
    monkeypatch.setattr(reschedule_requests, "PARTITIONS_OF_A_STEP", 2)
    made = request_rescheduling(LOG, ALL, delay=60)  # what was looked at waits still: it must not be found again
    assert carry_out_all() >= 7
    assert state(made) == (DONE, 15, 15)


def test_more_than_are_counted_are_rescheduled(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reschedule_requests, "MOST_COUNTED", 4)
    made = request_rescheduling(LOG, ALL)
    carry_out_all()
    assert state(made) == (DONE, 15, 4)


def test_what_fails_from_now_on_is_not_part_of_it(consuming: Consuming, patient: Patient) -> None:
    made = request_rescheduling(LOG, ALL)
    publish_many("t", [NewMessage(n, key=f"later {n}") for n in range(10)])
    consuming.drain()
    carry_out_all()
    assert state(made) == (DONE, 15, 15)
    later = DeliveryState.objects.filter(consumer_group="g", message_offset__gt=max(offsets(14)))
    assert later.count() == 10
    assert not later.filter(invisible_until__lt=timezone.now() + timedelta(seconds=LONG / 2)).exists()


def test_what_is_with_a_handler_or_done_is_left(patient: Patient) -> None:
    made = request_rescheduling(LOG, ALL)
    rows = DeliveryState.objects.filter(consumer_group="g")
    rows.filter(message_offset__in=offsets(1)).update(in_flight=1)
    rows.filter(message_offset__in=offsets(2)).update(acked=True)
    carry_out_all()
    assert state(made) == (DONE, 13, 15)
    assert due() == [0, *range(3, 15)]


def test_what_another_transaction_has_locked_is_passed_by(patient: Patient) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time: no row is locked")
    made = request_rescheduling(LOG, ALL)
    mine = DeliveryState.objects.filter(consumer_group="g", message_offset__in=offsets(3))
    with OpenTransaction() as settling:
        settling.do(lambda: list(mine.select_for_update()))
        carry_out_all()
        assert state(made) == (DONE, 14, 15)
    assert due() == [n for n in range(15) if n != 3]


def test_an_order_that_cannot_go_on_fails_with_its_reason(patient: Patient) -> None:
    made, another = request_rescheduling(LOG, ALL), request_rescheduling(LOG, ALL)
    Request.objects.filter(pk=made.pk).update(rate=-1)
    carry_out_all()
    assert state(made) == (FAILED, 0, 15)
    assert "the rate must be" in made.note
    assert state(another) == (DONE, 15, 15)


def test_a_group_that_is_removed_meanwhile_ends_it(patient: Patient) -> None:
    made = request_rescheduling(LOG, ALL)
    remove(LOG, "g", "t")
    carry_out_all()
    assert state(made) == (DONE, 0, 15)


@pytest.mark.parametrize(
    ("chosen", "options", "reason"),
    [
        (WaitingDeliveries("t", "nobody"), {}, "there is no group 'nobody' in topic 't'"),
        (WaitingDeliveries("no", "g"), {}, "there is no group 'g' in topic 'no'"),
        (WaitingDeliveries("t", "g", "lost"), {}, "which must be"),
        (WaitingDeliveries("t", "g", error="x" * 201), {}, "201 characters"),
        (WaitingDeliveries("t", "g", error="no such error"), {}, "waits for its time: nothing to do"),
        (WaitingDeliveries("t", "g", key="no such key"), {}, "waits for its time: nothing to do"),
        (WaitingDeliveries("t", "g", FAILING, key="12"), {}, "waits for its time: nothing to do"),
        (WaitingDeliveries("t", "g", key="x" * 256), {}, "key has 256 characters"),
        (ALL, {"rate": 0}, "the rate must be"),
        (ALL, {"attempts": -1}, "attempts must be"),
        (ALL, {"delay": -1}, "delay must lie"),
    ],
)
def test_what_makes_no_sense_is_refused(patient: Patient, chosen: WaitingDeliveries, options: Any, reason: str) -> None:
    with pytest.raises((ConfigurationError, InvalidMessage), match=reason):
        request_rescheduling(LOG, chosen, **options)
    assert not Request.objects.exists()


def test_more_orders_than_are_read_at_once(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "AT_ONCE", 2)
    made = [request_rescheduling(LOG, WaitingDeliveries("t", "g", error=f"Shop {n} is"), delay=60) for n in range(5)]
    carry_out_all()
    assert [state(one) for one in made] == [(DONE, 1, 1)] * 5
