"""The engine of a pull loop on one database: a subscriber of one consumer, in a thread of its own, and its pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from django.db import connections

from sqlqueue.conf import settings
from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.executor import HandlerExecutor, Report, go_on
from sqlqueue.consumers.pools import Pool
from sqlqueue.consumers.pulled_delivery import PulledDelivery
from sqlqueue.consumers.registry import Consumer, build
from sqlqueue.consumers.subscriber import Subscriber
from sqlqueue.core.flow import NO_FLOW
from sqlqueue.core.outcomes import Outcome
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database.log import Log, current_log
from sqlqueue.exceptions import ConfigurationError, LeaseLost
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
    require_declared(current_log(), topic)
    # One that names no limits leaves the group's as they are.
    return Consumer(topic=topic, handler=_no_handler, declares=made["flow"] != NO_FLOW, **made)


def _no_handler(delivery: Delivery) -> None:
    raise LeaseLost("a pulled delivery has no handler")


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
        outcome = self._executor.not_begun(delivery._attempt)
        if outcome is not None:
            self.settle(delivery._execution, delivery._attempt, outcome)
        return outcome is None

    def settle(self, execution: Execution, attempt: Attempt, outcome: Outcome) -> None:
        """Report an outcome, and offer the deliveries behind it, or release them."""
        if go_on(execution, attempt, outcome, self._report):
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
    """Fills a queue with deliveries for a receiver, and does all else in its thread: leases, heartbeats, reads,
    settles. An error that ends it is raised in the receiver, by `check`.

    changed: is called, by any thread, when it has started, when a delivery has arrived and when it has ended; it raises
    RuntimeError if there is no receiver any more.
    """

    def __init__(
        self,
        consumer: Consumer,
        log: Log,
        deliveries: SimpleQueue[PulledDelivery | None],
        changed: Callable[[], None],
    ):
        self._log, self._changed = log, changed
        self._error: BaseException | None = None
        self._started, self._ended = threading.Event(), threading.Event()

        def make_pool(report: Report, ended: Callable[[Execution], None]) -> PullPool:
            return PullPool(log, consumer, report, ended, self._tell, deliveries)

        # The throttle admits twice as many deliveries as threads: here, those that the receiver may have unsettled.
        threads = max(1, consumer.options.batch_size // 2)
        with settings.at(log.alias):
            self._subscriber = Subscriber([consumer], threads=threads, pool=make_pool)
        self._thread = threading.Thread(target=self._run, name="sqlqueue-subscribe", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        try:
            with settings.at(self._log.alias):
                self._subscriber.run(started=self._note_start)
        except BaseException as error:  # it is raised in the receiver
            self._error = error
        finally:
            connections.close_all()
            self._ended.set()
            self._note_start()

    def _note_start(self) -> None:
        self._started.set()
        self._tell()

    def _tell(self) -> None:
        try:
            self._changed()
        except RuntimeError:  # the receiver's event loop is closed
            self.stop_soon()

    # -- for the receiver ---------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether it has started; or has ended, perhaps before it could start."""
        return self._started.is_set()

    @property
    def ended(self) -> bool:
        """Whether it has ended: its leases are released, and its connections closed."""
        return self._ended.is_set()

    @property
    def stopping(self) -> bool:
        """Whether it has been asked to end."""
        return self._subscriber.stopping

    def wait_until_started(self) -> None:
        """Block until it has started; raise the error that has kept it from that."""
        self._started.wait()
        self.check()

    def check(self) -> None:
        """Raise the error that has ended it, if one has."""
        if self._error is not None:
            raise self._error

    def stop_soon(self) -> None:
        """Ask it, from a signal handler too, to end without waiting for what the receiver has not settled."""
        self._subscriber.stop_soon(timeout=0.0)

    def stop(self) -> None:
        """The same, at once and not from a signal handler."""
        self._subscriber.stop(timeout=0.0)

    def join(self) -> None:
        """Block until it has ended."""
        if self._thread.ident is not None:
            self._thread.join()
