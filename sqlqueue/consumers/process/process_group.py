"""The consumer processes of one log: which are to be started, and what is written of those that died."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from django.db import Error, connections

from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.log import Log, home_log
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.heartbeat import in_doubt

logger = logging.getLogger("sqlqueue")

FIRST_PAUSE = 0.2  # seconds before a process that died is replaced
SETTLED_IN = 60.0  # seconds that a successor has to live until a death is no longer shown


class ProcessGroup:
    """What befalls one log's processes holds up no other's. log: None if there is only one.

    wanted: processes, minus those that have drained everything; pending: when to start the next ones; died_at_start:
    processes, one after another. Times are monotonic seconds.
    """

    def __init__(self, log: Log | None, processes: int):
        self.log, self.wanted, self.pending = log, processes, [0.0] * processes
        self.pause, self.died_at_start = FIRST_PAUSE, 0
        self._log = log or home_log()
        self._died_at: dict[str, float] = {}  # by the subscriber whose heartbeat says how it died

    @property
    def label(self) -> str:
        """The alias of its database; "" if there is only one."""
        return self._log.label

    def take_due(self, now: float) -> int:
        """Return how many processes are to be started now; they are not pending any more."""
        due = sum(at <= now for at in self.pending)
        self.pending = [at for at in self.pending if at > now]
        return due

    def record_death(self, subscriber: str, exit_status: int, restart_in: float | None) -> None:
        """Free the leases of a dead process now, before they expire, and leave in its heartbeat how it died. Without a
        successor (None) its heartbeat is removed. A database that does not answer is logged."""
        try:
            doubt = in_doubt(self._log, subscriber)
            release.free(self._log, subscriber)
            if restart_in is None:
                heartbeat.leave(self._log, subscriber)
            else:
                heartbeat.record_death(self._log, subscriber, exit_status, restart_in, doubt)
                self._died_at[subscriber] = time.monotonic()
        except Error as error:
            logger.warning(logfmt("leases_not_freed", subscriber=subscriber, error=error, meaning="they expire"))
        finally:
            connections.close_all()

    def forget_deaths(self, successors: Iterable[float]) -> None:
        """Remove the heartbeats of those that died before one of these successors was started, in a thread: the
        supervisor does not wait for a database that hangs. successors: when those were started that have worked for
        SETTLED_IN."""
        latest = max(successors, default=0.0)
        if over := [subscriber for subscriber, at in self._died_at.items() if at <= latest]:
            for subscriber in over:
                del self._died_at[subscriber]
            threading.Thread(target=self._remove, args=(over,), daemon=True).start()

    def forget_all_deaths(self) -> None:
        """Remove the heartbeats of all of them: no successor comes."""
        over, self._died_at = list(self._died_at), {}
        if over:
            self._remove(over)

    def _remove(self, subscribers: list[str]) -> None:
        try:
            for subscriber in subscribers:
                heartbeat.leave(self._log, subscriber)
        except Error as error:
            logger.warning(logfmt("heartbeats_not_removed", error=error, meaning="another process does so later"))
        finally:
            connections.close_all()
