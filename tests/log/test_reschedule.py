"""What a person decides of single deliveries: when they are due, that they are done."""

from typing import Any

import pytest

from sqlqueue import Delivery, Postpone, Retry, publish
from sqlqueue.log.fates import ACKED, FAILING, UNREAD, WAITING, fate
from sqlqueue.log.groups import register
from sqlqueue.log.reschedule import Changed, acknowledge, reschedule
from sqlqueue.models import DeliveryState, Message
from tests.consuming import QUICK, Consuming, watermark
from tests.processes import wait_until

ALIAS, GROUP = "default", "default"


@pytest.fixture(autouse=True)
def _quick(settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "LEASE_DURATION": 1.0, "HEARTBEAT_INTERVAL": 0.2}


def fate_of(offset: int) -> str:
    return fate(ALIAS, Message.objects.get(offset=offset), GROUP).state


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
    assert fate_of(offset) == (FAILING if isinstance(error, Retry) else WAITING)
    assert reschedule(ALIAS, GROUP, "t", [offset]) == Changed(1, 0)
    wait_until(lambda: len(attempts) == 2, message="the rescheduled message was not delivered")
    assert attempts[1] == (2 if isinstance(error, Retry) else 1)
    wait_until(lambda: fate_of(offset) == ACKED)
    assert host.subscriber.settled == 2


def test_attempts_can_be_given_anew(consuming: Consuming) -> None:
    attempts: list[int] = []

    @consuming.consumer("t", max_attempts=2)
    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise Retry(delay=3600)

    offset = publish("t", 1).offset
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(in_flight=0, retry_count=1).exists())
    reschedule(ALIAS, GROUP, "t", [offset], attempts=0)
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
    assert acknowledge(ALIAS, GROUP, "t", [first]) == Changed(1, 0)
    wait_until(lambda: seen == [2], message="the key stayed blocked")
    wait_until(lambda: not DeliveryState.objects.exists())


def test_what_a_group_has_not_read_can_be_cancelled(consuming: Consuming) -> None:
    seen: list[int] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    register(ALIAS, GROUP, "t")
    offsets = [publish("t", number, key="a").offset for number in range(3)]
    assert [fate_of(offset) for offset in offsets] == [UNREAD] * 3
    assert acknowledge(ALIAS, GROUP, "t", offsets[:2]) == Changed(2, 0)
    consuming.drain()
    assert seen == [2]
    partition = Message.objects.get(offset=offsets[0]).partition
    assert watermark("t", GROUP, partition) == offsets[-1]
    assert not DeliveryState.objects.exists()


def test_what_a_handler_has_is_left(consuming: Consuming) -> None:
    gate, seen = consuming.gate(), []

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        gate.wait(30)

    offset = publish("t", 1).offset
    consuming.start()
    wait_until(lambda: seen == [1])
    assert acknowledge(ALIAS, GROUP, "t", [offset]) == Changed(0, 1)
    assert reschedule(ALIAS, GROUP, "t", [offset]) == Changed(0, 1)
    gate.set()
    wait_until(lambda: fate_of(offset) == ACKED)
    assert seen == [1]
