"""A run of atomic handlers that share transactions (`commit_every`): which messages a transaction takes, and what is
reported of them.

Each handler gets one delivery. A transaction begins with the first message, takes those that follow, and is committed
with one ack when it has commit_every of them or has lasted for TRANSACTION_LASTS. When a handler raises, everything is
rolled back, that message alone has an outcome, and those before it run again. When it is not known which message it was
(the commit has failed, or a deadlock has ended the transaction), the transaction is divided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic as now
from typing import Final

from django.db import Error

from sqlqueue.consumers.atomic_executor import AtomicExecutor, EngineFailed, Handled, HandlerFailed
from sqlqueue.consumers.batch_run import Decide, Started
from sqlqueue.consumers.connections import care_for_connections
from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core.bisection import Bisection
from sqlqueue.core.outcomes import ACKED, EXPIRED, SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.partition.ordering import ClosedQueues
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.retries import ErrorKind
from sqlqueue.tracing.delivery_context import DeliveryContext

TRANSACTION_LASTS: Final = 0.05  # seconds after which a transaction takes no further message
TRIES: Final = 2  # of a transaction that met a deadlock, before it is divided


class GroupRun:
    """One execution of a grouped atomic handler. ends: tells whether nothing more is to be handled."""

    def __init__(
        self,
        log: Log,
        consumer: Consumer,
        execution: Execution,
        report: Callable[[Attempt, Outcome], None],
        started: Started,
        decide: Decide,
        transaction: AtomicExecutor,
        ends: Callable[[], bool],
    ):
        self._log, self._consumer, self._execution = log, consumer, execution
        self._report, self._started, self._decide = report, started, decide
        self._transaction, self._ends = transaction, ends
        self._again: deque[Attempt] = deque()  # rolled back, or not begun
        self._taken: list[Attempt] = []  # those of this transaction that have begun
        self._most = consumer.options.commit_every
        self._bisection = Bisection(execution.apart)
        self._closed = ClosedQueues(consumer.options.ordering)

    def run(self) -> None:
        """Run all attempts, or release what cannot be run any more."""
        while self._has_more and self._run_transaction():
            pass
        for attempt in (*self._again, *self._execution.stop()):
            self._report(attempt, UNSTARTED)

    @property
    def _has_more(self) -> bool:
        execution = self._execution
        more = self._again or execution.next < len(execution.attempts)
        return bool(more) and not execution.stopped and not self._ends()

    def _run_transaction(self) -> bool:
        """Run handlers in one transaction, and report what came of it; return False if nothing more can be run."""
        self._taken = []
        care_for_connections()
        try:
            outcome = self._transaction.commit(self._execution, self._execution.attempts, self._handle, TRIES)
        except HandlerFailed as failed:
            if len(self._taken) > 1 and _is_transient(failed.error):
                self._divide()
            else:
                self._fail(failed.attempt, failed.error)
            return True
        except Exception as error:
            return self._fail_together(error)
        except BaseException as error:  # Ctrl-C, between two handlers: if it has committed, the next attempts find out
            if self._taken:
                self._decide(error, self._taken[-1], self._taken)
            self._put_back()
            return False
        if outcome is UNSTARTED:
            self._put_back()
            return False
        self._taken[-1].finished = now()
        for attempt in self._taken:
            self._report(attempt, outcome)
        self._bisection.succeeded(len(self._taken))
        self._most = self._consumer.options.commit_every
        return outcome is not SUPERSEDED

    # -- in the transaction -------------------------------------------------------------------------------------------

    def _handle(self) -> Handled | None:
        """Run one handler after another. None: there is nothing left to run, or the lease may be over."""
        self._put_back()  # of the try before
        handled = Handled(self._taken, [], [])
        most, began = min(self._most, self._bisection.size), now()
        while len(self._taken) < most and (attempt := self._next()) is not None:
            if not self._started([attempt]):
                self._again.appendleft(attempt)
                break
            if attempt.expired:
                attempt.finished = attempt.started
                self._report(attempt, EXPIRED)
                continue
            if self._taken:
                self._taken[-1].finished = attempt.started
            self._taken.append(attempt)
            try:
                self._call(attempt, handled)
            except EngineFailed:
                raise
            except BaseException as error:
                raise HandlerFailed(attempt, error) from error
            # The last one's time goes on until the commit: one that never ends must overrun, too.
            if now() - began >= TRANSACTION_LASTS:
                break
        return handled if self._taken else None

    def _next(self) -> Attempt | None:
        while not self._execution.stopped:
            attempt = self._again.popleft() if self._again else self._execution.start_next()
            if attempt is None or not self._closed.holds(attempt):
                return attempt
            self._report(attempt, UNSTARTED)
        return None

    def _call(self, attempt: Attempt, handled: Handled) -> None:
        delivery = Delivery(attempt, self._consumer.payloads)
        handler = self._consumer.handler
        with DeliveryContext(delivery):
            self._transaction.handle(self._execution, [attempt], lambda: handler(delivery), handled)
            # A handler that has swallowed an error fails, and not the next one, whose statements are refused.
            self._log.connection.validate_no_broken_transaction()

    # -- what did not succeed -----------------------------------------------------------------------------------------

    def _put_back(self) -> None:
        """Let what this transaction has taken run again."""
        for attempt in self._taken:
            attempt.started = attempt.finished = 0.0
        self._again.extendleft(reversed(self._taken))
        self._taken.clear()

    def _fail(self, attempt: Attempt, error: BaseException) -> None:
        """Report what came of the one whose handler has raised; those before it run again, as one transaction."""
        self._taken.remove(attempt)
        self._most = len(self._taken) or self._consumer.options.commit_every
        self._put_back()
        self._settle(attempt, self._decide(error, attempt, [attempt]))

    def _divide(self) -> None:
        self._bisection.failed(len(self._taken))
        self._put_back()

    def _fail_together(self, error: Exception) -> bool:
        """Divide a transaction that has failed as a whole, or fail the only one that was in it."""
        if len(self._taken) > 1:
            if self._execution.lease.lost:
                return self._supersede()
            self._divide()
            return True
        if not self._taken:
            return False
        (attempt,) = self._taken
        self._settle(attempt, self._decide(error, attempt, [attempt]))
        self._bisection.failed_alone()
        return True

    def _supersede(self) -> bool:
        for attempt in self._taken:
            self._report(attempt, SUPERSEDED)
        return False

    def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.finished = now()
        if outcome.kind != ACKED:  # a dead letter, too, is not stored before it is settled
            self._closed.close(attempt)
        self._report(attempt, outcome)


def _is_transient(error: BaseException) -> bool:
    """Tell whether an error is the transaction's rather than the handler's."""
    return isinstance(error, Error) and retries.classify(error) in (ErrorKind.GONE, ErrorKind.CONTENTION)
