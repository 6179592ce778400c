"""The execution of atomic handlers: the handler and its ack in one transaction."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from django.db import Error

from sqlqueue.consumers.background.task import Trouble
from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.consumers.handlers.connections import check_connections, guarded, restore, states
from sqlqueue.core import effects, forks
from sqlqueue.core.effects import EffectWrite, effect_of
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.not_run import check_has_run
from sqlqueue.core.outcomes import (
    SUPERSEDED,
    UNSTARTED,
    Outcome,
    committed_at,
)
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.retries import FOR_GOOD, ErrorKind
from sqlqueue.database.server_identity import ServerChanged, SessionReplaced, lead
from sqlqueue.database.transactions import Guard
from sqlqueue.exceptions import LeaseLost, Settlement
from sqlqueue.log.atomic import Superseded, settle_execution, was_committed
from sqlqueue.log.results import asking, outcome_of, write_own

logger = logging.getLogger("sqlqueue")


def part_commit_hooks(log: Log) -> None:
    """Let each hook of the transaction that is open run, whatever those before it raise: they are different handlers'.
    Django would skip all that follow."""
    connection: Any = log.connection
    if not connection.savepoint_ids:  # else it is a TestCase's own, and so are the hooks
        connection.run_on_commit = [
            (savepoints, _guarded(log, hook), robust) for savepoints, hook, robust in connection.run_on_commit
        ]


def _guarded(log: Log, hook: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        process = forks.generation
        try:
            try:
                hook()
            finally:
                forks.leave_if_forked(process)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.error(logfmt("commit_hook_failed", log=log, hook=repr(hook), error=error), exc_info=error)

    return run


T = TypeVar("T")

TRIES = 3  # of a transaction that met a deadlock and was rolled back


class Handled(NamedTuple):
    """What handlers have handled in a transaction that is open, and what is stored with its ack."""

    attempts: list[Attempt]
    results: list[tuple[Attempt, Outcome]]
    effects: list[EffectWrite]


class HandlerFailed(Exception):
    """One of several handlers that share a transaction has raised."""

    def __init__(self, attempt: Attempt, error: BaseException):
        super().__init__(attempt, error)
        self.attempt, self.error = attempt, error


class EngineFailed(Exception):
    """A statement of the engine has failed in a transaction whose handler has ended: that is no attempt's error."""

    def __init__(self, error: Error):
        super().__init__(error)
        self.error = error


def _engines(operation: Callable[..., T], *args: Any) -> T:
    """Call what may ask the server what it can keep. Raises EngineFailed for an error that is not for good."""
    try:
        return operation(*args)
    except Error as error:
        if retries.classify(error) in FOR_GOOD:  # the handler has broken the transaction
            raise
        raise EngineFailed(error) from error


class AtomicExecutor:
    """Runs the handlers of one atomic consumer."""

    def __init__(self, log: Log, consumer: Consumer):
        self.log, self.consumer, self._keep_results = log, consumer, consumer.options.keep_results
        self.trouble = Trouble(consumer.name)  # of the engine's own statements in its transactions

    def run(
        self,
        execution: Execution,
        attempts: list[Attempt],
        given: Any,
        started: Callable[[list[Attempt]], bool],
    ) -> Outcome:
        """Run a handler of a chunk, and its ack, in one transaction. Every error rolls both back."""

        def work() -> Handled | None:
            # Opening a transaction may take long: SQLite has one writer, and a server may be slow to answer.
            if not started(attempts):
                return None
            handled = Handled(attempts, [], [])
            self.handle(attempts, given, handled)
            return handled

        return self.commit(execution, attempts, work)

    def handle(self, attempts: list[Attempt], given: Any, handled: Handled) -> None:
        """Call the handler in the transaction that is open, and add what is to be stored with its ack."""
        effects_before = len(handled.effects)
        returned = guarded(functools.partial(self._call, attempts, handled), given, states())
        if len(handled.effects) > effects_before:
            return  # it has no result yet: a caller would take None for its reply
        keeps = self._keep_results is not None
        for attempt in attempts if keeps else asking(attempts):
            handled.results.append((attempt, _engines(outcome_of, self.log, attempt, returned, keeps)))

    def _call(self, attempts: list[Attempt], handled: Handled, given: Any) -> Any:
        try:
            returned = self.consumer.handler(given)
            check_has_run(returned, self.consumer.name)
        except Settlement as error:
            effect = effect_of(error)
            if effect is None or len(attempts) > 1:
                raise
            # What the handler did, its ack and what the effect writes are one transaction.
            value = _engines(effect.decide, error)
            handled.effects.append(
                EffectWrite(attempts[0].lease, attempts[0].offset, attempts[0].number, effect, value)
            )
            return None
        return None if self.consumer.options.batch else returned

    def commit(self, execution: Execution, attempts: Sequence[Attempt], work: Callable[[], Handled | None]) -> Outcome:
        """Run handlers (`work`) and the ack of what they have handled in one transaction. Every error rolls both back,
        and `work` may be called TRIES times. None: nothing has started. attempts: for the log's lines."""
        check_connections()
        before = states()
        try:
            return self._commit(execution, attempts, work)
        finally:
            restore(before)

    def _commit(self, execution: Execution, attempts: Sequence[Attempt], work: Callable[[], Handled | None]) -> Outcome:
        forked = forks.generation
        for number in range(1, TRIES + 1):
            committed: list[bool] = []
            begun = settled = False
            handled: Handled | None = None
            moved_to: int | None = None
            try:
                lead(self.log)  # a new connection, before the transaction begins
                with self.log.dialect.writers, self.log.atomic():
                    guard = Guard(self.log)
                    begun = True
                    self.log.on_commit(lambda: committed.append(True))  # noqa: B023  run in this iteration
                    handled = work()
                    if handled is None:
                        return UNSTARTED
                    attempts = handled.attempts
                    guard.release()
                    moved_to = settle_execution(self.log, execution, handled.attempts, guard)
                    if handled.effects:
                        effects.write(self.log, handled.effects)
                    write_own(self.log, execution.lease.ref, handled.results, self._keep_results)
                    if self.consumer.options.grouped:
                        part_commit_hooks(self.log)
                    settled = True
            except BaseException as error:
                forks.leave_if_forked(forked)  # in a commit hook
                if not isinstance(error, Exception):
                    raise
                if committed:  # by a hook, which may raise a Settlement, too
                    logger.error(
                        logfmt("commit_hook_failed", **self._log_fields(attempts), error=error), exc_info=error
                    )
                    return self._committed(execution, attempts, moved_to)
                if isinstance(error, Settlement):
                    raise
                if handled is not None and isinstance(error, LeaseLost):
                    if isinstance(error, (ServerChanged, SessionReplaced)):
                        logger.warning(logfmt("session_replaced", **self._log_fields(attempts), meaning=error))
                        retries.drop_connection(self.log)  # it may lead to a server of the past for as long as it lives
                    if isinstance(error, Superseded) and len(attempts) > 1:
                        raise  # which one it is, the caller finds out
                    return SUPERSEDED
                cause = error.error if isinstance(error, (HandlerFailed, EngineFailed)) else error
                kind = retries.classify(cause) if isinstance(cause, Error) else ErrorKind.OTHER
                doubtful = isinstance(cause, Error) and kind not in (*FOR_GOOD, ErrorKind.CONTENTION)
                if settled and doubtful:
                    return self._after_lost_reply(execution, list(attempts), error)
                if kind is ErrorKind.CONTENTION and number < TRIES:
                    logger.info(logfmt("handler_rerun", **self._log_fields(attempts), error=cause))
                    time.sleep(0.01 * number)
                    continue
                # After the handlers have returned, the statements are the engine's: such an error is no attempt's.
                engines = handled is not None or isinstance(error, EngineFailed)
                if not begun or (engines and (doubtful or kind is ErrorKind.CONTENTION)):
                    return self._put_off(begun, attempts, cause)
                raise
            forks.leave_if_forked(forked)
            self.trouble.over()
            return self._committed(execution, attempts, moved_to)
        raise AssertionError("unreachable")

    @staticmethod
    def _committed(execution: Execution, attempts: Sequence[Attempt], moved_to: int | None) -> Outcome:
        if moved_to is not None:
            execution.moved(attempts, moved_to)
        return committed_at(moved_to)

    def _put_off(self, begun: bool, attempts: Sequence[Attempt], error: BaseException) -> Outcome:
        """Return the outcome after a transaction that could not be begun, or in which the engine's own statements have
        failed: no attempt is charged. The next try waits, longer and longer."""
        self.trouble.failed(error)
        facts = {**self._log_fields(attempts), "error": error, "retry_in": self.trouble.pause}
        if begun:
            logger.warning(logfmt("transaction_failed", **facts))
        else:
            logger.warning(logfmt("transaction_not_begun", **facts))
        retries.drop_connection(self.log)
        time.sleep(self.trouble.pause)
        return UNSTARTED

    def _log_fields(self, attempts: Sequence[Attempt]) -> dict[str, Any]:
        return {
            "handler": self.consumer.name,
            **attempts[0].lease.labels,
            "offset": attempts[0].offset,
            "count": len(attempts),
        }

    def _after_lost_reply(self, execution: Execution, attempts: list[Attempt], error: Exception) -> Outcome:
        """Return the outcome of a commit in doubt: ask the database until it tells whether the transaction was
        committed, or the lease is lost."""
        logger.warning(logfmt("commit_outcome_unknown", **self._log_fields(attempts), error=error))
        retries.drop_connection(self.log)
        lease = execution.lease
        try:
            known = retries.patiently(
                self.log,
                retries.run,
                self.log,
                was_committed,
                self.log,
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
            return self._put_off(True, attempts, error)
        return self._committed(execution, attempts, position)
