"""Where runs are run: a pool of threads, an event loop, or the calling thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

from django.db import connections

from sqlqueue.consumers.connections import CONNECTIONS_LAST, close_stale_connections
from sqlqueue.consumers.handling import Handling, Report
from sqlqueue.core.lines import line
from sqlqueue.core.plan import Run

logger = logging.getLogger("sqlqueue")

Task = tuple[Handling, Run]


class Pool(Protocol):
    """What a dispatcher needs of whoever runs handlers."""

    @property
    def exhausted(self) -> bool:
        """So many handlers hang that nobody is left to run others."""

    def submit(self, handling: Handling, run: Run) -> None:
        """Run it some time soon."""

    def abandon(self, run: Run) -> None:
        """Its handler has overrun, and may never return: do not count on the one who runs it."""

    def close(self) -> None:
        """Take no more; whoever is idle ends."""


class ThreadPool:
    """Threads for sync handlers, and one event loop for async ones. Threads that a handler never gives back are
    replaced, up to a bound; `exhausted` tells when that is reached."""

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
        for _ in range(threads):
            self._start_thread()

    @property
    def exhausted(self) -> bool:
        """So many handlers hang that no more threads are started for them."""
        return len(self._abandoned) >= self._most_abandoned

    def _start_thread(self) -> None:
        self._serial += 1
        threading.Thread(target=self._work, name=f"{self._name}-handler-{self._serial}", daemon=True).start()

    def submit(self, handling: Handling, run: Run) -> None:
        """Queue a run for the next free thread, or start it on the event loop."""
        if handling.consumer.is_async:
            if self._loop is None:
                self._loop = EventLoop(self._report, self._ended)
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

    def abandon(self, run: Run) -> None:
        """Start a thread in place of the one whose handler hangs; on the event loop, cancel it."""
        if self._loop is not None and self._loop.cancel(run):
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
        if self._loop is not None:
            self._loop.close()


class EventLoop:
    """An event loop in a thread of its own."""

    def __init__(self, report: Report, ended: Callable[[Run], None]):
        self._report, self._ended = report, ended
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="sqlqueue-loop", daemon=True)
        self._thread.start()

    def submit(self, handling: Handling, run: Run) -> None:
        """Start a run as a task."""
        self._loop.call_soon_threadsafe(self._start, handling, run)

    def _start(self, handling: Handling, run: Run) -> None:
        self._tasks[run] = self._loop.create_task(self._run(handling, run))

    async def _run(self, handling: Handling, run: Run) -> None:
        try:
            await handling.run_async(run, self._report)
        finally:
            self._tasks.pop(run, None)
            self._ended(run)

    def cancel(self, run: Run) -> bool:
        """Cancel a run's task; False if it is none of this loop's."""
        task = self._tasks.get(run)
        if task is None:
            return False
        self._loop.call_soon_threadsafe(task.cancel)
        return True

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)


class InlinePool:
    """Runs everything at once, in the calling thread and on its connections: for tests."""

    exhausted = False

    def __init__(self, report: Report, ended: Callable[[Run], None]):
        self._report, self._ended = report, ended

    def submit(self, handling: Handling, run: Run) -> None:
        """Run it now."""
        if handling.consumer.is_async:
            asyncio.run(handling.run_async(run, self._report))
        else:
            handling.run(run, self._report)
        self._ended(run)

    def abandon(self, run: Run) -> None:
        """Nothing hangs here: whoever would notice has been waiting for it."""

    def close(self) -> None:
        """Nothing to end."""
