"""The thread in which the database calls of async handlers run: Django's connections belong to threads."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from sqlqueue.consumers.connections import (
    CONNECTIONS_LAST,
    Undisturbed,
    care_for_connections,
    close_stale_connections,
)
from sqlqueue.core.settle_plan import Execution

T = TypeVar("T")

current_execution: ContextVar[Execution | None] = ContextVar(
    "sqlqueue_current_execution", default=None
)  # whose code a task runs


class DatabaseCall(NamedTuple):
    """A call that waits in the queue, or runs, and the execution that it belongs to."""

    future: Future[Any]
    do: Callable[[], Any]
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
        self._calls.put(DatabaseCall(future, functools.partial(call, *args, **options), execution))
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
            while (call := self._next()) is not None:
                self._waiting.popleft()
                if call.future.set_running_or_notify_cancel():
                    self.running = call.execution
                    self._do(call)
                    self.running = None
        finally:
            connections.close_all()

    def _do(self, call: DatabaseCall) -> None:
        try:
            care_for_connections()
            with Undisturbed():
                result = call.do()
        except BaseException as error:
            call.future.set_exception(error)
        else:
            call.future.set_result(result)

    def _next(self) -> DatabaseCall | None:
        try:
            return self._calls.get(timeout=CONNECTIONS_LAST)
        except Empty:
            close_stale_connections()
            return self._calls.get()
