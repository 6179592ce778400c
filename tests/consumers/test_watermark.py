"""The watermark: the highest contiguously acked offset, as the RFC's worked examples have it."""

from contextlib import ExitStack

import pytest

from sqlqueue import publish_many, subscribe
from sqlqueue.models import Message
from tests.consuming import QUICK, Consuming, offset_row, watermark
from tests.processes import wait_until


@pytest.fixture
def five(consuming: Consuming, settings) -> list[int]:
    """Five messages in one partition; their offsets are in it from index 1."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    publish_many("t", [1, 2, 3, 4, 5])
    offsets = list(Message.objects.order_by("offset").values_list("offset", flat=True))
    assert offsets == list(range(offsets[0], offsets[0] + 5))
    return [offsets[0] - 1, *offsets]


def pull(stack: ExitStack, count: int, **options: object):
    """Return an iterator of deliveries, and the first `count` of them by their payload."""
    deliveries = iter(stack.enter_context(subscribe("t", ordering="none", timeout=60, **options)))
    return deliveries, {delivery.payload: delivery for delivery in (next(deliveries) for _ in range(count))}


def settled_position(expected: int) -> None:
    """Wait until the stored position has passed everything that it can: then the watermark is what it stays."""
    wait_until(lambda: offset_row("t").position == expected)


def test_the_third_of_five_is_nacked(five: list[int]) -> None:
    with ExitStack() as stack:
        deliveries, by_number = pull(stack, 5)
        for number in (1, 2, 4, 5):
            by_number[number].ack()
        by_number[3].retry(delay=0.5)
        settled_position(five[5])
        assert watermark("t") == five[2]
        again = next(deliveries)
        assert (again.payload, again.attempt) == (3, 2)
        assert watermark("t") == five[2]
        again.ack()
        wait_until(lambda: watermark("t") == five[5])


def test_acks_out_of_order(five: list[int]) -> None:
    with ExitStack() as stack:
        _, by_number = pull(stack, 5)
        by_number[3].ack()
        settled_position(five[5])  # the others have rows by now: in flight, or acked out of order
        assert watermark("t") == five[0]
        by_number[1].ack()
        wait_until(lambda: watermark("t") == five[1])
        by_number[2].ack()
        wait_until(lambda: watermark("t") == five[3])
        by_number[5].ack()
        with pytest.raises(AssertionError):
            wait_until(lambda: watermark("t") != five[3], timeout=0.5)
        by_number[4].ack()
        wait_until(lambda: watermark("t") == five[5])


def test_acks_out_of_order_before_any_is_written(five: list[int], settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "FLUSH_INTERVAL": 60}
    with ExitStack() as stack:
        _, by_number = pull(stack, 5)
        for number in (3, 1, 2):
            by_number[number].ack()
        wait_until(lambda: watermark("t") == five[3])
        by_number[5].ack()
        with pytest.raises(AssertionError):
            wait_until(lambda: watermark("t") != five[3], timeout=0.3)
        by_number[4].ack()
        wait_until(lambda: watermark("t") == five[5])


def test_what_is_released_holds_it(five: list[int]) -> None:
    with ExitStack() as stack:
        _, by_number = pull(stack, 5)
        by_number[2].ack()
        by_number[4].ack()
    assert watermark("t") < five[1]
    with ExitStack() as stack:
        _, by_number = pull(stack, 3)
        assert sorted(by_number) == [1, 3, 5]
        assert {delivery.attempt for delivery in by_number.values()} == {1}
        for delivery in by_number.values():
            delivery.ack()
    assert watermark("t") == five[5]


def test_a_dead_letter_lets_it_pass(five: list[int]) -> None:
    with ExitStack() as stack:
        _, by_number = pull(stack, 5, max_attempts=1)
        by_number[1].reject("no")
        by_number[2].retry()
        for number in (3, 4, 5):
            by_number[number].ack()
        wait_until(lambda: watermark("t") == five[5])
