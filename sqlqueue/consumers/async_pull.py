"""asubscribe(): the pull loop in async code. The engine is that of subscribe(), in its thread; the receiver waits on an
event loop."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from queue import Empty
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from sqlqueue.consumers.connections import CONNECTIONS_LAST
from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.pull_engine import pulled_consumer
from sqlqueue.consumers.pull_engines import PullEngines
from sqlqueue.consumers.pulled_delivery import PulledDelivery
from sqlqueue.consumers.registry import Consumer
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.exceptions import seconds
from sqlqueue.log.placement import worked_on

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sqlqueue.consumers.options import PullOptions


P = ParamSpec("P")
R = TypeVar("R")


def _in_thread(
    method: Callable[Concatenate[PulledDelivery, P], R],
) -> Callable[Concatenate[AsyncDelivery, P], Coroutine[Any, Any, R]]:
    """Return the async wrapper of a method of the pulled delivery."""

    @functools.wraps(method)
    async def wrapper(delivery: AsyncDelivery, /, *args: P.args, **options: P.kwargs) -> R:
        return await sync_to_async(method)(delivery.sync, *args, **options)

    return wrapper


class AsyncDelivery(Delivery):
    """The async wrapper of a pulled delivery: its receiver settles it by one of ack, retry, postpone, reject
    and fail, in the thread of its other database calls.

    sync: the pulled delivery itself, for the function that sync_to_async runs: in a transaction there, `sync.ack()` is
    part of that.
    """

    def __init__(self, pulled: PulledDelivery):
        super().__init__(pulled._attempt, pulled._payloads)
        self.sync = pulled

    @functools.cached_property
    def payload(self) -> Any:
        """As of any delivery; `sync` has read it perhaps."""
        return self.sync.payload

    @property
    def database(self) -> str:
        """The alias of the database that it is on; "" if there is one log only."""
        return self.sync.database

    @property
    def settled(self) -> str:
        """The name of the method that settled it; "" if none did, or in a transaction that was rolled back."""
        return self.sync.settled

    ack = _in_thread(PulledDelivery.ack)
    retry = _in_thread(PulledDelivery.retry)
    postpone = _in_thread(PulledDelivery.postpone)
    reject = _in_thread(PulledDelivery.reject)
    fail = _in_thread(PulledDelivery.fail)


class AsyncDeliveries:
    """Iterate over it, in one task or in several, each of which gets deliveries of its own. It ends after `timeout`
    seconds without a delivery (None: never), by close(), or by leaving its block.

    An error that ended the engine is raised here.
    """

    def __init__(self, consumer: Consumer, timeout: float | None, logs: Sequence[Log]):
        self._timeout = timeout
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._engine = PullEngines(consumer, logs, self._wake)
        self._looked_at = self._last_taken = time.monotonic()

    def close(self) -> None:
        """End the iteration, from any thread or signal handler; what is unsettled is released, uncharged."""
        self._engine.stop_soon()

    def __aiter__(self) -> AsyncDeliveries:
        return self

    async def __anext__(self) -> AsyncDelivery:
        waits_since = time.monotonic()
        while not self._engine.ended:
            if not await self._until(lambda: self._engine.ended or self._arrived, waits_since):
                raise StopAsyncIteration
            await self._close_lost_connections()  # before the visibility timeout begins
            delivery = self._take()
            if delivery is not None:  # nothing is awaited from here on: a task that is cancelled has lost none
                return AsyncDelivery(delivery)
        self._engine.check()
        raise StopAsyncIteration

    @property
    def _arrived(self) -> bool:
        return not self._engine.stopping and not self._engine.deliveries.empty()

    def _take(self) -> PulledDelivery | None:
        """Return a delivery that has arrived, started; None if there is none, or another task has it."""
        while self._arrived:
            try:
                delivery = self._engine.deliveries.get_nowait()
            except Empty:
                return None
            self._last_taken = time.monotonic()
            if delivery is not None and delivery.ready():
                return delivery
        return None

    async def _close_lost_connections(self) -> None:
        """Close what the server has ended of the receiver's connections: they may have rested for hours."""
        if time.monotonic() - self._looked_at >= CONNECTIONS_LAST:
            self._looked_at = time.monotonic()
            await sync_to_async(retries.close_lost_connections)()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Let all tasks that wait look again. For any thread; raises RuntimeError if the event loop is closed."""
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _until(self, condition: Callable[[], bool], waits_since: float | None = None) -> bool:
        """Wait until the condition holds; return False if nothing has arrived for the timeout, counted from then."""
        while True:
            self._changed.clear()  # first, so that no change behind the look is missed
            if condition():
                return True
            left = None
            if waits_since is not None and self._timeout is not None:
                left = max(waits_since, self._last_taken) + self._timeout - time.monotonic()
                if left <= 0:
                    return False
            # Not by wait_for: until Python 3.12 that swallows a cancellation which comes together with the change.
            timer = None if left is None else self._loop.call_later(left, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the engine, and wait for that; raise what has kept it from that."""
        self._engine.start()
        await self._until(lambda: self._engine.started)
        self._engine.check()

    async def end(self) -> None:
        """End the engine, and wait for that. A task that is cancelled waits all the same, until the leases are
        released."""
        self._engine.stop()
        cancelled: asyncio.CancelledError | None = None
        while not self._engine.all_ended:
            try:
                await self._until(lambda: self._engine.all_ended)
            except asyncio.CancelledError as error:
                cancelled = error
        self._engine.join()  # it has nothing left to do
        if cancelled is not None:
            raise cancelled


@asynccontextmanager
async def asubscribe(
    topic: str, *, group: str = "default", timeout: float | None = None, **options: Unpack[PullOptions]
) -> AsyncIterator[AsyncDeliveries]:
    """The async twin of subscribe: `async with asubscribe(…) as deliveries`, `async for delivery in deliveries`, and
    `await delivery.ack()`.

    The engine's thread renews the leases, however long the event loop is busy; nothing in the loop polls. On leaving
    the block, by a cancelled task too, what is not settled is released, uncharged, and the thread has ended.

    Raises ConfigurationError for options that cannot work, and for a topic that is not declared (STRICT_TOPICS).
    """
    if timeout is not None:
        timeout = seconds(timeout, "timeout")
    consumer = await sync_to_async(pulled_consumer)(topic, group, {**options})
    deliveries = AsyncDeliveries(consumer, timeout, await sync_to_async(worked_on)(topic, "", None))
    try:
        await deliveries.start()
        yield deliveries
    finally:
        await deliveries.end()
