"""Server identity: whether the database server is still the one from before a connection was lost.

InnoDB shows a commit to others a moment before it is safe on disk, and so does PostgreSQL where synchronous_commit is
off. A server that crashes in that moment forgets messages that a consumer has read, and gives their offsets to others.
What a consumer knows of the log's end is invalid then: how far it has read, what is final, and what it has dispatched.
What the tables hold is valid: the server's own log of its changes has one order, so every message that a position has
passed is as safe as the position.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from django.db import connections

MARGIN = 3.0  # seconds: uptimes are whole ones, and a contact is noted a moment after it


class ServerChanged(Exception):
    """The server was restarted, or another one has taken its place, or may have."""


class ServerStart(NamedTuple):
    """One start of a server. server: identifies it; uptime: seconds, infinite where `server` also identifies the
    start."""

    server: str
    uptime: float


def look(alias: str) -> ServerStart:
    """Ask the server which one it is; over a new connection if the last one was lost."""
    vendor = connections[alias].vendor
    with connections[alias].cursor() as cursor:
        if vendor == "mysql":
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
            uptime = float(cursor.fetchone()[1])
            cursor.execute("SELECT CONCAT(@@hostname, ':', @@port, ':', @@datadir)")
            return ServerStart(str(cursor.fetchone()[0]), uptime)
        if vendor == "postgresql":
            # Exact times, so no arithmetic with uptimes: when the server started, and when its statistics did. They
            # begin anew when it has recovered from the crash of one of its processes, without a restart of the server
            # itself.
            started = "EXTRACT(EPOCH FROM pg_postmaster_start_time())"
            cursor.execute(f"SELECT {started}, (SELECT EXTRACT(EPOCH FROM stats_reset) FROM pg_stat_bgwriter)")
            return ServerStart(" ".join(map(str, cursor.fetchone())), float("inf"))
    return ServerStart("", float("inf"))  # SQLite has no server, and a commit is on disk before others see it


class ServerIdentity:
    """The server as one thread knows it. doubtful: a connection was lost, and the server was not asked since."""

    def __init__(self, alias: str, clock: Callable[[], float] = time.monotonic):
        self.alias, self._clock = alias, clock
        self.doubtful = False
        self._start: ServerStart | None = None
        self._contact = clock()

    def make_sure(self) -> None:
        """Ask the server if there is doubt, and note the time of this contact. To be called often.

        Raises ServerChanged unless the server has been up since before the last contact.
        """
        if self._start is None:
            self._start = look(self.alias)
        elif self.doubtful:
            silent = self._clock() - self._contact
            before, self._start = self._start, look(self.alias)
            self.doubtful = False
            if before.server != self._start.server or self._start.uptime <= silent + MARGIN:
                self._contact = self._clock()
                raise ServerChanged
        self._contact = self._clock()
