"""Where runs are run: a pool of threads, an event loop, or the calling thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from django.db import connections

from sqlqueue.consumers.connections import CONNECTIONS_LAST, close_stale_connections
from sqlqueue.consumers.event_loop import Blame, EventLoop
from sqlqueue.consumers.handling import Handling, Report
from sqlqueue.core.lines import line
from sqlqueue.core.plan import Run

logger = logging.getLogger("sqlqueue")

Task = tuple[Handling, Run]


class Pool:
    """What a dispatcher needs of whoever runs handlers; here of one with whom nothing ever hangs."""

    @property
    def exhausted(self) -> bool:
        """So many handlers hang that nobody is left to run others."""
        return False

    def submit(self, handling: Handling, run: Run) -> None:
        """Run it some time soon."""
        raise NotImplementedError

    def look(self, now: float) -> None:
        """Notice what stands still, and replace it."""

    def blame(self, run: Run, now: float) -> Blame:
        """Tell who is to blame that a run overruns."""
        return Blame.OWN

    def abandon(self, run: Run) -> None:
        """Its handler has overrun, and may never return: do not count on the one who runs it."""

    def close(self) -> None:
        """Take no more; whoever is idle ends."""


class ThreadPool(Pool):
    """Threads for sync handlers, and one event loop for async ones. Threads and loops that a handler never gives back
    are replaced, up to a bound; `exhausted` tells when that is reached."""

    def __init__(self, threads: int, report: Report, ended: Callable[[Run], None], name: str = "sqlqueue"):
        self._report, self._ended, self._name = report, ended, name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads = threads
        self._lock = threading.Lock()
        self._running: set[Run] = set()
        self._abandoned: set[Run] = set()
        self._most_abandoned = max(16, 4 * threads)
        self._serial = 0
        self._loop: EventLoop | None = None
        self._retired: list[EventLoop] = []
        for _ in range(threads):
            self._start_thread()

    @property
    def exhausted(self) -> bool:
        """So many handlers hang that no more threads and loops are started for them."""
        return len(self._abandoned) + len(self._retired) >= self._most_abandoned

    def _start_thread(self) -> None:
        self._serial += 1
        threading.Thread(target=self._work, name=f"{self._name}-handler-{self._serial}", daemon=True).start()

    def submit(self, handling: Handling, run: Run) -> None:
        """Queue a run for the next free thread, or start it on the event loop."""
        if handling.consumer.is_async:
            if self._loop is None:
                self._serial += 1
                self._loop = EventLoop(self._report, self._ended, f"{self._name}-loop-{self._serial}")
            self._loop.submit(handling, run)
        else:
            self._tasks.put((handling, run))

    def _work(self) -> None:
        try:
            while (task := self._next()) is not None:
                handling, run = task
                with self._lock:
                    self._running.add(run)
                try:
                    handling.run(run, self._report)
                except BaseException as error:
                    logger.error(line("handling_failed", error=error), exc_info=error)
                self._ended(run)
                with self._lock:
                    self._running.discard(run)
                    if run in self._abandoned:
                        self._abandoned.discard(run)
                        return  # somebody else has taken this thread's place
        finally:
            connections.close_all()

    def _next(self) -> Task | None:
        """Wait for a task; a thread that has been idle for a while gives its connections back first."""
        try:
            return self._tasks.get(timeout=CONNECTIONS_LAST)
        except Empty:
            close_stale_connections()
            return self._tasks.get()

    def look(self, now: float) -> None:
        """Notice when the event loop stands still: the next one takes over. One that turns again ends when its handlers
        have ended."""
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

    def _loop_of(self, run: Run) -> EventLoop | None:
        loops = self._retired if self._loop is None else [self._loop, *self._retired]
        return next((loop for loop in loops if run in loop.runs), None)

    def blame(self, run: Run, now: float) -> Blame:
        """A handler on an event loop may be kept from going on by another one."""
        loop = self._loop_of(run)
        return Blame.OWN if loop is None else loop.blame(run, now)

    def abandon(self, run: Run) -> None:
        """Start a thread in place of the one whose handler hangs; on an event loop, cancel it."""
        loop = self._loop_of(run)
        if loop is not None:
            if loop is self._loop and loop.holds_its_thread(run):
                self._retire(loop, time.monotonic(), in_a_call=True)
            loop.cancel(run)
            return
        with self._lock:
            if run not in self._running or run in self._abandoned or self.exhausted:
                return  # it has just come back, has been replaced already, or too many hang
            self._abandoned.add(run)
            self._start_thread()

    def close(self) -> None:
        """End the idle threads and the loop; those that a handler holds end with it, or with the process."""
        for _ in range(self._threads + len(self._abandoned)):
            self._tasks.put(None)
        for loop in self._retired if self._loop is None else [self._loop, *self._retired]:
            loop.close()


class InlinePool(Pool):
    """Runs everything at once, in the calling thread and on its connections: for tests."""

    def __init__(self, report: Report, ended: Callable[[Run], None]):
        self._report, self._ended = report, ended

    def submit(self, handling: Handling, run: Run) -> None:
        """Run it now."""
        if handling.consumer.is_async:
            asyncio.run(handling.run_async(run, self._report))
        else:
            handling.run(run, self._report)
        self._ended(run)
