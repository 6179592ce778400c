"""Pools, which run executions: in threads, on an event loop, or in the calling thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from asgiref.sync import async_to_sync
from django.db import connections

from sqlqueue.consumers.connections import CONNECTIONS_LAST, care_for_connections, close_stale_connections
from sqlqueue.consumers.event_loop import Blame, EventLoop
from sqlqueue.consumers.executor import HandlerExecutor, Report
from sqlqueue.consumers.inline_executor import Failures, InlineExecutor
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import UNSTARTED
from sqlqueue.core.settle_plan import Execution

logger = logging.getLogger("sqlqueue")

Submission = tuple[HandlerExecutor, Execution]


class Pool:
    """What the dispatcher needs of a pool. This base class has no handler that hangs."""

    @property
    def exhausted(self) -> bool:
        """Whether so many handlers hang that no thread is left for others."""
        return False

    def submit(self, executor: HandlerExecutor, execution: Execution) -> None:
        """Run an execution soon."""
        raise NotImplementedError

    def look(self, now: float) -> None:
        """Find an event loop that is blocked, and replace it."""

    def blame(self, execution: Execution, now: float) -> Blame:
        """Return what made an execution overrun."""
        return Blame.OWN

    def abandon(self, execution: Execution) -> None:
        """Replace the thread of an execution whose handler has overrun: it may never return."""

    def close(self) -> None:
        """Take no more executions, and end idle threads."""


class ThreadPool(Pool):
    """Threads for sync handlers, and one event loop for async ones. Threads and loops that a handler blocks are
    replaced, up to a limit; `exhausted` tells when that is reached."""

    def __init__(self, threads: int, report: Report, ended: Callable[[Execution], None], name: str = "sqlqueue"):
        self._report, self._ended, self._name = report, ended, name
        self._submissions: SimpleQueue[Submission | None] = SimpleQueue()
        self._threads = threads
        self._lock = threading.Lock()
        self._running: set[Execution] = set()
        self._abandoned: set[Execution] = set()
        self._most_abandoned = max(16, 4 * threads)
        self._serial = 0
        self._loop: EventLoop | None = None
        self._retired: list[EventLoop] = []
        for _ in range(threads):
            self._start_thread()

    @property
    def exhausted(self) -> bool:
        """Whether so many handlers hang that no more threads and loops are started in their place."""
        return len(self._abandoned) + len(self._retired) >= self._most_abandoned

    def _start_thread(self) -> None:
        self._serial += 1
        threading.Thread(target=self._work, name=f"{self._name}-handler-{self._serial}", daemon=True).start()

    def submit(self, executor: HandlerExecutor, execution: Execution) -> None:
        """Queue an execution for the next free thread, or start it on the event loop."""
        if executor.consumer.is_async:
            if self._loop is None:
                self._serial += 1
                self._loop = EventLoop(self._report, self._ended, f"{self._name}-loop-{self._serial}")
            self._loop.submit(executor, execution)
        else:
            self._submissions.put((executor, execution))

    def _work(self) -> None:
        try:
            while (submission := self._next()) is not None:
                executor, execution = submission
                with self._lock:
                    self._running.add(execution)
                try:
                    executor.run(execution, self._report)
                except BaseException as error:
                    logger.error(logfmt("execution_failed", error=error), exc_info=error)
                self._ended(execution)
                with self._lock:
                    self._running.discard(execution)
                    if execution in self._abandoned:
                        self._abandoned.discard(execution)
                        return  # another thread has replaced this one
        finally:
            connections.close_all()

    def _next(self) -> Submission | None:
        """Wait for a submission; a thread that has been idle for a while closes stale connections first."""
        try:
            return self._submissions.get(timeout=CONNECTIONS_LAST)
        except Empty:
            close_stale_connections()
            return self._submissions.get()

    def look(self, now: float) -> None:
        """Replace the event loop if it is blocked. A retired loop that runs again is closed once its handlers have
        ended."""
        if self._loop is not None and not self._loop.look(now):
            self._retire(self._loop, now)
        for loop in list(self._retired):
            loop.look(now)
            if loop.over:
                self._retired.remove(loop)
                loop.close()

    def _retire(self, loop: EventLoop, now: float, in_a_call: bool = False) -> None:
        self._loop = None
        self._retired.append(loop)
        loop.retire(now, in_a_call)

    def _loop_of(self, execution: Execution) -> EventLoop | None:
        loops = self._retired if self._loop is None else [self._loop, *self._retired]
        return next((loop for loop in loops if execution in loop.executions), None)

    def blame(self, execution: Execution, now: float) -> Blame:
        """Return what made an execution overrun: on an event loop, another handler may have."""
        loop = self._loop_of(execution)
        return Blame.OWN if loop is None else loop.blame(execution, now)

    def abandon(self, execution: Execution) -> None:
        """Start a thread in place of the one whose handler hangs; cancel an execution on an event loop."""
        loop = self._loop_of(execution)
        if loop is not None:
            if loop is self._loop and loop.holds_its_thread(execution):
                self._retire(loop, time.monotonic(), in_a_call=True)
            loop.cancel(execution)
            return
        with self._lock:
            if execution not in self._running or execution in self._abandoned or self.exhausted:
                return  # it has just returned, was replaced already, or too many hang
            self._abandoned.add(execution)
            self._start_thread()

    def close(self) -> None:
        """End the idle threads and the loop; those that a handler blocks end with it, or with the process."""
        for _ in range(self._threads + len(self._abandoned)):
            self._submissions.put(None)
        for loop in self._retired if self._loop is None else [self._loop, *self._retired]:
            loop.close()


class InlinePool(Pool):
    """Runs each execution at once, in the calling thread and on its connections: for tests.

    Async handlers run on an event loop in another thread, or on the one that the calling thread works for; what they
    pass to `sync_to_async`, such as Django's database calls, runs in the calling thread.
    """

    def __init__(self, report: Report, ended: Callable[[Execution], None], failures: Failures | None = None):
        self._report, self._ended = report, ended
        self._failures = failures or Failures()

    def submit(self, executor: HandlerExecutor, execution: Execution) -> None:
        """Run an execution now; release it if the drain is to end."""
        inline = InlineExecutor(executor.alias, executor.consumer, self._failures)
        if self._failures.ends is not None:
            for attempt in execution.stop():
                self._report(attempt, UNSTARTED)
        elif executor.consumer.is_async:
            care_for_connections()
            async_to_sync(inline.run_async)(execution, self._report)
        else:
            inline.run(execution, self._report)
        self._ended(execution)
