"""Pools, which run executions: in threads, on an event loop, or in the calling thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from django.db import connections

from sqlqueue.consumers.handlers.connections import next_of
from sqlqueue.consumers.handlers.event_loop import Blame, EventLoop
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.consumers.handlers.runs import Report
from sqlqueue.core import forks
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.settle_plan import Execution

logger = logging.getLogger("sqlqueue")

Submission = tuple[HandlerExecutor, Execution]
Submissions = SimpleQueue["Submission | None"]


class Pool:
    """What the dispatcher needs of a pool. This base class has no handler that hangs."""

    def submit(self, executor: HandlerExecutor, execution: Execution, reserved: bool = False) -> None:
        """Run an execution soon; reserved: in a thread that runs only this executor's."""
        raise NotImplementedError

    def look(self, now: float) -> bool:
        """Find an event loop that is blocked, and replace it; return False if so many handlers hang that no thread is
        left for others."""
        return True

    def blame(self, execution: Execution, now: float) -> Blame:
        """Return what made an execution overrun."""
        return Blame.OWN

    def abandon(self, execution: Execution) -> None:
        """Replace the thread of an execution whose handler has overrun: it may never return."""

    def close(self) -> None:
        """Take no more executions, and end idle threads."""


MakePool = Callable[[Report, Callable[[Execution], None]], Pool]


class ThreadPool(Pool):
    """Threads for sync handlers, and one event loop for async ones. Threads and loops that a handler blocks are
    replaced, up to a limit."""

    def __init__(self, threads: int, report: Report, ended: Callable[[Execution], None], name: str = "sqlqueue"):
        self._report, self._ended, self._name = report, ended, name
        self._submissions: Submissions = SimpleQueue()
        self._reserved: dict[HandlerExecutor, Submissions] = {}
        self.ending_reserved = 0  # threads that still run a handler
        self._threads = threads
        self._lock = threading.Lock()
        self._running: dict[Execution, Submissions] = {}  # and where it came from
        self._abandoned: set[Execution] = set()
        self._most_abandoned = max(16, 4 * threads)
        self._serial = 0
        self._loop: EventLoop | None = None
        self._retired: list[EventLoop] = []
        for _ in range(threads):
            self._start_thread(self._submissions)

    @property
    def _exhausted(self) -> bool:
        return len(self._abandoned) + len(self._retired) >= self._most_abandoned

    @property
    def taken(self) -> bool:
        """Whether no thread is idle, or about to be, but for those that are reserved."""
        with self._lock:
            hanging = self._abandoned
            busy = sum(of is self._submissions and each not in hanging for each, of in self._running.items())
        return busy >= self._threads or not self._submissions.empty()

    def _start_thread(self, submissions: Submissions) -> None:
        self._serial += 1
        name = f"{self._name}-handler-{self._serial}"
        threading.Thread(target=self._work, args=(submissions,), name=name, daemon=True).start()

    def submit(self, executor: HandlerExecutor, execution: Execution, reserved: bool = False) -> None:
        """Queue an execution for the next free thread, or its reserved one, or start it on the event loop."""
        if executor.consumer.is_async:
            if self._loop is None:
                self._serial += 1
                self._loop = EventLoop(self._report, self._ended, f"{self._name}-loop-{self._serial}")
            self._loop.submit(executor, execution)
        elif reserved:
            if executor not in self._reserved:
                self._reserved[executor] = SimpleQueue()
                self._start_thread(self._reserved[executor])
            self._reserved[executor].put((executor, execution))
        else:
            self._submissions.put((executor, execution))

    def end_reserved(self, executor: HandlerExecutor) -> None:
        """End the reserved thread once it is idle."""
        if (submissions := self._reserved.pop(executor, None)) is not None:
            with self._lock:
                self.ending_reserved += 1
            submissions.put(None)

    def _work(self, submissions: Submissions) -> None:
        process = forks.generation
        try:
            while (submission := next_of(submissions)) is not None:
                executor, execution = submission
                with self._lock:
                    self._running[execution] = submissions
                try:
                    executor.run(execution, self._report)
                except BaseException as error:
                    forks.leave_if_forked(process)
                    logger.error(logfmt("execution_failed", error=error), exc_info=error)
                forks.leave_if_forked(process)
                self._ended(execution)
                with self._lock:
                    del self._running[execution]
                    if execution in self._abandoned:
                        self._abandoned.discard(execution)
                        return  # another thread has replaced this one
            if submissions is not self._submissions:
                with self._lock:
                    self.ending_reserved -= 1
        finally:
            connections.close_all()

    def look(self, now: float) -> bool:
        """Replace the event loop if it is blocked. A retired loop that runs again is closed once its handlers have
        ended. Return False if so many hang that no more threads and loops are started in their place."""
        if self._loop is not None and not self._loop.look(now):
            self._retire(self._loop, now)
        for loop in list(self._retired):
            loop.look(now)
            if loop.over:
                self._retired.remove(loop)
                loop.close()
        return not self._exhausted

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
            if execution not in self._running or execution in self._abandoned or self._exhausted:
                return  # it has just returned, was replaced already, or too many hang
            self._abandoned.add(execution)
            self._start_thread(self._running[execution])

    def close(self) -> None:
        """End the idle threads and the loop; those that a handler blocks end with it, or with the process."""
        for _ in range(self._threads + len(self._abandoned)):
            self._submissions.put(None)
        for executor in list(self._reserved):
            self.end_reserved(executor)
        for loop in self._retired if self._loop is None else [self._loop, *self._retired]:
            loop.close()
