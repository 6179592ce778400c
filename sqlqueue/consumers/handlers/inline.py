"""The handler executor and the pool for tests: handlers run in the calling thread, on that thread's connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.consumers.handlers.connections import check_connections, guarded, states
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.consumers.handlers.pools import Pool
from sqlqueue.consumers.handlers.runs import Report
from sqlqueue.core.outcomes import SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database import driver
from sqlqueue.database.log import Log
from sqlqueue.exceptions import BrokenTransaction, NotRun, Settlement


class Failures:
    """The errors of handlers in a drain. With `raising` the first error ends the drain, once what has run is settled;
    Ctrl-C always does."""

    def __init__(self, raising: bool = False):
        self.raising = raising
        self.ends: BaseException | None = None

    def add(self, error: BaseException) -> None:
        """Remember an error if it ends the drain."""
        if self.ends is None and (self.raising or isinstance(error, KeyboardInterrupt)):
            self.ends = error


class InlineExecutor(HandlerExecutor):
    """Runs handlers inside the transactions that the calling thread has open, and collects their errors."""

    def __init__(self, log: Log, consumer: Consumer, failures: Failures):
        super().__init__(log, consumer)
        self._failures = failures
        self.divides = not failures.raising  # its first error ends the drain
        self._in_transaction = bool(_open_transactions())
        if self._in_transaction:
            self._guarded = in_savepoints

    @property
    def ends(self) -> bool:  # type: ignore[override]
        """Whether the first error has ended the drain."""
        return self._failures.ends is not None

    async def _await(self, given: Any) -> Any:
        """Await the handler. Savepoints are set and released in the calling thread, where the handler's database calls
        run."""
        if not self._in_transaction:
            return await super()._await(given)
        savepoints = await sync_to_async(Savepoints)()
        try:
            returned = await super()._await(given)
        except BaseException:
            await sync_to_async(savepoints.end)()
            raise
        await sync_to_async(savepoints.end_well)()
        return returned

    def decide(self, error: BaseException, attempt: Attempt, together: Sequence[Attempt]) -> Outcome:
        """Return the outcome of an attempt that raised, and remember the error."""
        outcome = super().decide(error, attempt, together)
        said = isinstance(error, Settlement) and not isinstance(error, NotRun)  # by the handler itself
        if outcome is not SUPERSEDED and not said:
            self._failures.add(error)
        return outcome


class InlinePool(Pool):
    """Runs each execution at once, in the calling thread and on its connections: for tests.

    Async handlers run on an event loop in another thread, or on the one that the calling thread works for; what they
    pass to `sync_to_async`, such as Django's database calls, runs in the calling thread.
    """

    def __init__(self, report: Report, ended: Callable[[Execution], None], failures: Failures | None = None):
        self._report, self._ended = report, ended
        self._failures = failures or Failures()
        self._executors: dict[HandlerExecutor, InlineExecutor] = {}

    def submit(self, executor: HandlerExecutor, execution: Execution, reserved: bool = False) -> None:
        """Run an execution now; release it if the drain is to end."""
        inline = self._executors.get(executor)
        if inline is None:
            inline = self._executors[executor] = InlineExecutor(executor.log, executor.consumer, self._failures)
        if self._failures.ends is not None:
            for attempt in execution.stop():
                self._report(attempt, UNSTARTED)
        elif executor.consumer.is_async:
            check_connections()
            async_to_sync(inline.run_async)(execution, self._report)
        else:
            inline.run(execution, self._report)
        self._ended(execution)


def _open_transactions() -> list[Any]:
    return [one for one in connections.all(initialized_only=True) if one.in_atomic_block and not one.needs_rollback]


def in_savepoints(do: Callable[[Any], Any], given: Any) -> Any:
    """Call a function in savepoints of the transactions that are open in this thread; return what it returns."""
    savepoints = Savepoints()
    try:
        returned = guarded(do, given, states())
    except BaseException:
        savepoints.end()
        raise
    savepoints.end_well()
    return returned


class Savepoints:
    """Savepoints of the transactions that are open in this thread: those of a TestCase. A database error in a handler
    would leave them broken, and nothing could be settled; in a consumer process there is no transaction around it."""

    def __init__(self) -> None:
        self._set = [(one, one.savepoint(), len(one.run_on_commit)) for one in _open_transactions()]

    def end(self) -> bool:
        """Roll back to the savepoint of each broken transaction, and release the others; return whether any was
        broken."""
        broken = [self._is_broken(connection) for connection, _, _ in self._set]
        for (connection, savepoint, hooks), is_broken in zip(self._set, broken):
            if is_broken:
                connection.needs_rollback = False
                connection.savepoint_rollback(savepoint)
                del connection.run_on_commit[hooks:]
            if connection.in_atomic_block:
                connection.savepoint_commit(savepoint)
        return any(broken)

    def end_well(self) -> None:
        """End the savepoints of a handler that has returned. Raises BrokenTransaction if what it wrote was rolled
        back."""
        if self.end():
            raise BrokenTransaction(
                "the handler has swallowed a database error, and what it wrote in the test's transaction was rolled "
                "back: let it use transaction.atomic() around what may fail, as all code under a TestCase"
            )

    @staticmethod
    def _is_broken(connection: Any) -> bool:
        if not connection.in_atomic_block:
            return False
        return bool(connection.needs_rollback) or driver.standing(connection)[1] == driver.FAILED
