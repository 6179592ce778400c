"""Whether the database server is still the one that was talked to before a connection was lost.

InnoDB shows a commit to others a moment before it is safe on disk. A server that crashes in that moment forgets
messages that a consumer has read, and gives their offsets to others. What a consumer remembers of the log's end is void
then: how far it has read, what is final, and whom it has handed out. What the tables hold is not: the log of the
server's changes has one order, so whatever a position has passed is as safe as the position.
"""

from __future__ import annotations

from typing import NamedTuple

from django.db import connections

CLOCK_TOLERANCE = 2.0  # seconds; uptimes are whole ones


class ServerChanged(Exception):
    """The server was restarted, or another one has taken its place."""


class Sight(NamedTuple):
    """What tells a server's incarnation: where it is, when it started (by its own clock), and a number that grows with
    every connection to it."""

    place: str
    started: float
    connection: int

    def is_same(self, later: Sight) -> bool:
        """Tell whether a later sight is of the same incarnation."""
        moved = abs(later.started - self.started) > CLOCK_TOLERANCE
        return self.place == later.place and not moved and later.connection >= self.connection


def look(alias: str) -> Sight:
    """Look at the server; over a new connection if the last one was lost."""
    vendor = connections[alias].vendor
    with connections[alias].cursor() as cursor:
        if vendor == "mysql":
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
            uptime = float(cursor.fetchone()[1])
            cursor.execute("SELECT CONCAT(@@hostname, ':', @@port, ':', @@datadir), UNIX_TIMESTAMP(), CONNECTION_ID()")
            place, now, connection = cursor.fetchone()
            return Sight(str(place), float(now) - uptime, int(connection))
        if vendor == "postgresql":
            cursor.execute("SELECT inet_server_addr()::text, EXTRACT(EPOCH FROM pg_postmaster_start_time())")
            place, started = cursor.fetchone()
            return Sight(str(place), float(started), 0)
    return Sight("", 0.0, 0)  # SQLite has no server


class Incarnation:
    """One thread's knowledge of the server. Doubtful after a lost connection, until it has looked again."""

    def __init__(self, alias: str):
        self.alias = alias
        self.doubtful = False
        self._sight: Sight | None = None

    def make_sure(self) -> None:
        """Look if there is doubt, or never was a look; raise ServerChanged once if the server is not the same."""
        if self._sight is not None and not self.doubtful:
            return
        before, self._sight = self._sight, look(self.alias)
        self.doubtful = False
        if before is not None and not before.is_same(self._sight):
            raise ServerChanged
