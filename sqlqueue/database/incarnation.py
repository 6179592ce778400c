"""Whether the database server is still the one that was talked to before a connection was lost.

InnoDB shows a commit to others a moment before it is safe on disk, and so does PostgreSQL where synchronous_commit is
off. A server that crashes in that moment forgets messages that a consumer has read, and gives their offsets to others.
What a consumer remembers of the log's end is void then: how far it has read, what is final, and whom it has handed out.
What the tables hold is not: the server's own log of its changes has one order, so whatever a position has passed is as
safe as the position.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from django.db import connections

MARGIN = 3.0  # seconds: uptimes are whole ones, and a contact is noted a moment after it


class ServerChanged(Exception):
    """The server was restarted, or another one has taken its place, or may have."""


class Sight(NamedTuple):
    """Which server it is, and for how many seconds it has been up (infinite: `place` tells its starts apart)."""

    place: str
    uptime: float


def look(alias: str) -> Sight:
    """Look at the server; over a new connection if the last one was lost."""
    vendor = connections[alias].vendor
    with connections[alias].cursor() as cursor:
        if vendor == "mysql":
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
            uptime = float(cursor.fetchone()[1])
            cursor.execute("SELECT CONCAT(@@hostname, ':', @@port, ':', @@datadir)")
            return Sight(str(cursor.fetchone()[0]), uptime)
        if vendor == "postgresql":
            # Exact times, so no arithmetic with uptimes: when the server started, and when its statistics did. They
            # begin anew when it has recovered from the crash of one of its processes, which it outlives itself.
            started = "EXTRACT(EPOCH FROM pg_postmaster_start_time())"
            cursor.execute(f"SELECT {started}, (SELECT EXTRACT(EPOCH FROM stats_reset) FROM pg_stat_bgwriter)")
            return Sight(" ".join(map(str, cursor.fetchone())), float("inf"))
    return Sight("", float("inf"))  # SQLite has no server, and a commit is on disk before others see it


class Incarnation:
    """One thread's knowledge of the server. Doubtful after a lost connection, until it has looked again."""

    def __init__(self, alias: str, clock: Callable[[], float] = time.monotonic):
        self.alias, self._clock = alias, clock
        self.doubtful = False
        self._sight: Sight | None = None
        self._contact = clock()

    def make_sure(self) -> None:
        """To be called often while all is well. If there is doubt, look; raise ServerChanged unless the server has been
        up since before it was last spoken to."""
        if self._sight is None:
            self._sight = look(self.alias)
        elif self.doubtful:
            silent = self._clock() - self._contact
            before, self._sight = self._sight, look(self.alias)
            self.doubtful = False
            if before.place != self._sight.place or self._sight.uptime <= silent + MARGIN:
                self._contact = self._clock()
                raise ServerChanged
        self._contact = self._clock()
