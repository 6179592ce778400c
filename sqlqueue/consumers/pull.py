"""subscribe(): the engine as a pull loop, for scripts, shells and tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from typing import TYPE_CHECKING

from sqlqueue.consumers.connections import CONNECTIONS_LAST
from sqlqueue.consumers.pull_engine import pulled_consumer
from sqlqueue.consumers.pull_engines import PullEngines
from sqlqueue.consumers.pulled_delivery import PulledDelivery
from sqlqueue.database import retries
from sqlqueue.exceptions import ConfigurationError, seconds
from sqlqueue.log.placement import worked_on
from sqlqueue.twins import refuse_in_async

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sqlqueue.consumers.options import PullOptions

LOOK_AGAIN = 0.2  # seconds between two checks whether the engine still runs


class Deliveries:
    """Iterate over it. It ends after `timeout` seconds without a delivery (None: never), by close(), or by leaving its
    block.

    An error that ended the engine is raised here.
    """

    def __init__(self, engine: PullEngines, timeout: float | None):
        self._engine, self._timeout = engine, timeout

    def close(self) -> None:
        """End the iteration, from any thread or signal handler; what is unsettled is released, uncharged."""
        self._engine.stop_soon()

    def __iter__(self) -> Iterator[PulledDelivery]:
        waited_since = looked_at = time.monotonic()
        delivery: PulledDelivery | None = None
        while True:
            self._engine.leave_if_forked()
            if delivery is not None and delivery.uncommitted:
                raise ConfigurationError(
                    f"{delivery!r} was acked in a transaction that is still open, for which the group's other messages "
                    "wait: commit it before the next delivery is waited for"
                )
            try:
                delivery = self._engine.deliveries.get(timeout=LOOK_AGAIN)
            except Empty:
                if self._timeout is not None and time.monotonic() - waited_since >= self._timeout:
                    return
                if not self._engine.ended:
                    continue
                delivery = None
            if delivery is None:
                self._engine.join()
                self._engine.check()
                return
            if time.monotonic() - looked_at >= CONNECTIONS_LAST:
                retries.close_lost_connections()  # the receiver's own, before the visibility timeout begins
                looked_at = time.monotonic()
            if delivery.ready():
                yield delivery
            waited_since = time.monotonic()


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

    Raises ConfigurationError for options that cannot work, and for a topic that is not declared.
    """
    refuse_in_async("subscribe", "async with asubscribe(…)")
    if timeout is not None:
        timeout = seconds(timeout, "timeout")
    consumer = pulled_consumer(topic, group, {**options})
    engine = PullEngines(consumer, worked_on(topic, "", None))
    engine.start()
    try:
        engine.wait_until_started()
        yield Deliveries(engine, timeout)
    finally:
        engine.stop()
        engine.join()
