"""A batch's block is whole: the batch and its members are there once it has ended, or nothing of them."""

import threading
from typing import Any

import pytest
from django.db import connections

from sqlqueue import Batch, ConfigurationError, Delivery, get_batch
from sqlqueue.contrib.batches.models import Batch as BatchRow
from sqlqueue.contrib.batches.models import BatchPart
from sqlqueue.models import Message, ScheduledMessage
from tests.consuming import Consuming
from tests.contrib.batches.following import CALLED, figures, register, standing

CALLS: Any = {f"on_{when}": (CALLED, when) for when in ("finish", "success", "failure")}


@pytest.mark.parametrize("kind", ["sync", "batch", "atomic"])
def test_a_handler_that_fails_half_way_publishes_nothing_of_its_batch(
    kind: str, consuming: Consuming, called: list[Any]
) -> None:
    seen: list[int] = []

    def fan_out(delivery: Delivery) -> None:
        with Batch(parent=Batch.of(delivery), then=[("rows", 4)], **CALLS) as batch:
            for number in range(4):
                if number == 2 and delivery.attempt == 1:
                    raise OSError("half-way")
                batch.publish("rows", number)
            batch.publish_many("rows", iter([5, 6]))

    register(consuming, kind, fan_out, backoff=0, jitter=0)
    consuming.consumer("rows", lambda delivery: seen.append(delivery.payload))
    with Batch() as outer:
        outer.publish("t", 1)
    consuming.drain()
    assert sorted(seen) == [0, 1, 2, 3, 4, 5, 6]
    assert sorted(called) == ["finish", "success"]
    assert (BatchRow.objects.count(), standing(outer.id).state) == (2, "succeeded")


def fill(batch: Batch) -> None:
    """Publish members to it, and fail."""
    with batch:
        batch.publish("t", 1)
        batch.publish("t", 1, delay=60)
        assert figures(batch.id) == (2, 0, 0)
        raise ZeroDivisionError


def test_an_exception_leaves_nothing_of_it(consuming: Consuming, called: list[Any]) -> None:
    batch = Batch(**CALLS)
    with pytest.raises(ZeroDivisionError):
        fill(batch)
    assert get_batch(batch.id) is None
    for model in (Message, ScheduledMessage, BatchPart):
        assert not model._default_manager.exists()
    with pytest.raises(ConfigurationError, match="is sealed"):
        batch.publish("t", 1)


def test_one_inside_another_is_undone_alone(consuming: Consuming, called: list[Any]) -> None:
    seen: list[Any] = []
    register(consuming, "sync", lambda delivery: seen.append(delivery.payload))
    with Batch(**CALLS) as outer:
        inner = Batch(parent=outer)
        outer.publish("t", "outer")
        with pytest.raises(ZeroDivisionError):
            fill(inner)
        outer.publish("t", "outer")
    consuming.drain()
    assert (seen, sorted(called)) == (["outer"] * 2, ["finish", "success"])
    assert (figures(outer.id), get_batch(inner.id)) == ((2, 2, 0), None)


def test_another_thread_does_not_publish_to_it(consuming: Consuming) -> None:
    """Its members would be there though the block fails."""
    raised: list[BaseException] = []

    def add() -> None:
        try:
            batch.publish("t", 1)
        except ConfigurationError as error:
            raised.append(error)
        finally:
            connections.close_all()

    with Batch() as batch:
        thread = threading.Thread(target=add)
        thread.start()
        thread.join()
    assert "publish its members in that thread" in str(raised[0])
    assert figures(batch.id) == (0, 0, 0)
