"""The deliveries of subscribe(), which their receiver settles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.db import connections

from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.core import outcomes
from sqlqueue.core.outcomes import SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError, LeaseLost, Postpone, Reject, Retry, Settlement
from sqlqueue.log.atomic import settle_execution
from sqlqueue.log.results import asking, outcome_of, write_own
from sqlqueue.twins import async_twin, refuse_in_async

DROPPED = (
    "no caller waits for the result, and it would be dropped: subscribe(…, keep_results=timedelta(days=1)) keeps it"
)

Report = Callable[[Execution, Attempt, Outcome], None]


class PulledDelivery(Delivery):
    """A delivery that its receiver settles: by one of ack, retry, postpone, reject and fail. A second call
    of the same method does nothing; another one raises ConfigurationError. Each has a twin for async code (aack,
    aretry, apostpone, areject, afail), which runs in the thread of the receiver's other database calls."""

    def __init__(self, executor: HandlerExecutor, execution: Execution, attempt: Attempt, report: Report):
        super().__init__(executor.log, attempt, executor.consumer.payloads)
        self._executor, self._consumer = executor, executor.consumer
        self._execution, self._report = execution, report
        self._settled = ""  # the name of the method
        self._commits: _CommitWatch | None = None  # watches the transaction that it was acked in

    def ready(self) -> bool:
        """Start its visibility timeout, and tell whether the receiver can have it: if not, because the lease is over,
        the message has expired or its payload does not fit its type, it is settled here."""
        attempt = self._attempt
        if not self._executor.started([attempt]) or attempt.refused is not None:
            self._report(self._execution, attempt, attempt.refused or UNSTARTED)
            return False
        try:
            if self._payloads is not None and self._payloads.checks:
                self.payload  # noqa: B018  read once, and kept
        except Settlement as error:  # an upcast may raise any of them
            with suppress(LeaseLost):  # its new owner finds the same
                how = "reject" if isinstance(error, Reject) else "retry"
                self._settle(how, self._consumer.decide(error, self.attempt))
            return False
        return True

    @property
    def settled(self) -> str:
        """The name of the method that settled it; "" if none did, or in a transaction that was rolled back."""
        if self._commits is not None and self._commits.rolled_back:
            self._settled, self._commits = "", None
        return self._settled

    def ack(self, result: Any = None) -> None:
        """Settle it as done: it is never delivered to this group again. In a transaction of the queue's database the
        ack is part of that transaction. result: JSON that is kept for get_status, with keep_results, and the reply to a
        caller that waits for one.

        Raises ConfigurationError in a transaction of another database, whose rollback could not undo the ack, and for a
        result without keep_results and a caller; InvalidResult for one that cannot be stored: then it is not acked.
        """
        _refuse_in_async("ack")
        log, outcome = self._log, self._success(result)
        held = [one.alias for one in connections.all(initialized_only=True) if one.in_atomic_block]
        if log.alias in held:
            self._ack_in_transaction(log, outcome)
        elif held:
            raise ConfigurationError(
                f"{self!r} is acked in a transaction of {held[0]!r}, and would stay so if that is rolled back: ack it "
                "once that has committed"
            )
        else:
            self._settle("ack", outcome)

    def _success(self, result: Any) -> Outcome:
        keeps = self._consumer.options.keep_results is not None
        if result is not None and not keeps and not asking([self._attempt]):
            raise ConfigurationError(DROPPED)
        return outcome_of(self._log, self._attempt, result, keeps)

    def _ack_in_transaction(self, log: Log, outcome: Outcome) -> None:
        if self._is_settled("ack"):
            return
        moved_to = settle_execution(log, self._execution, [self._attempt])
        kept = self._consumer.options.keep_results
        write_own(log, self._execution.lease.ref, [(self._attempt, outcome)], kept)
        self._settled = "ack"
        self._commits = _CommitWatch(
            log, lambda: self._report(self._execution, self._attempt, outcomes.committed_at(moved_to))
        )

    @property
    def uncommitted(self) -> bool:
        """Whether it was acked in a transaction that is still open."""
        return self._commits is not None and self._commits.open

    def retry(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        """Deliver again after `delay` seconds, or the backoff; the attempt is charged. The last attempt makes it a dead
        letter."""
        self._decide("retry", Retry(reason, delay=delay))

    def postpone(self, delay: float | timedelta, reason: str = "") -> None:
        """Deliver again after `delay` seconds; no attempt is charged."""
        self._decide("postpone", Postpone(reason, delay=delay))

    def reject(self, reason: str) -> None:
        """Make it a dead letter at once."""
        self._decide("reject", Reject(reason))

    def fail(self, error: BaseException) -> None:
        """Settle it as if a handler had raised this error: see max_attempts, retry_for, reject_for and backoff.

        Raises ConfigurationError for anything but an exception.
        """
        if not isinstance(error, BaseException):
            raise ConfigurationError(f"fail() needs the exception, not {error!r}: except ValueError as error: …")
        self._decide("fail", error)

    aack, aretry, apostpone = async_twin(ack), async_twin(retry), async_twin(postpone)
    areject, afail = async_twin(reject), async_twin(fail)

    def _decide(self, how: str, error: BaseException) -> None:
        _refuse_in_async(how)
        if not self._is_settled(how):
            self._settle(how, self._consumer.decide(error, self.attempt))

    def _settle(self, how: str, outcome: Outcome) -> None:
        if not self._is_settled(how):
            self._settled = how
            self._report(self._execution, self._attempt, outcome)

    def _is_settled(self, how: str) -> bool:
        """Return whether this method has settled it already. Raises ConfigurationError if another one has, and
        LeaseLost if the delivery is not the receiver's any more."""
        if self.settled == how:
            return True
        if self.settled:
            raise ConfigurationError(f"{self!r} has been settled already, by {self.settled}()")
        try:
            self.check_lease()
        except LeaseLost:
            self._report(self._execution, self._attempt, SUPERSEDED)  # the receiver has it no more
            raise
        return False


def _refuse_in_async(how: str) -> None:
    refuse_in_async(f"delivery.{how}", f"await delivery.a{how}()")


class _CommitWatch:
    """Watches whether the transaction, or the savepoint, that is open now on this thread's connection commits."""

    def __init__(self, log: Log, then: Callable[[], None]):
        self._connection, self._then, self._committed = log.connection, then, False
        log.on_commit(self)

    def __call__(self) -> None:
        self._committed = True
        self._then()

    @property
    def open(self) -> bool:
        """Whether it may still be rolled back. Django drops the hooks of what was."""
        return any(hook[1] is self for hook in self._connection.run_on_commit)

    @property
    def rolled_back(self) -> bool:
        """Whether it has ended without a commit."""
        return not self._committed and not self.open
