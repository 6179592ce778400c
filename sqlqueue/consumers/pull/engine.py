"""The engine of a pull loop: a subscriber of one consumer for each database, in a thread of its own, and its pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from django.db import connections

from sqlqueue.consumers.declare.registry import Consumer, build
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.consumers.handlers.pools import Pool
from sqlqueue.consumers.handlers.runs import Report, continues
from sqlqueue.consumers.pull.delivery import PulledDelivery
from sqlqueue.core import forks
from sqlqueue.core.flow import NO_FLOW
from sqlqueue.core.outcomes import Outcome
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.placement import any_log
from sqlqueue.log.topics import require_declared


def pulled_consumer(topic: str, group: str, options: dict[str, Any]) -> Consumer:
    """Return the consumer of a pull loop. Raises ConfigurationError for options that cannot work, and for a topic that
    is not declared."""
    for name in ("batch", "atomic"):
        if options.get(name):
            raise ConfigurationError(f"a pull loop delivers one by one, not {name}: use @consumer for that")
    if options.get("commit_every", 1) != 1:
        raise ConfigurationError("a pull loop's receiver commits by itself: leave commit_every out")
    made = build(topic, {"group": group, **options})
    require_declared(any_log(topic), topic)
    # One that names no limits leaves the group's as they are.
    return replace(made, declares=made.flow != NO_FLOW)


class PullPool(Pool):
    """Gives the deliveries of executions to the receiver, one at a time and in their order. arrived: is called, by any
    thread, when there is another one."""

    def __init__(
        self,
        report: Report,
        ended: Callable[[Execution], None],
        arrived: Callable[[], None],
        deliveries: SimpleQueue[PulledDelivery | None],
    ):
        self._report, self._ended, self._arrived, self._deliveries = report, ended, arrived, deliveries

    def submit(self, executor: HandlerExecutor, execution: Execution, reserved: bool = False) -> None:
        """Offer the first delivery of an execution; the next one follows when that is acked."""
        attempt = execution.start_next()
        if attempt is None:
            self._ended(execution)
        else:
            self._deliveries.put(PulledDelivery(executor, execution, attempt, partial(self._settle, executor)))
            self._arrived()

    def _settle(self, executor: HandlerExecutor, execution: Execution, attempt: Attempt, outcome: Outcome) -> None:
        """Report an outcome, and offer the deliveries behind it, or release them."""
        if continues(execution, attempt, outcome, self._report):
            self.submit(executor, execution)
        else:
            self._ended(execution)

    def abandon(self, execution: Execution) -> None:
        """End an execution that has overrun; its receiver gets LeaseLost when settling it."""
        self._ended(execution)

    def close(self) -> None:
        """Wake a receiver that waits for a delivery."""
        self._deliveries.put(None)


class PullEngine:
    """Fills one queue for its receiver with the deliveries of each of these logs, and does all else in a thread for
    each: leases, heartbeats, reads, settles. They start and end together: once one has ended, the pull loop has. Its
    error is raised in the receiver. While a database does not answer, its thread waits for it, and the others go on.
    """

    def __init__(self, consumer: Consumer, logs: Sequence[Log], timeout: float | None):
        self._timeout, self._forked = timeout, forks.generation
        self._deliveries: SimpleQueue[PulledDelivery | None] = SimpleQueue()
        self._error: BaseException | None = None
        # The throttle admits twice as many deliveries as threads: here, those that the receiver may have unsettled.
        threads = max(1, consumer.options.batch_size // 2)
        self._subscribers = [Subscriber([consumer], log=log, threads=threads, pool=self._make_pool) for log in logs]
        self._starting, self._running = set(self._subscribers), set(self._subscribers)
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name="sqlqueue-subscribe", daemon=True)
            for each in self._subscribers
        ]

    def close(self) -> None:
        """End the iteration, from any thread or signal handler; what is unsettled is released, uncharged."""
        for each in self._subscribers:
            each.stop_soon(timeout=0.0)

    def _make_pool(self, report: Report, ended: Callable[[Execution], None]) -> PullPool:
        return PullPool(report, ended, self._tell, self._deliveries)

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Take note that one has started, that a delivery has arrived, or that one has ended. Raises RuntimeError if
        there is no receiver any more."""

    def _run(self, subscriber: Subscriber) -> None:
        try:
            subscriber.run(started=lambda: self._note_start(subscriber))
        except BaseException as error:  # it is raised in the receiver
            self._error = self._error or error
        finally:
            connections.close_all()
            self._running.discard(subscriber)
            self._note_start(subscriber)

    def _note_start(self, subscriber: Subscriber) -> None:
        self._starting.discard(subscriber)
        self._tell()

    def _tell(self) -> None:
        try:
            self._changed()
        except RuntimeError:  # the receiver's event loop is closed
            self.close()

    # -- for the receiver ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def _started(self) -> bool:
        """Whether all have started; or have ended, perhaps before they could start; or one has failed."""
        return not self._starting or self._error is not None

    @property
    def _ended(self) -> bool:
        """Whether one has ended, so that the iteration has. A child that the receiver has forked ends here: the engine
        is its parent's."""
        forks.leave_if_forked(self._forked)
        return len(self._running) < len(self._subscribers)

    def _check(self) -> None:
        """Raise the error that has ended one, if one has."""
        if self._error is not None:
            raise self._error

    def _stop(self) -> None:
        """Let all end, without waiting for what the receiver has not settled; not from a signal handler. A child that
        the receiver has forked ends here."""
        forks.leave_if_forked(self._forked)
        for each in self._subscribers:
            each.stop(timeout=0.0)

    def _join(self) -> None:
        """Let all end, as `_stop`, and block until they have."""
        self._stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
