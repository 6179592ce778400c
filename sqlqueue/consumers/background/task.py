"""The base of background tasks: a thread, an interval, a connection and an error boundary for each."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from django.db import Error, connections

from sqlqueue.consumers.background.errors import FAILING, NamedServerWarning, Trouble
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import lock_timeouts, retries, server_identity
from sqlqueue.database.forwarding import GateElsewhere
from sqlqueue.database.log import Log
from sqlqueue.database.writer import LogElsewhere
from sqlqueue.signals import announce, operation_retried

logger = logging.getLogger("sqlqueue")


RESERVE = 5  # times as long as usual a process in reserve waits between two iterations


LOOK = 30.0  # seconds between two looks of a task that is told when there is something to do


class BackgroundTask:
    """A duty that a thread of its own does every `interval` seconds, on a connection of its own.

    in_reserve: tells whether another process looks for the same work as often; then this one does so RESERVE times less
    often, unless it is woken. So what an idle duty costs does not grow with the processes as fast as these.
    """

    name = "background-task"
    in_reserve: Callable[[], bool] = staticmethod(lambda: False)
    anywhere = False  # whether it may be connected to any server of a cluster, not only to the named one

    def __init__(self, log: Log, interval: float):
        self.log, self.interval = log, interval
        self._due = threading.Event()
        self._stopping = False
        self._ran_at = 0.0
        self._told: bool | None = None  # None: it never was
        self._trouble = Trouble(self.name)
        self._stopped = threading.Event()
        self._named_server = NamedServerWarning(task=self.name)
        self._thread = threading.Thread(target=self._run, name=f"sqlqueue-{self.name}", daemon=True)

    def start(self) -> None:
        """Start the thread; the first iteration is at once."""
        self._thread.start()

    def wake(self) -> None:
        """Run the next iteration now."""
        self._due.set()

    def tell(self, something: bool) -> None:
        """Tell whether there is something to do, as a poll of the loop has found. While there is nothing, the task
        itself looks seldom. From any thread."""
        self._told = something
        if something and time.monotonic() - self._ran_at >= self.pause:
            self.wake()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the current iteration; wait up to `timeout` seconds for that."""
        self._stopping = True
        self._stopped.set()
        self._due.set()
        self._thread.join(timeout)

    def run_once(self) -> bool:
        """Run one iteration; return True if the next one should follow at once."""
        raise NotImplementedError

    @property
    def pause(self) -> float:
        """Seconds between two iterations now."""
        pause = self.interval * (RESERVE if self.in_reserve() else 1)
        return max(pause, LOOK) if self._told is False else pause

    @property
    def failing(self) -> str:
        """The name and the last error of a task that fails again and again; "" for another."""
        return self._trouble.failing

    def forget(self) -> None:
        """Forget what was read before: the database was unreachable, and may have been restarted."""

    def finish(self) -> None:
        """Write, at the end, what is still in memory."""

    def _run(self) -> None:
        try:
            with lock_timeouts.limited(self.log):
                while not self._stopping:
                    more = self._guarded(self.run_once)
                    self._stopped.wait(min(self._trouble.pause, self.pause))  # whatever wakes it
                    if not more and not self._stopping:
                        self._due.wait(self.pause)
                    self._due.clear()
                self._guarded(self.finish)
        finally:
            connections.close_all()

    def _guarded(self, do: Callable[[], bool | None]) -> bool:
        self._ran_at = time.monotonic()
        try:
            if retries.close_lost_connections():
                self.forget()
            if not self.anywhere:
                server_identity.lead(self.log)
            more = bool(do())
        except server_identity.NotNamedServer as error:
            retries.drop_connection(self.log)
            self._named_server.elsewhere(error)
        except (Error, LogElsewhere) as error:
            kind = retries.classify(error)
            if kind is retries.ErrorKind.GONE:
                retries.drop_connection(self.log)
                self.forget()
            if isinstance(error, (GateElsewhere, LogElsewhere)):
                server_identity.forget_session(self.log)  # another server has been named since it was looked at
            self._trouble.failed(error)
            if self._trouble.failures >= FAILING:  # another connection may lead to a server that works
                retries.drop_connection(self.log)
            logger.warning(logfmt("background_task_failed", task=self.name, error_kind=kind.name, error=error))
            facts = {"operation": self.name, "error_kind": kind.name, "error": error}
            announce(operation_retried, BackgroundTask, **facts, database=self.log.label)
        except Exception as error:
            self._trouble.failed(error)
            logger.error(logfmt("background_task_failed", task=self.name, error=error), exc_info=error)
        else:
            self._named_server.over()
            self._trouble.over()
            return more
        return False
