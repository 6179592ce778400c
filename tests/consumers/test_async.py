"""Async handlers run on an event loop, with all that sync ones have."""

import asyncio

import pytest

from sqlqueue import ConfigurationError, NewMessage, Postpone, Reject, Retry, publish, publish_many
from sqlqueue.models import Message
from tests.app.models import Effect
from tests.consuming import Consuming, states
from tests.processes import wait_until


def test_they_run_side_by_side_and_in_order_per_key(consuming: Consuming) -> None:
    seen: list[tuple[str, int]] = []
    current_execution, most = 0, 0

    @consuming.consumer("t")
    async def handle(delivery) -> None:
        nonlocal current_execution, most
        current_execution += 1
        most = max(most, current_execution)
        await asyncio.sleep(0.005)
        seen.append((delivery.key, delivery.payload))
        current_execution -= 1

    publish_many("t", [NewMessage(number, key=f"k{number % 5}") for number in range(50)])
    consuming.drain()
    assert len(seen) == 50
    assert most > 1
    for remainder in range(5):
        mine = [number for key, number in seen if key == f"k{remainder}"]
        assert mine == sorted(mine)


def test_every_outcome(consuming: Consuming) -> None:
    attempts: dict[str, list[int]] = {}

    @consuming.consumer("t", backoff=0)
    async def handle(delivery) -> None:
        mine = attempts.setdefault(delivery.payload, [])
        mine.append(delivery.attempt)
        await asyncio.sleep(0)
        if delivery.payload == "reject":
            raise Reject("no")
        if len(mine) < 3:
            if delivery.payload == "retry":
                raise Retry(delay=0)
            if delivery.payload == "postpone":
                raise Postpone(delay=0)
            if delivery.payload == "error":
                raise ValueError

    publish_many("t", ["plain", "retry", "postpone", "error", "reject"])
    consuming.drain()
    assert attempts == {
        "plain": [1],
        "retry": [1, 2, 3],
        "postpone": [1, 1, 1],
        "error": [1, 2, 3],
        "reject": [1],
    }
    assert [dead_letter.payload for dead_letter in Message.objects.filter(topic="t_dlq")] == ["reject"]


def test_batches(consuming: Consuming) -> None:
    seen: list[int] = []

    @consuming.consumer("t", batch=True, batch_size=10)
    async def handle(deliveries) -> None:
        await asyncio.sleep(0)
        seen.extend(delivery.payload for delivery in deliveries)

    publish_many("t", range(40))
    consuming.drain()
    assert sorted(seen) == list(range(40))


def test_one_that_overruns_is_cancelled_and_comes_again(consuming: Consuming) -> None:
    attempts: list[int] = []
    cancelled: list[int] = []

    @consuming.consumer("t", visibility_timeout=0.5, backoff=0)
    async def handle(delivery) -> None:
        if delivery.attempt > 1:
            delivery.extend(seconds=300)
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(delivery.attempt)
                raise

    publish("t", 1)
    host = consuming.start()
    wait_until(lambda: attempts == [1, 2])
    wait_until(lambda: cancelled)
    host.stop()
    assert states("t") == []


def test_they_use_the_database_through_djangos_own_bridge(consuming: Consuming) -> None:
    @consuming.consumer("t")
    async def handle(delivery) -> None:
        await Effect.objects.acreate(name="async", value=str(delivery.payload))

    publish("t", 7)
    consuming.drain()
    assert Effect.objects.get().value == "7"


def test_atomic_is_refused(consuming: Consuming) -> None:
    async def handle(delivery) -> None: ...

    with pytest.raises(ConfigurationError, match="async and atomic"):
        consuming.consumer("t", handle, atomic=True)
