"""The base of background tasks: a thread, an interval, a connection and an error boundary for each; and what keeps one
thread of a process from its work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from django.db import Error, connections

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import message_of, storable
from sqlqueue.database import lock_timeouts, retries, server_identity
from sqlqueue.database.forwarding import GateElsewhere
from sqlqueue.database.log import Log
from sqlqueue.database.writer import LogElsewhere
from sqlqueue.signals import announce, operation_retried

logger = logging.getLogger("sqlqueue")

FAILING: Final = 3  # errors in a row: a database that is restarted causes fewer
FIRST_PAUSE: Final = 0.1  # seconds before the next try; it doubles with each error
LONGEST_PAUSE: Final = 2.0
AGAIN = 300.0  # seconds


def _ignore(error: Error) -> None:
    return None


class Trouble:
    """What keeps a part of a process, whose name operators know, from its work: errors in a row, which it counts, or
    that it is connected to another server than the named one. schema_differs: is called with an error that says that a
    table or a column is missing."""

    def __init__(self, name: str):
        self.name, self.schema_differs = name, _ignore
        self.failures, self._error = 0, ""
        self._writer, self._again_at = "", 0.0  # of the last line that it is elsewhere

    def failed(self, error: BaseException) -> None:
        """Note an error. From any thread."""
        self._error = storable(message_of(error) or type(error).__name__)
        self.failures += 1
        if isinstance(error, Error) and retries.classify(error) is retries.ErrorKind.SCHEMA:
            self.schema_differs(error)

    def elsewhere(self, log: Log, error: server_identity.NotNamedServer) -> None:
        """Note that its thread has looked, and is elsewhere: its next connection may lead to the named server. Log it
        once, and again every five minutes, or if another server is named meanwhile."""
        retries.drop_connection(log)
        now = time.monotonic()
        if error.writer != self._writer or now >= self._again_at:
            self._writer, self._again_at = error.writer, now + AGAIN
            logger.warning(logfmt("not_the_named_server", task=self.name, meaning=error))

    def over(self) -> None:
        """Note that it has succeeded."""
        self.failures, self._writer = 0, ""

    @property
    def pause(self) -> float:
        """Seconds to wait before it is tried again; 0 without an error."""
        return min(FIRST_PAUSE * 2 ** min(self.failures - 1, 10), LONGEST_PAUSE) if self.failures else 0.0

    @property
    def failing(self) -> str:
        """The name and the last error of a part that fails again and again; "" for another."""
        return f"{self.name}: {self._error}" if self.failures >= FAILING else ""


SELDOM: Final = 3600.0  # seconds


class BackgroundTask:
    """A duty that a thread of its own does every `interval` seconds, on a connection of its own; SELDOM, if it is woken
    when there is something to do. operation: does it once, and returns whether the next time should follow at once.
    trouble: its errors in a row."""

    anywhere = False  # whether it may be connected to any server of a cluster, not only to the named one

    def __init__(self, log: Log, name: str, interval: float, operation: Callable[[], bool] = bool):
        self.log, self.name, self.interval, self._operation = log, name, interval, operation
        self._due = threading.Event()
        self._stopping = False
        self.trouble = Trouble(self.name)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sqlqueue-{self.name}", daemon=True)

    def start(self) -> None:
        """Start the thread; the first iteration is at once."""
        self._thread.start()

    def wake(self) -> None:
        """Run the next iteration now."""
        self._due.set()

    def look_every(self, seconds: float) -> None:
        """Use this interval from now on; if it is shorter than before, begin at once."""
        sooner, self.interval = seconds < self.interval, seconds
        if sooner:
            self.wake()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the current iteration; wait up to `timeout` seconds for that."""
        self._stopping = True
        self._stopped.set()
        self._due.set()
        self._thread.join(timeout)

    def run_once(self) -> bool:
        """Run one iteration; return True if the next one should follow at once."""
        return self._operation()

    def forget(self) -> None:
        """Forget what was read before: the database was unreachable, and may have been restarted."""

    def finish(self) -> None:
        """Write, at the end, what is still in memory."""

    def _run(self) -> None:
        try:
            with lock_timeouts.limited(self.log):
                while not self._stopping:
                    more = self._guarded(self.run_once)
                    self._stopped.wait(min(self.trouble.pause, self.interval))  # whatever wakes it
                    if not more and not self._stopping:
                        self._due.wait(self.interval)
                    self._due.clear()
                self._guarded(self.finish)
        finally:
            connections.close_all()

    def _guarded(self, do: Callable[[], bool | None]) -> bool:
        try:
            if retries.close_lost_connections():
                self.forget()
            if not self.anywhere:
                server_identity.lead(self.log)
            more = bool(do())
        except server_identity.NotNamedServer as error:
            self.trouble.elsewhere(self.log, error)
        except (Error, LogElsewhere) as error:
            kind = retries.classify(error)
            if kind is retries.ErrorKind.GONE:
                retries.drop_connection(self.log)
                self.forget()
            if isinstance(error, (GateElsewhere, LogElsewhere)):
                server_identity.forget_session(self.log)  # another server has been named since it was looked at
            self.trouble.failed(error)
            if self.trouble.failures >= FAILING:  # another connection may lead to a server that works
                retries.drop_connection(self.log)
            logger.warning(logfmt("background_task_failed", task=self.name, error_kind=kind.name, error=error))
            facts = {"operation": self.name, "error_kind": kind.name, "error": error}
            announce(operation_retried, BackgroundTask, **facts, database=self.log.label)
        except Exception as error:
            self.trouble.failed(error)
            logger.error(logfmt("background_task_failed", task=self.name, error=error), exc_info=error)
        else:
            self.trouble.over()
            return more
        return False
