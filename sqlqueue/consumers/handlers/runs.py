"""Runs of executions: what a handler is called with, call by call, and what is reported of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic as now
from typing import TYPE_CHECKING, Any, Final

from django.db import Error

from sqlqueue.consumers.handlers.atomic import EngineFailed, Handled, HandlerFailed
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.core.bisection import Bisection, ClosedQueues
from sqlqueue.core.effects import effect_of
from sqlqueue.core.outcomes import ACKED, EXPIRED, POSTPONED, RETRIED, SUCCESS, SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.exceptions import InvalidResult, LeaseLost, Settlement
from sqlqueue.log.results import asking, outcome_of
from sqlqueue.tracing.delivery_context import DeliveryContext

if TYPE_CHECKING:
    from sqlqueue.consumers.handlers.executor import HandlerExecutor

Report = Callable[[Attempt, Outcome], None]

TRANSACTION_LASTS: Final = 0.05  # seconds after which a transaction takes no further message


def continues(execution: Execution, attempt: Attempt, outcome: Outcome, report: Report) -> bool:
    """Report the outcome of an attempt; return whether its execution goes on. An attempt that failed ends it: the
    attempts behind it have to wait."""
    attempt.finished = now()
    if outcome.kind == ACKED or outcome is EXPIRED:
        report(attempt, outcome)
        return True
    for later in execution.stop():
        report(later, UNSTARTED)
    report(attempt, outcome)
    return False


class Run:
    """One execution of a handler. `next` returns what the handler is called with, None at the end; `ended` takes what
    came of the call, and reports it. attempts: those of the call."""

    def __init__(self, executor: HandlerExecutor, execution: Execution, report: Report):
        self.executor, self.execution, self.report = executor, execution, report
        self.attempts: list[Attempt] = []

    def next(self) -> Any:
        """Start the attempts of the next call, and return what the handler gets."""
        raise NotImplementedError

    def ended(self, returned: Any, error: BaseException | None) -> None:
        """Decide about the attempts of the call by what the handler has returned, or raised, and report that."""
        raise NotImplementedError

    def asks(self, error: BaseException | None) -> bool:
        """Tell whether `ended` may have to ask the server what it can keep."""
        if error is not None:
            return effect_of(error) is not None
        return self.executor.keeps or bool(asking(self.attempts))


class SingleRun(Run):
    """The handler gets one delivery, and the next one once that has succeeded."""

    def next(self) -> Delivery[Any] | None:
        """Start the next attempt; none if it is left to others: the lease is over."""
        executor = self.executor
        while (attempt := self.execution.start_next()) is not None:
            self.attempts = [attempt]
            if not executor.started(self.attempts):
                continues(self.execution, attempt, UNSTARTED, self.report)
                break
            message = attempt.message
            refused = None if message.expires is None and message.headers is None else attempt.refused
            if refused is None:
                return Delivery(executor.log, attempt, executor.consumer.payloads)
            self.report(attempt, refused)
        return None

    def ended(self, returned: Any, error: BaseException | None) -> None:
        """Report the attempt, with what its handler has returned if that is kept."""
        executor, attempt = self.executor, self.attempts[0]
        outcome = SUCCESS
        if error is None and (executor.keeps or (attempt.message.headers and asking(self.attempts))):
            try:
                outcome = executor.ask(self.attempts, outcome_of, executor.log, attempt, returned, executor.keeps)
            except BaseException as refused:
                error = refused
        if error is not None:
            outcome = executor.decide(error, attempt, self.attempts)
        if outcome is SUCCESS:
            attempt.finished = now()
            self.report(attempt, outcome)
        else:
            continues(self.execution, attempt, outcome, self.report)


class DividedRun(Run):
    """Messages that are handled together, and divided where that fails, until those that fail have failed alone
    (`core.bisection`), within the one claim that they have: nothing is written between the calls, and the others are
    charged nothing. A message behind one of its ordering queue that has failed is released."""

    def __init__(self, executor: HandlerExecutor, execution: Execution, report: Report):
        super().__init__(executor, execution, report)
        self._waiting: deque[Attempt] = deque()
        self._bisection = Bisection(execution.apart)
        self._closed = ClosedQueues(executor.consumer.options.ordering)

    def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.kind != ACKED:  # a dead letter, too, is not stored before it is settled
            self._closed.close(attempt)
        self.report(attempt, outcome)

    def _put_back(self, attempts: Sequence[Attempt]) -> None:
        """Let these attempts, which have come to nothing, run again."""
        for attempt in attempts:
            attempt.started = attempt.finished = 0.0
        self._waiting.extendleft(reversed(attempts))

    def _release(self) -> None:
        """Release what was not tried, uncharged."""
        for attempt in (*self._waiting, *self.execution.stop()):
            self.report(attempt, UNSTARTED)
        self._waiting.clear()


class ChunkRun(DividedRun):
    """The handler gets a list of deliveries."""

    def __init__(self, executor: HandlerExecutor, execution: Execution, report: Report):
        super().__init__(executor, execution, report)
        self._waiting.extend(execution.start_all())

    def next(self) -> list[Delivery[Any]] | None:
        """Start the attempts of the next call; none if everything has its outcome, or the rest was released."""
        while self._waiting:
            taken = self._take(self._bisection.size)
            if self.execution.stopped or (taken and not self.executor.started(taken)):
                self._waiting.extendleft(reversed(taken))
                self._release()
                return None
            if deliveries := self._readable(self._accepted(taken)):
                return deliveries
        return None

    def _take(self, most: int) -> list[Attempt]:
        taken: list[Attempt] = []
        while self._waiting and len(taken) < most:
            attempt = self._waiting.popleft()
            if self._closed.holds(attempt):
                self.report(attempt, UNSTARTED)
            else:
                taken.append(attempt)
        return taken

    def _accepted(self, attempts: list[Attempt]) -> list[Attempt]:
        refused = {attempt: outcome for attempt in attempts if (outcome := attempt.refused) is not None}
        for attempt, outcome in refused.items():
            attempt.finished = attempt.started
            self.report(attempt, outcome)
        return [attempt for attempt in attempts if attempt not in refused] if refused else attempts

    def _readable(self, attempts: list[Attempt]) -> list[Delivery[Any]]:
        """Return the deliveries of those whose payloads can be read; report the others, which would fail the chunk."""
        payloads = self.executor.consumer.payloads
        self.attempts, deliveries = attempts, [Delivery(self.executor.log, attempt, payloads) for attempt in attempts]
        if payloads is None or not payloads.checks:
            return deliveries
        fit: list[Delivery[Any]] = []
        for attempt, delivery in zip(attempts, deliveries):
            if self._closed.holds(attempt):
                self.report(attempt, UNSTARTED)
                continue
            try:
                delivery.payload  # noqa: B018  read once, and kept
            except BaseException as error:
                attempt.finished = now()
                self._settle(attempt, self.executor.decide(error, attempt, [attempt]))
            else:
                fit.append(delivery)
        self.attempts = [delivery._attempt for delivery in fit]
        return fit

    def ended(self, returned: Any, error: BaseException | None) -> None:
        """Report what came of the call, or divide what has failed. returned: of an atomic handler, the outcome of its
        transaction."""
        attempts, count, moment = self.attempts, len(self.attempts), now()
        if error is not None and count > 1 and self._is_divided(error):
            self._put_back(attempts)
            self._bisection.failed(count)
            return
        outcome = returned if self.executor.transaction is not None else SUCCESS
        replied = self._replied() if error is None and outcome is SUCCESS else {}
        for attempt in attempts:
            attempt.finished = moment
            own = replied.get(attempt, outcome)
            self._settle(attempt, own if error is None else self.executor.decide(error, attempt, attempts))
        if error is None:
            if outcome in (UNSTARTED, SUPERSEDED):
                self._release()
            else:
                self._bisection.succeeded(count)
        elif not isinstance(error, Exception):
            self._release()  # Ctrl-C, or its task was cancelled
        elif count == 1:
            self._bisection.failed_alone(by_its_own_word=isinstance(error, Settlement))
            if self._bisection.outage:
                self._postpone_rest(error)
        else:
            self._bisection.succeeded(count)

    def _replied(self) -> dict[Attempt, Outcome]:
        """Return the outcomes of messages whose publishers wait for a reply. One whose reply cannot be stored is a dead
        letter, without its neighbours."""
        executor = self.executor
        found: dict[Attempt, Outcome] = {}
        for attempt in asking(self.attempts):
            try:
                found[attempt] = executor.ask(self.attempts, outcome_of, executor.log, attempt, None, executor.keeps)
            except (InvalidResult, LeaseLost) as error:
                found[attempt] = executor.decide(error, attempt, [attempt])
        return found

    def _is_divided(self, error: BaseException) -> bool:
        """Tell whether any of several messages may have caused an error. Retry, Postpone and Reject are said of all of
        them; what asks for an effect is said of one."""
        if effect_of(error) is not None:
            return True
        if not self.executor.divides or not isinstance(error, Exception) or isinstance(error, Settlement):
            return False
        return not any(attempt.lease.lost or attempt.outcome is not None for attempt in self.attempts)

    def _postpone_rest(self, error: BaseException) -> None:
        """Let what was not tried wait for the backoff, uncharged: what the chunk needs fails. Without a backoff, as the
        error makes dead letters at once, it is released."""
        while self._waiting:
            for attempt in self._take(1):
                attempt.started = attempt.finished = now()
                outcome = self.executor.decide(error, attempt, [attempt])
                if outcome.kind == RETRIED:
                    self._settle(attempt, Outcome(POSTPONED, outcome.delay, outcome.error))
                else:
                    self.report(attempt, UNSTARTED)


class TransactionRun(DividedRun):
    """Atomic handlers of one delivery each that share transactions, up to `commit_every` of them.

    A transaction begins with the first message, takes those that follow, and is committed with one ack when it has
    commit_every of them or has lasted for TRANSACTION_LASTS. When a handler raises, everything is rolled back, that
    message alone has an outcome, and those before it run again. When it is not known which message it was (the commit
    has failed, or a deadlock has ended the transaction), the transaction is divided.
    """

    def __init__(self, executor: HandlerExecutor, execution: Execution, report: Report):
        super().__init__(executor, execution, report)
        assert executor.transaction is not None
        self._transaction = executor.transaction
        self._taken: list[Attempt] = []  # those of this transaction that have begun
        self._most = executor.consumer.options.commit_every

    def run(self) -> None:
        """Run all attempts, or release what cannot be run any more."""
        while not self.executor.ends and (attempt := self._next()) is not None:
            self._waiting.appendleft(attempt)
            if not self._run_transaction():
                break
        self._release()

    def _run_transaction(self) -> bool:
        """Run handlers in one transaction, and report what came of it; return False if nothing more can be run."""
        self._taken = []
        try:
            outcome = self._transaction.commit(self.execution, self.execution.attempts, self._handle)
        except HandlerFailed as failed:
            if len(self._taken) > 1 and _is_transient(failed.error):
                self._divide()
            else:
                self._fail(failed.attempt, failed.error)
            return True
        except Exception as error:
            return self._fail_all(error)
        except BaseException as error:  # Ctrl-C, between two handlers: if it has committed, the next attempts find out
            if self._taken:
                self.executor.decide(error, self._taken[-1], self._taken)
            self._put_back(self._taken)
            return False
        if outcome is UNSTARTED:
            self._put_back(self._taken)
            return False
        self._taken[-1].finished = now()
        for attempt in self._taken:
            self.report(attempt, outcome)
        self._bisection.succeeded(len(self._taken))
        self._most = self.executor.consumer.options.commit_every
        return outcome is not SUPERSEDED

    # -- in the transaction -------------------------------------------------------------------------------------------

    def _handle(self) -> Handled | None:
        """Run one handler after another. None: there is nothing left to run, or the lease may be over."""
        self._put_back(self._taken)  # of the try before
        self._taken = []
        handled = Handled(self._taken, [], [])
        most, began = min(self._most, self._bisection.size), now()
        while len(self._taken) < most and (attempt := self._next()) is not None:
            if not self.executor.started([attempt]):
                self._waiting.appendleft(attempt)
                break
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
        while not self.execution.stopped:
            attempt = self._waiting.popleft() if self._waiting else self.execution.start_next()
            if attempt is None:
                return None
            moment = now()
            if self._closed.holds(attempt):
                self.report(attempt, UNSTARTED)
            elif attempt.message.expires is not None and moment >= attempt.message.expires:
                attempt.started = attempt.finished = moment
                self.report(attempt, EXPIRED)
            elif attempt.message.headers is not None and (refused := attempt.refused) is not None:
                attempt.started = attempt.finished = moment
                self.report(attempt, refused)
            else:
                return attempt
        return None

    def _call(self, attempt: Attempt, handled: Handled) -> None:
        consumer = self.executor.consumer
        delivery = Delivery(self.executor.log, attempt, consumer.payloads)
        with DeliveryContext(delivery):
            self._transaction.handle([attempt], delivery, handled)
            # A handler that has swallowed an error fails, and not the next one, whose statements are refused.
            self.executor.log.connection.validate_no_broken_transaction()

    # -- what did not succeed -----------------------------------------------------------------------------------------

    def _fail(self, attempt: Attempt, error: BaseException) -> None:
        """Report what came of the one whose handler has raised; those before it run again, as one transaction."""
        self._taken.remove(attempt)
        self._most = len(self._taken) or self.executor.consumer.options.commit_every
        self._put_back(self._taken)
        self._decide(attempt, error)

    def _divide(self) -> None:
        self._bisection.failed(len(self._taken))
        self._put_back(self._taken)

    def _fail_all(self, error: Exception) -> bool:
        """Divide a transaction that has failed as a whole, or fail the only one that was in it."""
        if not self._taken:
            return False
        if len(self._taken) == 1:
            self._decide(self._taken[0], error)
            self._bisection.failed_alone()
            return True
        if not self.execution.lease.lost:
            self._divide()
            return True
        for attempt in self._taken:
            self.report(attempt, SUPERSEDED)
        return False

    def _decide(self, attempt: Attempt, error: BaseException) -> None:
        outcome = self.executor.decide(error, attempt, [attempt])
        attempt.finished = now()
        self._settle(attempt, outcome)


def _is_transient(error: BaseException) -> bool:
    """Tell whether an error is the transaction's rather than the handler's."""
    return isinstance(error, Error) and retries.classify(error) in (ErrorKind.GONE, ErrorKind.CONTENTION)
