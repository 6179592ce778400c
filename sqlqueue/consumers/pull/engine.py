"""The engine of a pull loop: a subscriber of one consumer for each database, in a thread of its own, and its pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from sqlqueue.core.outcomes import UNSTARTED, Outcome
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
    """Gives the deliveries of executions to the receiver, one at a time and in their order. `arrived` is called, by any
    thread, when there is another one."""

    def __init__(
        self,
        log: Log,
        consumer: Consumer,
        report: Report,
        ended: Callable[[Execution], None],
        arrived: Callable[[], None],
        deliveries: SimpleQueue[PulledDelivery | None],
    ):
        self.log, self.consumer, self._report, self._ended, self._arrived = log, consumer, report, ended, arrived
        self.deliveries = deliveries
        self._executor: HandlerExecutor | None = None

    def submit(self, executor: HandlerExecutor, execution: Execution, reserved: bool = False) -> None:
        """Offer the first delivery of an execution; the next one follows when that is acked."""
        self._executor = executor
        self._offer(execution)

    def _offer(self, execution: Execution) -> None:
        attempt = execution.start_next()
        if attempt is None:
            self._ended(execution)
        else:
            pulled = PulledDelivery(self.log, self.consumer, execution, attempt, self.settle, self.begin)
            self.deliveries.put(pulled)
            self._arrived()

    def begin(self, delivery: PulledDelivery) -> bool:
        """Start a delivery's visibility timeout; return False if the lease is over, or the message has expired: then it
        is not delivered."""
        assert self._executor is not None
        attempt = delivery._attempt
        if self._executor.started([attempt]) and attempt.refused is None:
            return True
        self.settle(delivery._execution, attempt, attempt.refused or UNSTARTED)
        return False

    def settle(self, execution: Execution, attempt: Attempt, outcome: Outcome) -> None:
        """Report an outcome, and offer the deliveries behind it, or release them."""
        if continues(execution, attempt, outcome, self._report):
            self._offer(execution)
        else:
            self._ended(execution)

    def abandon(self, execution: Execution) -> None:
        """End an execution that has overrun; its receiver gets LeaseLost when settling it."""
        self._ended(execution)

    def close(self) -> None:
        """Wake a receiver that waits for a delivery."""
        self.deliveries.put(None)


class PullEngine:
    """Fills one queue for a receiver with the deliveries of each of these logs, and does all else in a thread for each:
    leases, heartbeats, reads, settles. They start and end together: once one has ended, the pull loop has. Its error is
    raised in the receiver, by `check`. While a database does not answer, its thread waits for it, and the others go on.

    changed: is called, by any thread, when one has started, when a delivery has arrived and when one has ended; it
    raises RuntimeError if there is no receiver any more.
    """

    def __init__(self, consumer: Consumer, logs: Sequence[Log], changed: Callable[[], None] = lambda: None):
        self.deliveries: SimpleQueue[PulledDelivery | None] = SimpleQueue()
        self._consumer, self._changed, self._forked = consumer, changed, forks.generation
        self._error: BaseException | None = None
        self._subscribers = [self._subscriber(log) for log in logs]
        self._starting, self._running = set(self._subscribers), set(self._subscribers)
        self._all_started = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name="sqlqueue-subscribe", daemon=True)
            for each in self._subscribers
        ]

    def _subscriber(self, log: Log) -> Subscriber:
        def make_pool(report: Report, ended: Callable[[Execution], None]) -> PullPool:
            return PullPool(log, self._consumer, report, ended, self._tell, self.deliveries)

        # The throttle admits twice as many deliveries as threads: here, those that the receiver may have unsettled.
        threads = max(1, self._consumer.options.batch_size // 2)
        return Subscriber([self._consumer], log=log, threads=threads, pool=make_pool)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

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
        if self.started:
            self._all_started.set()
        self._tell()

    def _tell(self) -> None:
        try:
            self._changed()
        except RuntimeError:  # the receiver's event loop is closed
            self.stop_soon()

    # -- for the receiver ---------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether all have started; or have ended, perhaps before they could start; or one has failed."""
        return not self._starting or self._error is not None

    @property
    def ended(self) -> bool:
        """Whether one has ended, so that the iteration has. A child that the receiver has forked ends here: the engine
        is its parent's."""
        self.leave_if_forked()
        return len(self._running) < len(self._subscribers)

    @property
    def all_ended(self) -> bool:
        """Whether all have ended: their leases are released, and their connections closed."""
        return not self._running

    @property
    def stopping(self) -> bool:
        """Whether they have been asked to end."""
        return any(each.stopping for each in self._subscribers)

    def leave_if_forked(self) -> None:
        """End this process if it is a child that the receiver has forked."""
        forks.leave_if_forked(self._forked)

    def wait_until_started(self) -> None:
        """Block until all have started; raise the error that has kept one from that."""
        self._all_started.wait()
        self.check()

    def check(self) -> None:
        """Raise the error that has ended one, if one has."""
        if self._error is not None:
            raise self._error

    def stop_soon(self) -> None:
        """Ask them, from a signal handler too, to end without waiting for what the receiver has not settled."""
        for each in self._subscribers:
            each.stop_soon(timeout=0.0)

    def join(self) -> None:
        """Let all end, without waiting for what the receiver has not settled, and block until they have. A child that
        the receiver has forked ends here."""
        self.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def stop(self) -> None:
        """Let all end, not from a signal handler. A child that the receiver has forked ends here."""
        self.leave_if_forked()
        for each in self._subscribers:
            each.stop(timeout=0.0)
