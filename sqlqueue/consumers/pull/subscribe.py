"""subscribe() and asubscribe(): the engine as a pull loop, for scripts, shells and tests, and for async code, whose
receiver waits on an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from queue import Empty
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async

from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.consumers.engine.subscriber import refuse_transaction
from sqlqueue.consumers.handlers.connections import CONNECTIONS_LAST
from sqlqueue.consumers.pull.delivery import PulledDelivery
from sqlqueue.consumers.pull.engine import PullEngine, pulled_consumer
from sqlqueue.core import forks
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError, seconds
from sqlqueue.log.placement import worked_on
from sqlqueue.twins import refuse_in_async

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sqlqueue.consumers.declare.options import PullOptions


LOOK_AGAIN = 0.2  # seconds between two checks whether the engine still runs


class Deliveries(PullEngine):
    """Iterate over it. It ends after `timeout` seconds without a delivery (None: never), by close(), or by leaving its
    block.

    An error that ended the engine is raised here.
    """

    def __init__(self, consumer: Consumer, logs: Sequence[Log], timeout: float | None):
        self._all_started = threading.Event()
        super().__init__(consumer, logs, timeout)

    def _changed(self) -> None:
        if self._started:
            self._all_started.set()

    def __iter__(self) -> Iterator[PulledDelivery]:
        waited_since = looked_at = time.monotonic()
        delivery: PulledDelivery | None = None
        while True:
            forks.leave_if_forked(self._forked)
            if delivery is not None and delivery.uncommitted:
                raise ConfigurationError(
                    f"{delivery!r} was acked in a transaction that is still open, for which the group's other messages "
                    "wait: commit it before the next delivery is waited for"
                )
            try:
                delivery = self._deliveries.get(timeout=LOOK_AGAIN)
            except Empty:
                if self._timeout is not None and time.monotonic() - waited_since >= self._timeout:
                    return
                if not self._ended:
                    continue
                delivery = None
            if delivery is None:
                self._join()
                self._check()
                return
            if time.monotonic() - looked_at >= CONNECTIONS_LAST:
                retries.close_lost_connections()  # the receiver's own, before the visibility timeout begins
                looked_at = time.monotonic()
            if delivery.ready():
                yield delivery
            waited_since = time.monotonic()


class AsyncDeliveries(PullEngine):
    """Iterate over it, in one task or in several, each of which gets deliveries of its own. It ends after `timeout`
    seconds without a delivery (None: never), by close(), or by leaving its block.

    An error that ended the engine is raised here.
    """

    def __init__(self, consumer: Consumer, logs: Sequence[Log], timeout: float | None):
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._looked_at = self._last_taken = time.monotonic()
        super().__init__(consumer, logs, timeout)

    def __aiter__(self) -> AsyncDeliveries:
        return self

    async def __anext__(self) -> PulledDelivery:
        waits_since = time.monotonic()
        while not self._ended:
            if not await self._until(lambda: self._ended or self._arrived, waits_since):
                raise StopAsyncIteration
            await self._close_lost_connections()  # before the visibility timeout begins
            delivery = self._take()
            if delivery is not None:  # nothing is awaited from here on: a task that is cancelled has lost none
                return delivery
        self._check()
        raise StopAsyncIteration

    @property
    def _arrived(self) -> bool:
        return not any(each.stopping for each in self._subscribers) and not self._deliveries.empty()

    def _take(self) -> PulledDelivery | None:
        """Return a delivery that has arrived, started; None if there is none, or another task has it."""
        while self._arrived:
            try:
                delivery = self._deliveries.get_nowait()
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

    def _changed(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    async def _until(self, condition: Callable[[], bool], waits_since: float | None = None) -> bool:
        """Wait until the condition holds; return False if nothing has arrived for the timeout, counted from then."""
        while True:
            self._news.clear()  # first, so that no change behind the look is missed
            if condition():
                return True
            left = None
            if waits_since is not None and self._timeout is not None:
                left = max(waits_since, self._last_taken) + self._timeout - time.monotonic()
                if left <= 0:
                    return False
            # Not by wait_for: until Python 3.12 that swallows a cancellation which comes together with the change.
            timer = None if left is None else self._loop.call_later(left, self._news.set)
            try:
                await self._news.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def _astart(self) -> None:
        """Start the engine, and wait for that; raise what has kept it from that."""
        self._start()
        await self._until(lambda: self._started)
        self._check()

    async def _aend(self) -> None:
        """End the engine, and wait for that. A task that is cancelled waits all the same, until the leases are
        released."""
        self._stop()
        cancelled: asyncio.CancelledError | None = None
        while self._running:
            try:
                await self._until(lambda: not self._running)
            except asyncio.CancelledError as error:
                cancelled = error
        self._join()  # it has nothing left to do
        if cancelled is not None:
            raise cancelled


@contextmanager
def subscribe(
    topic: str, *, group: str = "default", timeout: float | None = None, **options: Unpack[PullOptions]
) -> Iterator[Deliveries]:
    """Receive a topic's messages for a group in the calling thread.

    timeout: seconds without a delivery after which the iteration ends
    options: as for @consumer, but batch and atomic

    The engine runs in a thread of its own. The receiver settles each delivery (ack, retry, postpone, reject or fail);
    what is not settled at the end is released, uncharged. While batch_size deliveries are unsettled the iteration
    waits. Of a topic on several databases there is an engine for each. Inside a TestCase use sqlqueue.testing.drain.

    Raises ConfigurationError for options that cannot work, for a topic that is not declared, and in a transaction, for
    whose end the engine would wait.
    """
    refuse_in_async("subscribe", "async with asubscribe(…)")
    if timeout is not None:
        timeout = seconds(timeout, "timeout")
    deliveries = Deliveries(*_checked(topic, group, options), timeout)
    deliveries._start()
    try:
        deliveries._all_started.wait()
        deliveries._check()
        yield deliveries
    finally:
        deliveries._join()


@asynccontextmanager
async def asubscribe(
    topic: str, *, group: str = "default", timeout: float | None = None, **options: Unpack[PullOptions]
) -> AsyncIterator[AsyncDeliveries]:
    """The async twin of subscribe: `async with asubscribe(…) as deliveries`, `async for delivery in deliveries`, and
    `await delivery.aack()`.

    The engine's thread renews the leases, however long the event loop is busy; nothing in the loop polls. On leaving
    the block, by a cancelled task too, what is not settled is released, uncharged, and the thread has ended.

    Raises what subscribe does.
    """
    if timeout is not None:
        timeout = seconds(timeout, "timeout")
    deliveries = AsyncDeliveries(*await sync_to_async(_checked)(topic, group, options), timeout)
    try:
        await deliveries._astart()
        yield deliveries
    finally:
        await deliveries._aend()


def _checked(topic: str, group: str, options: PullOptions) -> tuple[Consumer, list[Log]]:
    """Return whom a pull loop receives messages for, and the logs that they are on."""
    consumer = pulled_consumer(topic, group, {**options})
    logs = worked_on(topic, "", None)
    for log in logs:
        refuse_transaction(log)
    return consumer, logs
