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
from sqlqueue.core.plan import Run

T = TypeVar("T")

at_work: ContextVar[Run | None] = ContextVar("sqlqueue_at_work", default=None)  # whose code a task runs


class Call(NamedTuple):
    """One that waits for its turn, or runs."""

    future: Future[Any]
    do: Callable[[], Any]
    run: Run | None


class DatabaseThread(Executor):
    """Runs what handlers of one event loop hand to `sync_to_async`, one call after another, with connections of its
    own that are looked at around each call. A call that leaves one inside a transaction fails: the connections are
    shared, and the next call may be another handler's.

    asgiref's own thread is one for the whole process, and a call that hangs in it would hold up every loop and the
    process's end.
    """

    def __init__(self, name: str):
        self.running: Run | None = None
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._waiting: deque[Run | None] = deque()
        self._context = ThreadSensitiveContext()
        SyncToAsync.context_to_thread_executor[self._context] = self
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        """Let the calls of the current task, and of those that it starts, run here."""
        SyncToAsync.thread_sensitive_context.set(self._context)

    def submit(self, call: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        """Queue a call; for asgiref."""
        future: Future[T] = Future()
        run = at_work.get()
        self._waiting.append(run)
        self._calls.put(Call(future, functools.partial(call, *args, **options), run))
        return future

    def waits(self, run: Run) -> bool:
        """Tell whether a call of this run waits for another run's to end."""
        return run is not self.running and run in self._waiting

    def end(self, timeout: float) -> None:
        """End when the calls that wait have been done, and wait so long for that."""
        self._calls.put(None)
        self.thread.join(timeout)

    def _work(self) -> None:
        try:
            while (call := self._next()) is not None:
                self._waiting.popleft()
                if call.future.set_running_or_notify_cancel():
                    self.running = call.run
                    self._do(call)
                    self.running = None
        finally:
            connections.close_all()

    def _do(self, call: Call) -> None:
        try:
            care_for_connections()
            with Undisturbed():
                result = call.do()
        except BaseException as error:
            call.future.set_exception(error)
        else:
            call.future.set_result(result)

    def _next(self) -> Call | None:
        try:
            return self._calls.get(timeout=CONNECTIONS_LAST)
        except Empty:
            close_stale_connections()
            return self._calls.get()
