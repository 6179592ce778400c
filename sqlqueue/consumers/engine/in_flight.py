"""What is in flight in one process: the attempts that were dispatched, the executions that they run in, and the end of
those whose visibility timeout has passed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from sqlqueue.consumers.engine.subscription import Subscription
from sqlqueue.consumers.handlers.event_loop import Blame
from sqlqueue.consumers.handlers.pools import Pool
from sqlqueue.core import outcomes
from sqlqueue.core.bisection import ClosedQueues
from sqlqueue.core.outcomes import POSTPONED, UNSTARTED, Outcome, VisibilityTimeout
from sqlqueue.core.partition.ref import HeldLease
from sqlqueue.core.settle_plan import Attempt, Execution


class ExecutorLoad(NamedTuple):
    """What the handler threads, or the event loop, have to do. deliveries: messages, and batches, each of which counts
    as one; executions: how many."""

    deliveries: int
    executions: int


Finish = Callable[[HeldLease, Sequence[tuple[Attempt, Outcome]], float], object]
NO_LOAD = ExecutorLoad(0, 0)
# Of an attempt whose execution was ended by an error of the engine's own, perhaps after the handler had succeeded.
ENDED_WITHOUT: Final = Outcome(
    POSTPONED, 1.0, "its execution ended without an outcome: see execution_failed in the log"
)


HELD_UP = Outcome(
    outcomes.POSTPONED, error="another handler has blocked the event loop, or its database calls, for too long"
)
OVERRUN_CHECK = 0.1  # seconds between two checks of the running handlers' deadlines


class InFlight:
    """Knows the attempts, and the subscription of each execution. For the control thread; handlers' threads append to
    `reports` and `ended`."""

    def __init__(self) -> None:
        self.reports: deque[tuple[Attempt, Outcome]] = deque()
        self.ended: deque[Execution] = deque()
        self.alone = False  # a message in doubt is in flight: nothing else is dispatched meanwhile
        self.executions: dict[Execution, Subscription] = {}
        self._attempts: set[Attempt] = set()
        self._check_at = 0.0  # when overruns are looked for again
        self._batched = 0  # how many attempts are in a batch behind its first

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, executions: Iterable[Execution]) -> None:
        """Count the attempts of chosen executions, whose claims are about to be written."""
        for execution in executions:
            self._attempts.update(execution.attempts)

    def remove(self, attempts: Sequence[Attempt]) -> None:
        """Remove attempts that have an outcome, or of which none is expected any more."""
        if self.alone and any(attempt.deaths and attempt in self._attempts for attempt in attempts):
            self.alone = False
        self._attempts.difference_update(attempts)

    def take_reports(self) -> dict[HeldLease, list[tuple[Attempt, Outcome]]]:
        """Return what was reported since the last time, by lease and in its order; nothing of it is in flight any
        more."""
        reports = self.reports
        taken: dict[HeldLease, list[tuple[Attempt, Outcome]]] = {}
        while reports:
            report = reports.popleft()
            taken.setdefault(report[0].lease, []).append(report)
        for of_lease in taken.values():
            self.remove([attempt for attempt, _ in of_lease])
        return taken

    def start(self, execution: Execution, subscription: Subscription) -> None:
        """Count an execution that is about to be submitted."""
        self.executions[execution] = subscription
        if execution.batch:
            self._batched += len(execution.attempts) - 1

    def end(self, execution: Execution) -> None:
        """Remove an execution that has ended, or whose thread hangs and was replaced."""
        if self.executions.pop(execution, None) is not None and execution.batch:
            self._batched -= len(execution.attempts) - 1

    def end_all(self, executions: Iterable[Execution]) -> None:
        """Remove executions that have ended, once their reports were taken. An attempt that has no outcome even so is
        tried again, uncharged: otherwise it would be in flight for as long as the process lives."""
        for execution in executions:
            subscription = self.executions.get(execution)
            self.end(execution)
            if subscription is None or self._attempts.isdisjoint(execution.attempts):
                continue
            closed = ClosedQueues(subscription.consumer.options.ordering)
            for attempt in execution.attempts:
                if attempt in self._attempts:
                    self.reports.append((attempt, UNSTARTED if closed.holds(attempt) else ENDED_WITHOUT))
                    closed.close(attempt)

    def running(self, subscription: Subscription) -> int:
        """Return how many executions of a subscription run, or are about to."""
        return sum(each is subscription for each in self.executions.values())

    def loads(self, apart: Collection[Subscription]) -> tuple[ExecutorLoad, ExecutorLoad]:
        """Return the load of the handler threads, and that of the event loop, without those of these groups."""
        on_loop = self._load([one for one, of in self.executions.items() if of.consumer.is_async and of not in apart])
        elsewhere = self._load([one for one, of in self.executions.items() if of in apart]) if apart else NO_LOAD
        in_threads = ExecutorLoad(
            len(self) - self._batched - on_loop.deliveries - elsewhere.deliveries,
            len(self.executions) - on_loop.executions - elsewhere.executions,
        )
        return in_threads, on_loop

    def load_of(self, subscription: Subscription) -> ExecutorLoad:
        """Return the load of one group."""
        return self._load([execution for execution, of in self.executions.items() if of is subscription])

    def _load(self, executions: Sequence[Execution]) -> ExecutorLoad:
        deliveries = sum(
            1 if execution.batch else sum(attempt in self._attempts for attempt in execution.attempts)
            for execution in executions
        )
        return ExecutorLoad(deliveries, len(executions))

    def by_progress(self) -> tuple[set[Subscription], set[Subscription]]:
        """Return the groups of which something runs, and those of which something waits for a thread."""
        running: set[Subscription] = set()
        queued: set[Subscription] = set()
        for execution, subscription in self.executions.items():
            if execution.next:
                running.add(subscription)
            elif not execution.stopped:
                queued.add(subscription)
        return running, queued

    def runs_for(self, now: float) -> dict[Subscription, float]:
        """Return for how many more seconds at most the handlers that run of each group may run; from any thread."""
        found: dict[Subscription, float] = {}
        for execution, subscription in list(self.executions.items()):
            for attempt in execution.attempts:
                if attempt.started and not attempt.finished and attempt.deadline > now:
                    found[subscription] = max(found.get(subscription, 0.0), attempt.deadline - now)
        return found

    # -- releasing what has not started -------------------------------------------------------------------------------

    def release(self, execution: Execution) -> None:
        """Release the attempts of an execution that have not started."""
        for attempt in execution.stop():
            self.reports.append((attempt, UNSTARTED))

    def release_where(self, unwanted: Callable[[Execution, Subscription], bool]) -> None:
        """Release the attempts that have not started of such executions."""
        for execution, subscription in list(self.executions.items()):
            if unwanted(execution, subscription):
                self.release(execution)

    def release_of(self, subscription: Subscription) -> None:
        """Release the attempts of a group's executions that wait for a thread; such an execution is over."""
        for execution, of in list(self.executions.items()):
            if of is subscription:
                self.release(execution)
                if not execution.next:
                    self.end(execution)

    # -- overruns ----------------------------------------------------------------------------------------------------

    def end_overruns(self, pool: Pool, finish: Finish, now: float) -> bool:
        """End the attempts whose visibility timeout has passed: their handlers may go on, but their outcomes are
        ignored, and they are no longer in flight. finish: applies outcomes.

        Returns False if so many handlers hang that the process should be replaced.
        """
        if now < self._check_at:
            return True
        self._check_at = now + OVERRUN_CHECK
        enough_threads = pool.look(now)
        for execution, subscription in list(self.executions.items()):
            late = [attempt for attempt in execution.attempts if self._overruns(attempt, now)]
            if late and (blame := pool.blame(execution, now)) is not Blame.OPEN:
                error = None if blame is Blame.OWN else HELD_UP
                reports = [(each, error or _timed_out(each, subscription)) for each in late]
                self._end_overrun(execution, reports, finish, now)
                pool.abandon(execution)
                if not any(each.started and not each.finished for each in execution.attempts):
                    self.end(execution)
        return enough_threads

    def _overruns(self, attempt: Attempt, now: float) -> bool:
        return bool(attempt.started and not attempt.finished and now >= attempt.deadline and attempt in self._attempts)

    def _end_overrun(
        self, execution: Execution, reports: Sequence[tuple[Attempt, Outcome]], finish: Finish, now: float
    ) -> None:
        self.release(execution)
        for attempt, _ in reports:
            attempt.finished = now
        self.remove([attempt for attempt, _ in reports])
        finish(execution.lease, reports, now)
        # Those that are to be tried again, and those that have run in a transaction that cannot be committed any more:
        # what it would ack with the late one, that one's outcome has refused.
        for attempt in execution.attempts:
            if attempt in self._attempts and (attempt.finished or not attempt.started):
                self.reports.append((attempt, UNSTARTED))


def _timed_out(attempt: Attempt, subscription: Subscription) -> Outcome:
    error = VisibilityTimeout(f"still running after its visibility timeout, at attempt {attempt.number}")
    return subscription.consumer.decide(error, attempt.number)
