"""The event loop of async handlers, and how one is noticed that stands still because a handler blocks it."""

from __future__ import annotations

import asyncio
import enum
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from sqlqueue.consumers.database_thread import DatabaseThread, at_work
from sqlqueue.consumers.handling import Handling, Report
from sqlqueue.core.lines import line
from sqlqueue.core.outcomes import UNSTARTED
from sqlqueue.core.plan import Run

logger = logging.getLogger("sqlqueue")

STANDS_STILL = 5.0  # seconds without a turn after which another loop takes over
LOOKS = 5  # that it must have missed in them too: a process that was stopped itself finds all its loops standing
SLOW = 0.3  # seconds without a turn after which nothing is held against those that the loop may keep waiting


class Blame(enum.Enum):
    """Who is to blame for a handler that overruns."""

    OWN = "its own"
    ANOTHERS = "another handler's, which has blocked the event loop or the thread of their database calls"
    OPEN = "not to be told yet: the loop may turn again"


class EventLoop:
    """An event loop in a thread of its own. What the control thread asks is answered by the loop when it turns."""

    def __init__(self, report: Report, ended: Callable[[Run], None], name: str):
        self._report, self._ended = report, ended
        self.runs: dict[Run, Handling] = {}
        self.retired = False
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._run_of: WeakKeyDictionary[asyncio.Task[Any], Run] = WeakKeyDictionary()
        self._asked = 0.0
        self._looks = 0
        self._blocker: Run | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._database = DatabaseThread(f"{name}-database")
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, handling: Handling, run: Run) -> None:
        """Start a run as a task."""
        self.runs[run] = handling
        self._loop.call_soon_threadsafe(self._start, handling, run)

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException as error:  # asyncio lets SystemExit out of a task that a handler has started
                logger.error(line("handling_failed", error=error), exc_info=error)

    def _start(self, handling: Handling, run: Run) -> None:
        if run not in self.runs:
            return  # it was handed back while the loop stood still
        self._tasks[run] = self._loop.create_task(self._run(handling, run))

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """A task that a handler starts is that handler's too."""
        task = asyncio.Task(coroutine, loop=loop, **options)
        run = at_work.get()
        if run is not None:
            self._run_of[task] = run
        return task

    async def _run(self, handling: Handling, run: Run) -> None:
        at_work.set(run)
        task = asyncio.current_task()
        assert task is not None
        self._run_of[task] = run
        self._database.serve()
        try:
            await handling.run_async(run, self._report)
        finally:
            self._tasks.pop(run, None)
            self._forget(run)

    def _forget(self, run: Run) -> None:
        if self.runs.pop(run, None) is not None:
            self._ended(run)

    def _answer(self) -> None:
        self._asked, self._looks, self._blocker = 0.0, 0, None

    # -- for the control thread ---------------------------------------------------------------------------------------

    def look(self, now: float) -> bool:
        """Ask it to turn; False if it has not turned for too long."""
        if self._asked:
            self._looks += 1
            return now - self._asked < STANDS_STILL or self._looks < LOOKS
        if self._tasks or self.runs:
            self._asked = now
            self._loop.call_soon_threadsafe(self._answer)
        return True

    def retire(self, now: float, in_a_call: bool = False) -> None:
        """Start nothing more in it, and hand that back; what has begun there may go on if it can. Tell who blocks it,
        and where."""
        self.retired = True
        for run in list(self.runs):
            for hand in run.stop():
                self._report(hand, UNSTARTED)
            if not run.next:
                self._forget(run)
        if in_a_call:
            self._blocker = self._database.running
            facts, stack = self._facts(now), _stack(self._database.thread)
            logger.error("%s\n%s", line("database_thread_blocked", **facts), stack)
        else:
            task = asyncio.current_task(self._loop)
            self._blocker = None if task is None else self._run_of.get(task)
            facts, stack = self._facts(now), _stack(self._thread)
            logger.error("%s\n%s", line("event_loop_blocked", **facts), stack)

    def _facts(self, now: float) -> dict[str, Any]:
        told: dict[str, Any] = {"stands": now - self._asked} if self._asked else {}
        run = self._blocker
        if run is not None:
            handling, address = self.runs.get(run), run.stream.address
            told["handler"] = "" if handling is None else handling.consumer.name
            told |= {"group": address.group, "topic": address.topic, "partition": address.partition}
            told["offset"] = run.hands[max(0, run.next - 1)].offset
        return {**told, "meaning": "another loop takes over"}

    def blame(self, run: Run, now: float) -> Blame:
        """Tell who is to blame that a run of this loop overruns."""
        if self._database.waits(run):
            return Blame.ANOTHERS
        if not self._asked or now - self._asked < SLOW:
            return Blame.OWN
        if not self.retired:
            return Blame.OPEN
        return Blame.OWN if self._blocker in (run, None) else Blame.ANOTHERS

    def holds_its_thread(self, run: Run) -> bool:
        """Tell whether a run's database call keeps those of the others waiting."""
        return self._database.running is run

    def cancel(self, run: Run) -> None:
        """Cancel a run's task. One that cannot even hear of it is over for everybody else."""
        task = self._tasks.get(run)
        if task is not None:
            self._loop.call_soon_threadsafe(task.cancel)
        if self.retired:
            self._forget(run)

    @property
    def over(self) -> bool:
        """It is retired, and turns with nothing left to do."""
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
