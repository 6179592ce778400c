"""The execution of atomic handlers: the handler and its ack in one transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error, transaction

from sqlqueue.consumers.connections import Undisturbed, restore, states
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import (
    SUPERSEDED,
    UNSTARTED,
    HandedOver,
    Outcome,
    TransactionNotBegun,
    committed_at,
)
from sqlqueue.core.settle_plan import Attempt, Execution, WorkItemWrite
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.server_identity import ServerChanged, SessionReplaced
from sqlqueue.database.statements import dialect
from sqlqueue.database.transaction_guard import Guard
from sqlqueue.exceptions import HandOver, LeaseLost, Settlement
from sqlqueue.log import work_items
from sqlqueue.log.atomic import Superseded, settle_execution, was_committed
from sqlqueue.log.results import asking, outcome_of, write_own
from sqlqueue.log.work_items import hand_over

logger = logging.getLogger("sqlqueue")

NOT_BEGUN_PAUSE = 0.1  # seconds
TRIES = 3  # of a handler whose transaction met a deadlock and was rolled back


class AtomicExecutor:
    """Runs the handlers of one atomic consumer."""

    def __init__(self, alias: str, name: str, keep_results: float | None = None):
        self.alias, self.name, self._keep_results = alias, name, keep_results

    def run(
        self,
        execution: Execution,
        attempts: list[Attempt],
        handle: Callable[[], Any],
        started: Callable[[list[Attempt]], bool],
    ) -> Outcome:
        """Run a handler and its ack in one transaction. Every error rolls both back."""
        before = states()
        try:
            outcome = self._run(execution, attempts, handle, started)
        finally:
            restore(before)
        if outcome.moved_to is not None:
            execution.moved(attempts, outcome.moved_to)
        return outcome

    def _run(
        self,
        execution: Execution,
        attempts: list[Attempt],
        handle: Callable[[], Any],
        started: Callable[[list[Attempt]], bool],
    ) -> Outcome:
        for number in range(1, TRIES + 1):
            committed: list[bool] = []
            begun = handled = settled = False
            try:
                with dialect(self.alias).writers, transaction.atomic(using=self.alias):
                    guard = Guard(self.alias)
                    begun = True
                    # Opening a transaction may take long: SQLite has one writer, and a server may be slow to answer.
                    if not started(attempts):
                        return UNSTARTED
                    transaction.on_commit(lambda: committed.append(True), using=self.alias)  # noqa: B023  run in this iteration
                    handed_over: HandedOver | None = None
                    with Undisturbed():
                        try:
                            returned = handle()
                        except HandOver as error:  # what the handler did, its ack and the work item are one transaction
                            if len(attempts) > 1:
                                raise
                            returned, handed_over = None, hand_over(error).handed_over
                    # What is handed over has no result yet: a caller would take None for its reply.
                    results = [] if handed_over is not None else self._results(execution, attempts, returned)
                    handled = True
                    guard.release()
                    moved_to = settle_execution(self.alias, execution, attempts, guard)
                    if handed_over is not None:
                        (attempt,) = attempts
                        item = WorkItemWrite(attempt.offset, attempt.number, handed_over)
                        work_items.write(self.alias, execution.lease, [item])
                    write_own(self.alias, execution.lease.ref, results, self._keep_results)
                    settled = True
            except Exception as error:
                if committed:  # by a hook, which may raise a Settlement, too
                    logger.error(
                        logfmt("commit_hook_failed", **self._log_fields(attempts), error=error), exc_info=error
                    )
                    return committed_at(moved_to)
                if isinstance(error, Settlement):
                    raise
                if handled and isinstance(error, LeaseLost):
                    if isinstance(error, (ServerChanged, SessionReplaced)):
                        self._leave(attempts, error)
                    if isinstance(error, Superseded) and len(attempts) > 1:
                        raise  # which one it is, the caller finds out
                    return SUPERSEDED
                kind = retries.classify(error) if isinstance(error, Error) else ErrorKind.OTHER
                if kind is ErrorKind.GONE and settled:
                    return self._after_lost_reply(execution, attempts, error)
                if kind is ErrorKind.CONTENTION and number < TRIES:
                    logger.info(logfmt("handler_rerun", **self._log_fields(attempts), error=error))
                    time.sleep(0.01 * number)
                    continue
                if not begun:
                    if kind is ErrorKind.OTHER:
                        raise TransactionNotBegun(f"the handler's transaction could not be begun: {error}") from error
                    return self._not_begun(attempts, error)
                raise
            return committed_at(moved_to)
        raise AssertionError("unreachable")

    def _results(self, execution: Execution, attempts: list[Attempt], returned: Any) -> list[tuple[Attempt, Outcome]]:
        """Return the attempts whose results are kept, or whose publishers wait for a reply, with their outcomes."""
        keeps = self._keep_results is not None
        wanted = attempts if keeps else asking(attempts)
        returned = None if execution.batch else returned
        return [(attempt, outcome_of(self.alias, attempt, returned, keeps)) for attempt in wanted]

    def _not_begun(self, attempts: list[Attempt], error: Exception) -> Outcome:
        """Return the outcome after a transaction that could not be opened, because this thread's connection had been
        lost: the handler has not run, so no attempt is charged."""
        logger.info(logfmt("transaction_not_begun", **self._log_fields(attempts), error=error))
        retries.drop_connection(self.alias)
        time.sleep(NOT_BEGUN_PAUSE)
        return UNSTARTED

    def _leave(self, attempts: list[Attempt], error: Exception) -> None:
        """Let the next handler have another connection: this one may lead to a server of the past for as long as it
        lives."""
        logger.warning(logfmt("session_replaced", **self._log_fields(attempts), meaning=error))
        retries.drop_connection(self.alias)

    def _log_fields(self, attempts: Sequence[Attempt]) -> dict[str, Any]:
        return {"handler": self.name, **attempts[0].lease.labels, "offset": attempts[0].offset, "count": len(attempts)}

    def _after_lost_reply(self, execution: Execution, attempts: list[Attempt], error: Exception) -> Outcome:
        """Return the outcome of a commit in doubt: ask the database until it tells whether the transaction was
        committed, or the lease is lost."""
        logger.warning(logfmt("commit_outcome_unknown", **self._log_fields(attempts), error=error))
        retries.drop_connection(self.alias)
        lease = execution.lease
        try:
            known = retries.patiently(
                self.alias,
                retries.run,
                self.alias,
                was_committed,
                self.alias,
                execution,
                attempts,
                give_up=lambda: lease.lost,
            )
        except LeaseLost:
            return SUPERSEDED
        if known is None:
            return SUPERSEDED
        position, acked = known
        if not acked:
            raise error
        return committed_at(position)
