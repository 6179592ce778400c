"""A batch whose handler raises is divided until the bad messages have failed alone; the others are charged nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db.models.functions import Now

from sqlqueue import HandOver, NewMessage, Retry, publish_many
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.core.bisection import OUTAGE
from sqlqueue.models import DeliveryState, Message, Offset
from sqlqueue.testing import drain
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming, states
from tests.processes import wait_until

ONE_PARTITION = {**QUICK, "PARTITIONS": 1, "FLUSH_INTERVAL": 60.0}
KINDS = pytest.mark.parametrize("kind", ["plain", "atomic", "async"])
Call = list[tuple[int, int]]  # (payload, attempt) of what the handler got


class Calls:
    """The calls of a batch handler that raises whenever it gets a message for which `bad` returns true."""

    def __init__(self, bad: Callable[[Any], object]):
        self.calls: list[Call] = []
        self.done: list[int] = []
        self._bad = bad

    def take(self, deliveries: list[Any]) -> None:
        self.calls.append([(delivery.payload, delivery.attempt) for delivery in deliveries])
        Effect.objects.bulk_create(Effect(name="seen", value=str(delivery.payload)) for delivery in deliveries)
        for delivery in deliveries:
            if self._bad(delivery):
                raise ValueError(f"bad: {delivery.payload}")
        self.done += [delivery.payload for delivery in deliveries]

    async def atake(self, deliveries: list[Any]) -> None:
        await sync_to_async(self.take)(deliveries)

    def register(self, consuming: Consuming, kind: str, **options: Any) -> None:
        handler = self.atake if kind == "async" else self.take
        consuming.consumer("t", handler, batch=True, atomic=kind == "atomic", **{"backoff": 0, **options})

    def attempts(self, number: int) -> list[int]:
        return [attempt for call in self.calls if len(call) == 1 for payload, attempt in call if payload == number]


@pytest.fixture(autouse=True)
def one_partition(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = ONE_PARTITION


@pytest.mark.parametrize("bad", [0, 333, 499])
@KINDS
def test_one_bad_message_of_500_costs_twelve_calls_and_no_neighbour_an_attempt(
    consuming: Consuming, kind: str, bad: int
) -> None:
    calls = Calls(lambda delivery: delivery.payload == bad)
    calls.register(consuming, kind, batch_size=500, max_attempts=2)
    publish_many("t", range(500))
    consuming.drain()
    (last,) = [number for number, call in enumerate(calls.calls) if call == [(bad, 2)]]
    assert last <= 1 + 12, "before it is tried for the second time"
    assert {attempt for call in calls.calls for payload, attempt in call if payload != bad} == {1}
    assert calls.attempts(bad) == [1, 2]
    assert sorted(calls.done) == [number for number in range(500) if number != bad]
    (dead_letter,) = Message.objects.filter(topic="t_dlq")
    assert (dead_letter.payload, dead_letter.failure_count) == (bad, 2)
    if kind == "atomic":
        assert sorted(Effect.objects.values_list("value", flat=True)) == sorted(map(str, calls.done))
    assert states("t") == []
    assert Offset.objects.get(topic="t").position == Message.objects.filter(topic="t").latest("offset").offset


@KINDS
def test_a_key_keeps_its_order(consuming: Consuming, kind: str) -> None:
    """What is behind a message that has failed is handed back."""
    calls = Calls(lambda delivery: delivery.payload in (7, 23) and delivery.attempt < 3)
    calls.register(consuming, kind, batch_size=60)
    publish_many("t", [NewMessage(number, key=f"k{number % 4}") for number in range(60)])
    consuming.drain()
    assert sorted(calls.done) == list(range(60))
    for key in range(4):
        mine = [number for number in calls.done if number % 4 == key]
        assert mine == sorted(mine)
    assert {attempt for call in calls.calls for payload, attempt in call if payload not in (7, 23)} == {1}


@KINDS
def test_a_partition_keeps_its_order(consuming: Consuming, kind: str) -> None:
    calls = Calls(lambda delivery: delivery.payload == 7 and delivery.attempt < 3)
    calls.register(consuming, kind, batch_size=20, ordering="partition")
    publish_many("t", range(20))
    consuming.drain()
    assert calls.done == list(range(20))


@KINDS
def test_behind_a_message_that_is_rejected_its_key_goes_on_in_the_next_batch(consuming: Consuming, kind: str) -> None:
    calls = Calls(lambda delivery: delivery.payload == 3)
    calls.register(consuming, kind, batch_size=20, reject_for=(ValueError,))
    publish_many("t", [NewMessage(number, key="a") for number in range(20)])
    consuming.drain()
    assert calls.done == [number for number in range(20) if number != 3]
    assert sum(len(call) for call in calls.calls) < 100
    assert {attempt for call in calls.calls for _, attempt in call} == {1}
    assert Message.objects.filter(topic="t_dlq").count() == 1


@KINDS
def test_in_an_outage_few_are_tried_and_all_wait_for_their_backoff(consuming: Consuming, kind: str) -> None:
    calls = Calls(lambda delivery: True)
    calls.register(consuming, kind, batch_size=200, backoff=3600, jitter=0.0)
    publish_many("t", range(200))
    consuming.drain()
    assert sum(len(call) == 1 for call in calls.calls) == OUTAGE
    assert len(calls.calls) <= 2 * OUTAGE + 12
    waiting = DeliveryState.objects.filter(topic="t", acked=False, invisible_until__gt=Now())
    assert waiting.filter(retry_count=1).count() == OUTAGE
    assert waiting.filter(retry_count=0, last_error__contains="bad: ").count() == 200 - OUTAGE


@KINDS
def test_good_messages_behind_ten_bad_ones_are_charged_nothing(consuming: Consuming, kind: str) -> None:
    calls = Calls(lambda delivery: delivery.payload < 12)
    calls.register(consuming, kind, batch_size=50, max_attempts=2)
    publish_many("t", range(50))
    consuming.drain()
    assert sorted(calls.done) == list(range(12, 50))
    assert {attempt for call in calls.calls for payload, attempt in call if payload >= 12} == {1}
    assert Message.objects.filter(topic="t_dlq").count() == 12


@KINDS
def test_with_one_attempt_only_what_was_tried_is_a_dead_letter(consuming: Consuming, kind: str) -> None:
    tried: list[int] = []

    def note(delivery) -> bool:
        tried.append(delivery.payload)
        return delivery.payload < 25

    calls = Calls(note)
    calls.register(consuming, kind, batch_size=50, max_attempts=1)
    publish_many("t", range(50))
    consuming.drain()
    assert sorted(Message.objects.filter(topic="t_dlq").values_list("payload", flat=True)) == list(range(25))
    assert sorted(calls.done) == list(range(25, 50))


def test_an_error_of_one_call_only_charges_nothing(consuming: Consuming) -> None:
    """As of a connection that was lost, or a service that was away for a moment."""
    calls = Calls(lambda delivery: len(calls.calls) == 1)
    calls.register(consuming, "plain", batch_size=100)
    publish_many("t", range(100))
    consuming.drain()
    assert calls.done == list(range(100))
    assert {attempt for call in calls.calls for _, attempt in call} == {1}


@KINDS
def test_a_message_that_is_handed_over_is_found(consuming: Consuming, kind: str) -> None:
    def hand_over(delivery) -> None:
        if delivery.payload in (3, 4):
            raise HandOver("look at it")

    calls = Calls(hand_over)
    calls.register(consuming, kind, batch_size=20)
    publish_many("t", [NewMessage(number, key="a") for number in range(20)])
    consuming.drain()
    assert calls.done == [number for number in range(20) if number not in (3, 4)]
    assert list(WorkItem.objects.order_by("message_offset").values_list("payload", "attempts")) == [(3, 1), (4, 1)]


def test_retry_is_said_of_all_of_a_batch(consuming: Consuming) -> None:
    calls: list[Call] = []

    @consuming.consumer("t", batch=True)
    def handle(deliveries) -> None:
        calls.append([(delivery.payload, delivery.attempt) for delivery in deliveries])
        if len(calls) == 1:
            raise Retry(delay=0)

    publish_many("t", range(3))
    consuming.drain()
    assert calls == [[(0, 1), (1, 1), (2, 1)], [(0, 2)], [(1, 2)], [(2, 2)]]


def test_what_has_failed_is_handled_alone(consuming: Consuming) -> None:
    calls = Calls(lambda delivery: delivery.payload % 10 == 0 and delivery.attempt == 1)
    calls.register(consuming, "plain", batch_size=100)
    publish_many("t", range(100))
    consuming.drain()
    assert [call for call in calls.calls if call[0][1] == 2] == [[(number, 2)] for number in range(0, 100, 10)]


def test_a_part_that_overruns_is_charged_and_the_others_are_handed_back(consuming: Consuming) -> None:
    gate, calls = consuming.gate(), []

    @consuming.consumer("t", batch=True, visibility_timeout=0.5, backoff=0)
    def handle(deliveries) -> None:
        for delivery in deliveries:
            if delivery.attempt > 1 or len(calls) > 1:
                delivery.extend(seconds=300)
        calls.append([(delivery.payload, delivery.attempt) for delivery in deliveries])
        if len(calls) == 1:
            raise ValueError("divide it")
        if len(calls) == 2:
            gate.wait()

    publish_many("t", range(8))
    consuming.start()
    wait_until(lambda: sorted(number for call in calls[2:] for number, _ in call) == list(range(8)))
    assert calls[1] == [(number, 1) for number in range(4)]
    assert sorted(pair for call in calls[2:] for pair in call) == [
        *((number, 2) for number in range(4)),
        *((number, 1) for number in range(4, 8)),
    ]


def test_a_stop_hands_back_what_is_to_be_tried_again(consuming: Consuming) -> None:
    gate, calls = consuming.gate(), []

    @consuming.consumer("t", batch=True)
    def handle(deliveries) -> None:
        calls.append(len(deliveries))
        if len(calls) == 1:
            raise ValueError("divide it")
        gate.wait()

    publish_many("t", range(8))
    host = consuming.start()
    wait_until(lambda: len(calls) == 2)
    host.subscriber.stop()
    wait_until(lambda: all(execution.stopped for execution in list(host.subscriber.in_flight.executions)))
    gate.set()
    host.join()
    assert calls == [8, 4]
    offsets = list(Message.objects.filter(topic="t").order_by("offset").values_list("offset", flat=True))
    assert Offset.objects.get(topic="t").position == offsets[3]
    assert not DeliveryState.objects.exclude(retry_count=0).exists()


@pytest.mark.django_db(transaction=True)
def test_a_drain_that_raises_errors_ends_with_the_first(consuming: Consuming) -> None:
    calls = Calls(lambda delivery: delivery.payload == 3)
    calls.register(consuming, "plain", batch_size=10, backoff=60)
    publish_many("t", range(10))
    with pytest.raises(ValueError, match="bad: 3"):
        drain(raise_errors=True)
    assert len(calls.calls) == 1
    assert DeliveryState.objects.filter(retry_count=1).count() == 10


@pytest.mark.django_db(transaction=True)
@KINDS
def test_a_drain_divides_too(consuming: Consuming, kind: str) -> None:
    calls = Calls(lambda delivery: delivery.payload == 3)
    calls.register(consuming, kind, batch_size=10, max_attempts=1)
    publish_many("t", range(10))
    drain()
    assert calls.done == [number for number in range(10) if number != 3]
