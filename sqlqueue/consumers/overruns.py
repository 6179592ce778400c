"""Overruns: attempts whose visibility timeout has passed are ended, whether their handlers return or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlqueue.consumers.event_loop import Blame
from sqlqueue.consumers.in_flight import InFlight
from sqlqueue.consumers.pools import Pool
from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core import outcomes
from sqlqueue.core.lease import HeldLease
from sqlqueue.core.outcomes import UNSTARTED, Outcome, VisibilityTimeout
from sqlqueue.core.settle_plan import Attempt, Execution

HELD_UP = Outcome(
    outcomes.POSTPONED, error="another handler has blocked the event loop, or its database calls, for too long"
)
OVERRUN_CHECK = 0.1  # seconds between two checks of the running handlers' deadlines


class Overruns:
    """Ends overruns, and calls `finish` to apply their outcomes. For the control thread."""

    def __init__(
        self,
        in_flight: InFlight,
        pool: Pool,
        finish: Callable[[HeldLease, Sequence[tuple[Attempt, Outcome]], float], object],
    ):
        self.in_flight, self.pool, self._finish = in_flight, pool, finish
        self._check_at = 0.0

    def end(self, now: float) -> bool:
        """End the attempts whose visibility timeout has passed: their handlers may go on, but their outcomes are
        ignored, and they are no longer in flight.

        Returns False if so many handlers hang that the process should be replaced.
        """
        if now < self._check_at:
            return True
        self._check_at = now + OVERRUN_CHECK
        self.pool.look(now)
        for execution, subscription in list(self.in_flight.executions.items()):
            late = [attempt for attempt in execution.attempts if self._overruns(attempt, now)]
            if late and (blame := self.pool.blame(execution, now)) is not Blame.OPEN:
                self._end(execution, late, subscription, blame, now)
        return not self.pool.exhausted

    def _overruns(self, attempt: Attempt, now: float) -> bool:
        return bool(attempt.started and not attempt.finished and now >= attempt.deadline and attempt in self.in_flight)

    def _end(
        self, execution: Execution, late: list[Attempt], subscription: Subscription, blame: Blame, now: float
    ) -> None:
        self.in_flight.release(execution)
        reports: list[tuple[Attempt, Outcome]] = []
        for attempt in late:
            attempt.finished = now
            reports.append((attempt, HELD_UP if blame is Blame.ANOTHERS else _timed_out(attempt, subscription)))
        self.in_flight.remove(late)
        self._finish(execution.lease, reports, now)
        # Those that are to be tried again, and those that have run in a transaction that cannot be committed any more:
        # what it would ack with the late one, that one's outcome has refused.
        for attempt in execution.attempts:
            if attempt in self.in_flight and (attempt.finished or not attempt.started):
                self.in_flight.reports.append((attempt, UNSTARTED))
        self.pool.abandon(execution)
        if not any(attempt.started and not attempt.finished for attempt in execution.attempts):
            self.in_flight.end(execution)


def _timed_out(attempt: Attempt, subscription: Subscription) -> Outcome:
    error = VisibilityTimeout(f"still running after its visibility timeout, at attempt {attempt.number}")
    return subscription.consumer.decide(error, attempt.number)
