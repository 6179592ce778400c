"""The handler executor for tests: it runs handlers in the calling thread, on that thread's connections."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from sqlqueue.consumers.executor import HandlerExecutor, now
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core.outcomes import SUPERSEDED, Outcome, VisibilityTimeout
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

    def raise_it(self) -> None:
        """Raise the error that ends the drain, if there is one."""
        if self.ends is not None:
            raise self.ends


class InlineExecutor(HandlerExecutor):
    """Runs handlers inside the transactions that the calling thread has open, and collects their errors."""

    def __init__(self, log: Log, consumer: Consumer, failures: Failures):
        super().__init__(log, consumer)
        self._failures = failures
        self.divides = not failures.raising  # its first error ends the drain

    @property
    def ends(self) -> bool:
        """Whether the first error has ended the drain."""
        return self._failures.ends is not None

    def _call(self, execution: Execution, attempts: list[Attempt], given: Any) -> Outcome:
        if self.consumer.options.atomic:  # a savepoint already
            return super()._call(execution, attempts, given)
        savepoints = Savepoints()
        try:
            outcome = super()._call(execution, attempts, given)
        except BaseException:
            savepoints.end()
            raise
        savepoints.end_well()
        return outcome

    async def _await(self, attempts: Sequence[Attempt], given: Any) -> Any:
        """Await the handler. Savepoints are set and released in the calling thread, where the handler's database calls
        run."""
        savepoints = await sync_to_async(Savepoints)()
        try:
            returned = await self._in_time(attempts, given)
        except BaseException:
            await sync_to_async(savepoints.end)()
            raise
        await sync_to_async(savepoints.end_well)()
        return returned

    async def _in_time(self, attempts: Sequence[Attempt], given: Any) -> Any:
        watch = TimeoutWatch(attempts)
        returned = None
        try:
            returned = await super()._await(attempts, given)
        except asyncio.CancelledError:
            if watch.overrun is None:
                raise
        finally:
            watch.end()
        if watch.overrun is not None:
            attempt = watch.overrun.number
            raise VisibilityTimeout(f"still running after its visibility timeout, at attempt {attempt}")
        return returned

    def _decide(self, error: BaseException, attempt: Attempt, together: Sequence[Attempt]) -> Outcome:
        outcome = super()._decide(error, attempt, together)
        said = isinstance(error, Settlement) and not isinstance(error, NotRun)  # by the handler itself
        if outcome is not SUPERSEDED and not said:
            self._failures.add(error)
        return outcome


class TimeoutWatch:
    """Cancels the current task when one of its attempts overruns. In a consumer process the control thread does that;
    here it waits for the handler."""

    def __init__(self, attempts: Sequence[Attempt]):
        self.overrun: Attempt | None = None
        self._attempts = attempts
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._timer: asyncio.Handle = self._loop.call_soon(self._look)

    def _look(self) -> None:
        first = min(self._attempts, key=lambda attempt: attempt.deadline)  # deadlines may have been extended
        left = first.deadline - now()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self.overrun = first
            assert self._task is not None
            self._task.cancel()

    def end(self) -> None:
        """Stop the timer: the handler has ended."""
        self._timer.cancel()


class Savepoints:
    """Savepoints of the transactions that are open in this thread: those of a TestCase. A database error in a handler
    would leave them broken, and nothing could be settled; in a consumer process there is no transaction around it."""

    def __init__(self) -> None:
        held = [one for one in connections.all(initialized_only=True) if one.in_atomic_block and not one.needs_rollback]
        self._set: list[tuple[Any, Any, int]] = [(one, one.savepoint(), len(one.run_on_commit)) for one in held]

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
