"""Deaths of consumer processes: what a supervisor writes of them, and until when."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db import Error, connections

from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.log import Log, home_log
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.heartbeat import in_doubt

logger = logging.getLogger("sqlqueue")

SETTLED_IN = 60.0  # seconds that a successor has to live until a death is no longer shown


@dataclass(slots=True)
class Deaths:
    """The processes of one database, of this alias, that died and whose heartbeats still say how."""

    log: Log
    _at: dict[str, float] = field(default_factory=dict)  # when, by subscriber; monotonic seconds

    def record(self, subscriber: str, exit_status: int, restart_in: float | None) -> None:
        """Free the leases of a dead process now, before they expire, and leave in its heartbeat how it died. Without a
        successor (None) its heartbeat is removed. A database that does not answer is logged."""
        try:
            doubt = in_doubt(self.log, subscriber)
            release.free(self.log, subscriber)
            if restart_in is None:
                heartbeat.leave(self.log, subscriber)
            else:
                heartbeat.record_death(self.log, subscriber, exit_status, restart_in, doubt)
                self._at[subscriber] = time.monotonic()
        except Error as error:
            logger.warning(logfmt("leases_not_freed", subscriber=subscriber, error=error, meaning="they expire"))
        finally:
            connections.close_all()

    def forget(self, successors: Iterable[float]) -> None:
        """Remove the heartbeats of those that died before one of these successors was started, in a thread: the
        supervisor does not wait for a database that hangs. successors: when those were started that have worked for
        SETTLED_IN."""
        latest = max(successors, default=0.0)
        if over := [subscriber for subscriber, at in self._at.items() if at <= latest]:
            for subscriber in over:
                del self._at[subscriber]
            threading.Thread(target=self._remove, args=(over,), daemon=True).start()

    def forget_all(self) -> None:
        """Remove the heartbeats of all of them: no successor comes."""
        over, self._at = list(self._at), {}
        if over:
            self._remove(over)

    def _remove(self, subscribers: list[str]) -> None:
        try:
            for subscriber in subscribers:
                heartbeat.leave(self.log, subscriber)
        except Error as error:
            logger.warning(logfmt("heartbeats_not_removed", error=error, meaning="another process does so later"))
        finally:
            connections.close_all()


def of_database(log: Log | None) -> Deaths:
    """Return what keeps the deaths of a database's processes. log: None if there is only one."""
    return Deaths(log or home_log())
