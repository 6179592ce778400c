"""A run of a batch handler: what the handler gets in each call, and what is reported of it.

A batch whose handler raises is divided until the messages that fail have failed alone (`core.bisection`), within the
one claim that it has: nothing is written between the calls, and the others are charged nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic as now

from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core.bisection import Bisection
from sqlqueue.core.effects import effect_of
from sqlqueue.core.outcomes import ACKED, EXPIRED, POSTPONED, RETRIED, SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.partition.ordering import ClosedQueues
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.exceptions import Settlement

Started = Callable[[Sequence[Attempt]], bool]
Decide = Callable[[BaseException, Attempt, Sequence[Attempt]], Outcome]


class BatchRun:
    """One execution of a batch handler. `next` gives what the handler is called with, until that is nothing; `ended`
    takes what came of the call. divides: whether a batch that fails is divided at all."""

    def __init__(
        self,
        consumer: Consumer,
        execution: Execution,
        report: Callable[[Attempt, Outcome], None],
        started: Started,
        decide: Decide,
        divides: bool = True,
    ):
        self._consumer, self._execution, self._report = consumer, execution, report
        self._started, self._decide, self._divides = started, decide, divides
        self._waiting = deque(execution.start_all())
        self._bisection = Bisection(execution.apart)
        self._closed = ClosedQueues(consumer.options.ordering)
        self.attempts: list[Attempt] = []  # those of the call

    def next(self) -> list[Delivery]:
        """Start the attempts of the next call, and return their deliveries; none if everything has its outcome, or the
        rest was released."""
        while self._waiting:
            taken = self._take(self._bisection.size)
            if self._execution.stopped or (taken and not self._started(taken)):
                self._waiting.extendleft(reversed(taken))
                self._release()
                return []
            self.attempts, deliveries = self._readable(self._unexpired(taken))
            if deliveries:
                return deliveries
        return []

    def _take(self, most: int) -> list[Attempt]:
        taken: list[Attempt] = []
        while self._waiting and len(taken) < most:
            attempt = self._waiting.popleft()
            if self._closed.holds(attempt):
                self._report(attempt, UNSTARTED)
            else:
                taken.append(attempt)
        return taken

    def _unexpired(self, attempts: list[Attempt]) -> list[Attempt]:
        expired = [attempt for attempt in attempts if attempt.expired]
        for attempt in expired:
            attempt.finished = attempt.started
            self._report(attempt, EXPIRED)
        return [attempt for attempt in attempts if not attempt.expired] if expired else attempts

    def _readable(self, attempts: list[Attempt]) -> tuple[list[Attempt], list[Delivery]]:
        """Return the attempts whose payloads can be read, with their deliveries; report the others, which would fail
        the batch."""
        payloads = self._consumer.payloads
        deliveries = [Delivery(attempt, payloads) for attempt in attempts]
        if payloads is None or not payloads.checks:
            return attempts, deliveries
        fit: list[Delivery] = []
        readable: list[Attempt] = []
        for attempt, delivery in zip(attempts, deliveries):
            if self._closed.holds(attempt):
                self._report(attempt, UNSTARTED)
                continue
            try:
                delivery.payload  # noqa: B018  read once, and kept
            except BaseException as error:
                attempt.finished = now()
                self._settle(attempt, self._decide(error, attempt, [attempt]))
            else:
                fit.append(delivery)
                readable.append(attempt)
        return readable, fit

    def ended(self, outcome: Outcome, error: BaseException | None, replied: Mapping[Attempt, Outcome]) -> None:
        """Report what came of the call, or divide what has failed. replied: of attempts that have an outcome of their
        own."""
        attempts, count, moment = self.attempts, len(self.attempts), now()
        if error is not None and count > 1 and self._is_divided(error):
            for attempt in attempts:
                attempt.started = 0.0
            self._waiting.extendleft(reversed(attempts))
            self._bisection.failed(count)
            return
        for attempt in attempts:
            attempt.finished = moment
            own = replied.get(attempt, outcome)
            self._settle(attempt, own if error is None else self._decide(error, attempt, attempts))
        if error is None and outcome in (UNSTARTED, SUPERSEDED):
            self._release()
        elif error is not None and not isinstance(error, Exception):
            self._release()  # Ctrl-C, or its task was cancelled
        elif error is not None and count == 1:
            self._bisection.failed_alone(by_its_own_word=isinstance(error, Settlement))
            if self._bisection.outage:
                self._postpone_rest(error)
        else:
            self._bisection.succeeded(count)

    def _is_divided(self, error: BaseException) -> bool:
        """Tell whether any of several messages may have caused an error. Retry, Postpone and Reject are said of all of
        them; what asks for an effect is said of one."""
        if effect_of(error) is not None:
            return True
        if not self._divides or not isinstance(error, Exception) or isinstance(error, Settlement):
            return False
        return not any(attempt.lease.lost or attempt.outcome is not None for attempt in self.attempts)

    def _settle(self, attempt: Attempt, outcome: Outcome) -> None:
        if outcome.kind != ACKED:  # a dead letter, too, is not stored before it is settled
            self._closed.close(attempt)
        self._report(attempt, outcome)

    def _postpone_rest(self, error: BaseException) -> None:
        """Let what was not tried wait for the backoff, uncharged: what the batch needs fails. Without a backoff, as
        the error makes dead letters at once, it is released."""
        while self._waiting:
            for attempt in self._take(1):
                attempt.started = attempt.finished = now()
                outcome = self._decide(error, attempt, [attempt])
                if outcome.kind == RETRIED:
                    self._settle(attempt, Outcome(POSTPONED, outcome.delay, outcome.error))
                else:
                    self._report(attempt, UNSTARTED)

    def _release(self) -> None:
        """Release what was not tried, uncharged."""
        while self._waiting:
            self._report(self._waiting.popleft(), UNSTARTED)
