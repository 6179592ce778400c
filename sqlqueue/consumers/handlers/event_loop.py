"""The event loop of async handlers, with the thread in which their database calls run, and how it is found that a
handler blocks it."""

from __future__ import annotations

import asyncio
import enum
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from sqlqueue.consumers.handlers.connections import guarded, next_of
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.consumers.handlers.runs import Report
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import UNSTARTED
from sqlqueue.core.settle_plan import Execution

logger = logging.getLogger("sqlqueue")

T = TypeVar("T")

current_execution: ContextVar[Execution | None] = ContextVar(
    "sqlqueue_current_execution", default=None
)  # whose code a task runs


class DatabaseCall(NamedTuple):
    """A call that waits in the queue, or runs, and the execution that it belongs to."""

    future: Future[Any]
    do: Callable[[Any], Any]
    execution: Execution | None


class DatabaseThread(Executor):
    """Runs what handlers of one event loop pass to `sync_to_async`, one call after another, with connections of its own
    that are checked around each call. A call that leaves one inside a transaction fails: the connections are shared,
    and the next call may be another handler's.

    asgiref's own thread is one for the whole process, and a call that hangs in it would hold up every loop and the
    process's end.
    """

    def __init__(self, name: str):
        self.running: Execution | None = None
        self._calls: SimpleQueue[DatabaseCall | None] = SimpleQueue()
        self._waiting: deque[Execution | None] = deque()
        self._context = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[self._context] = self
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Let the calls of the current asyncio task, and of the tasks that it starts, run in this thread."""
        SyncToAsync.thread_sensitive_context.set(self._context)

    def submit(self, call: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        """Queue a call; asgiref calls this."""
        future: Future[T] = Future()
        execution = current_execution.get()
        self._waiting.append(execution)
        self._calls.put(DatabaseCall(future, lambda _: call(*args, **options), execution))
        return future

    def waits(self, execution: Execution) -> bool:
        """Return whether a call of this execution waits for a call of another execution."""
        return execution is not self.running and execution in self._waiting

    def end(self, timeout: float) -> None:
        """End the thread once all queued calls have run; wait up to `timeout` seconds for that."""
        self._calls.put(None)
        self.thread.join(timeout)

    def _work(self) -> None:
        try:
            while (call := next_of(self._calls)) is not None:
                self._waiting.popleft()
                if call.future.set_running_or_notify_cancel():
                    self.running = call.execution
                    try:
                        call.future.set_result(guarded(call.do, None))
                    except BaseException as error:
                        call.future.set_exception(error)
                    self.running = None
        finally:
            connections.close_all()


BLOCKED_AFTER = 5.0  # seconds without an iteration after which another loop takes over
LOOKS = 5  # that the loop must also have missed: in a process that was stopped itself, no loop has run
SLOW = 0.3  # seconds without an iteration after which an overrun may be due to another handler


class Blame(enum.Enum):
    """What made a handler overrun."""

    OWN = "the handler itself"
    ANOTHERS = "another handler, which has blocked the event loop or the thread of their database calls"
    OPEN = "not known yet: the loop may run again"


class EventLoop:
    """An event loop in a thread of its own. The control thread asks it for a sign of life, and it answers when it
    runs."""

    def __init__(self, report: Report, ended: Callable[[Execution], None], name: str):
        self._report, self._ended = report, ended
        self.executions: dict[Execution, HandlerExecutor] = {}
        self.retired = False
        self._tasks: dict[Execution, asyncio.Task[None]] = {}
        self._execution_of: WeakKeyDictionary[asyncio.Task[Any], Execution] = WeakKeyDictionary()
        self._asked = 0.0
        self._looks = 0
        self._blocker: Execution | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._database = DatabaseThread(f"{name}-database")
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, executor: HandlerExecutor, execution: Execution) -> None:
        """Start an execution as an asyncio task."""
        self.executions[execution] = executor
        self._loop.call_soon_threadsafe(self._start, executor, execution)

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException as error:  # asyncio lets SystemExit out of a task that a handler has started
                logger.error(logfmt("execution_failed", error=error), exc_info=error)

    def _start(self, executor: HandlerExecutor, execution: Execution) -> None:
        if execution not in self.executions:
            return  # it was released while the loop was blocked
        self._tasks[execution] = self._loop.create_task(self._run(executor, execution))

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Make an asyncio task; one that a handler starts belongs to that handler's execution."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        execution = current_execution.get()
        if execution is not None:
            self._execution_of[task] = execution
        return task

    async def _run(self, executor: HandlerExecutor, execution: Execution) -> None:
        current_execution.set(execution)
        task = asyncio.current_task()
        assert task is not None
        self._execution_of[task] = execution
        self._database.serve()
        try:
            await executor.run_async(execution, self._report)
        except Exception as error:
            logger.error(logfmt("execution_failed", error=error), exc_info=error)
        finally:
            self._tasks.pop(execution, None)
            self._forget(execution)

    def _forget(self, execution: Execution) -> None:
        if self.executions.pop(execution, None) is not None:
            self._ended(execution)

    def _answer(self) -> None:
        self._asked, self._looks, self._blocker = 0.0, 0, None

    # -- for the control thread ---------------------------------------------------------------------------------------

    def look(self, now: float) -> bool:
        """Ask the loop for a sign of life; return False if it has not answered for too long."""
        if self._asked:
            self._looks += 1
            return now - self._asked < BLOCKED_AFTER or self._looks < LOOKS
        if self._tasks or self.executions:
            self._asked = now
            self._loop.call_soon_threadsafe(self._answer)
        return True

    def retire(self, now: float, in_a_call: bool = False) -> None:
        """Start nothing more in this loop, and release what has not started; what runs may go on. Log which handler
        blocks it, and where."""
        self.retired = True
        for execution in list(self.executions):
            for attempt in execution.stop():
                self._report(attempt, UNSTARTED)
            if not execution.next:
                self._forget(execution)
        if in_a_call:
            self._blocker = self._database.running
            fields, stack = self._log_fields(now), _stack(self._database.thread)
            logger.error("%s\n%s", logfmt("database_thread_blocked", **fields), stack)
        else:
            task = asyncio.current_task(self._loop)
            self._blocker = None if task is None else self._execution_of.get(task)
            fields, stack = self._log_fields(now), _stack(self._thread)
            logger.error("%s\n%s", logfmt("event_loop_blocked", **fields), stack)

    def _log_fields(self, now: float) -> dict[str, Any]:
        fields: dict[str, Any] = {"blocked_for": now - self._asked} if self._asked else {}
        execution = self._blocker
        if execution is not None:
            executor = self.executions.get(execution)
            fields["handler"] = "" if executor is None else executor.consumer.name
            fields |= execution.lease.labels
            fields["offset"] = execution.attempts[max(0, execution.next - 1)].offset
        return {**fields, "meaning": "another loop takes over"}

    def blame(self, execution: Execution, now: float) -> Blame:
        """Return what made an execution of this loop overrun."""
        if self._database.waits(execution):
            return Blame.ANOTHERS
        if not self._asked or now - self._asked < SLOW:
            return Blame.OWN
        if not self.retired:
            return Blame.OPEN
        return Blame.OWN if self._blocker in (execution, None) else Blame.ANOTHERS

    def holds_its_thread(self, execution: Execution) -> bool:
        """Return whether a database call of this execution delays those of others."""
        return self._database.running is execution

    def cancel(self, execution: Execution) -> None:
        """Cancel the task of an execution. In a retired loop it counts as ended, whether it can be cancelled or not."""
        task = self._tasks.get(execution)
        if task is not None:
            self._loop.call_soon_threadsafe(task.cancel)
        if self.retired:
            self._forget(execution)

    @property
    def over(self) -> bool:
        """Whether the loop is retired, runs, and has nothing left to do."""
        return self.retired and not self._asked and not self._tasks

    def close(self, timeout: float = 1.0) -> None:
        """Stop the loop and its thread."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)
        self._database.end(timeout)


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else "".join(traceback.format_stack(frame)).rstrip()
