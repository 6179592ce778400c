"""Server identity: whether a statement runs on the server, and its start, from which a process knows what it knows.

After a failover a server may lack what its predecessor has confirmed, and so may one that has crashed: InnoDB shows a
commit to others a moment before it is safe on disk, and so does PostgreSQL where synchronous_commit is off. Such a
server gives the offsets of the messages that it lacks to others. What a process has read is invalid then: how far it
has read, what is final, what it has dispatched; and so are its fencing tokens, which the new server may know as well.
What the tables hold is valid: a server's log of its changes has one order, so what a position has passed is as safe as
the position.

Connections are replaced unnoticed: by Django after CONN_MAX_AGE, by a proxy at any time. So each statement that matters
compares the identity of the server that runs it. An identity changes whenever data may have gone back, and never comes
back. SQLite has no server, and a commit is on disk before others see it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from sqlqueue.database.statements import execute
from sqlqueue.exceptions import LeaseLost

# Neither a server's name nor its identifier changes when it is started again, and no expression gives its start, except
# this one, in all but its last 24 bits: a counter. Once it has counted to 16 million the start seems to be a second
# later: a change that is none, and costs no more than one.
START = "UUID_SHORT() >> 24"
# A variable of the session: another one, to which a proxy leads the connection, does not have it. The server makes the
# value: a proxy that repeats the statement in another session sets another one.
SET_SESSION = "SET @sqlqueue_session = UUID()"
AGE = f"UNIX_TIMESTAMP() - CAST(({START}) & 4294967295 AS SIGNED)"  # seconds
LOOK_MYSQL = f"SELECT {AGE}, @sqlqueue_session, 'server_uuid', @@server_uuid, {START}, @@hostname, @@port, @@datadir"
# MariaDB has the identifier from some release of each series on.
LOOK_MARIADB = f"""
    SELECT {AGE}, @sqlqueue_session, (SELECT LOWER(VARIABLE_NAME) FROM INFORMATION_SCHEMA.GLOBAL_VARIABLES
    WHERE VARIABLE_NAME = 'server_uid'), (SELECT VARIABLE_VALUE FROM INFORMATION_SCHEMA.GLOBAL_VARIABLES
    WHERE VARIABLE_NAME = 'server_uid'), {START}, @@hostname, @@port, @@datadir, @@server_id
"""
# Only a primary has a timeline of its own; pg_control_checkpoint() shows the old one for a while after a promotion. The
# statistics begin anew when the server has recovered from the crash of one of its processes, without a new start.
POSTGRESQL = """
    CONCAT(EXTRACT(EPOCH FROM PG_POSTMASTER_START_TIME()), ' ', {crash}CASE WHEN PG_IS_IN_RECOVERY() THEN 'standby'
    ELSE {timeline} END)
"""
TIMELINE = "SUBSTR(PG_WALFILE_NAME(PG_CURRENT_WAL_INSERT_LSN()), 1, 8)"
# Where these functions may not be called (SQLSTATEs: they are withdrawn, or not supported), starts alone are compared:
# a standby has one of its own, so a promotion shows, but not what else begins a timeline without a start.
NOT_TO_BE_CALLED = ("42501", "0A000")
NO_TIMELINE = "'primary'"
CRASH = "EXTRACT(EPOCH FROM PG_STAT_GET_BGWRITER_STAT_RESET_TIME()), ' ', "
CHEAP_STATISTICS = 150_000  # PostgreSQL 14 reads a file for them

YOUNG = 20  # tenths of a second for which a server is looked at that has just been started

PROVEN, REFUTED = -1_000_000, -1_000_001  # in a row that a proven statement returns beside its own


class ServerChanged(LeaseLost):
    """The server was started again, or another one has taken its place."""

    def __init__(self) -> None:
        super().__init__(
            "the database server was started again, or another one has taken its place: nothing was changed"
        )


class SessionReplaced(LeaseLost):
    """A statement ran in another session than the one that was looked at: whether on the same server is not known."""


class Session(NamedTuple):
    """A connection's session. text: SQL that holds in no other one, "" where there is no server; values: its
    parameters; shared: it holds in all sessions of the server, and on no other server."""

    identity: str
    text: str = ""
    values: tuple[object, ...] = ()
    shared: bool = True


def proof_condition(server: ServerIdentity | None) -> tuple[str, tuple[object, ...]]:
    """Return the end of a WHERE that holds on this server only, with its parameters; "" if nothing is compared.

    Raises ServerChanged if this thread's connection is known to lead to another one.
    """
    proof, values = ("", ()) if server is None else server.proof()
    return f" AND {proof}" if proof else "", values


def proof_column(server: ServerIdentity | None) -> tuple[str, tuple[object, ...]]:
    """Return a column more of a SELECT, which is 1 on this server only, with its parameters. As proof_condition()."""
    proof, values = ("", ()) if server is None else server.proof()
    return f", CASE WHEN {proof} THEN 1 ELSE 0 END" if proof else "", values


def look(alias: str) -> Session:
    """Ask the server which one it is; over a new connection if the last one was lost."""
    connection: Any = connections[alias]
    connection.sqlqueue_session = None
    if connection.vendor == "mysql":
        execute(alias, SET_SESSION)
        text = LOOK_MARIADB if connection.mysql_is_mariadb else LOOK_MYSQL
        for _ in range(YOUNG):
            age, mark, variable, server, *rest = execute(alias, text).fetchone()
            if age:  # its next start will be in another second than this one; below 0: its clock was set back
                break
            time.sleep(0.1)
        if variable is None:
            variable, server = "server_id", rest[-1]
        identity = " ".join(map(str, (server, *rest)))
        session = Session(identity, f"@sqlqueue_session = %s AND @@{variable} = %s", (mark, server), shared=False)
    elif connection.vendor == "postgresql":
        session = _look_at_postgresql(alias)
    else:
        session = Session("")
    connection.sqlqueue_session = (connection.connection, session)
    return session


def _look_at_postgresql(alias: str) -> Session:
    connection: Any = connections[alias]
    connection.ensure_connection()
    text = POSTGRESQL.strip().replace("{crash}", CRASH if connection.pg_version >= CHEAP_STATISTICS else "")
    expression = text.replace("{timeline}", TIMELINE)
    try:
        (identity,) = execute(alias, f"SELECT {expression}").fetchone()
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", "") not in NOT_TO_BE_CALLED or connection.in_atomic_block:
            raise
        expression = text.replace("{timeline}", NO_TIMELINE)
        (identity,) = execute(alias, f"SELECT {expression}").fetchone()
    return Session(identity, f"{expression} = %s", (identity,))


class ServerIdentity:
    """The server on which leases were taken, and from which everything was read. It is looked at once; then statements
    prove that they run on it, in any thread.

    doubtful: a statement has not proven it, and the server was not looked at since.
    """

    def __init__(self, alias: str):
        self.alias = alias
        self.doubtful = False
        self._session: Session | None = None

    @property
    def identity(self) -> str:
        """The identity as text; "" on SQLite."""
        return self._known().identity

    def make_sure(self) -> None:
        """Look at the server if there is doubt. To be called often, by the thread that owns the leases.

        Raises ServerChanged if the server is another one, or was started again.
        """
        if self.doubtful:
            found = look(self.alias)
            self.doubtful = False
            if found.identity != self._known().identity:
                self.doubtful = True
                raise ServerChanged
        else:
            self._known()

    def proof(self) -> tuple[str, tuple[object, ...]]:
        """Return SQL that holds only where it runs on this server, with its parameters; "" if there is none.

        Raises ServerChanged if this thread's connection is known to lead to another one.
        """
        known = self._known()
        if known.shared:
            return known.text, known.values
        session = self._of_this_connection()
        if session.identity != known.identity:
            self.doubtful = True
            raise ServerChanged
        return session.text, session.values

    def confirm(self) -> None:
        """Raise SessionReplaced (or ServerChanged) unless this thread's connection still leads to this server: one
        statement. A transaction in which it is the last statement has run here."""
        text, values = self.proof()
        if text and not execute(self.alias, f"SELECT CASE WHEN {text} THEN 1 ELSE 0 END", values).fetchone()[0]:
            self.refuted()

    def select(self, text: str, values: Sequence[object], columns: int, at: int) -> Sequence[Any]:
        """Run a SELECT; return its rows. Raises SessionReplaced or ServerChanged if another server has run it.

        columns: how many it has; at: the place of one of whole numbers, never below REFUTED.
        """
        text, values = self.proven(text, values, columns, at)
        return self.accept(execute(self.alias, text, values).fetchall(), at)

    def proven(self, text: str, values: Sequence[object], columns: int, at: int) -> tuple[str, Sequence[object]]:
        """Return a SELECT, and its parameters, that also gives a row which says whether this server runs it."""
        proof, its = self.proof()
        if not proof:
            return text, values
        said = f"CASE WHEN {proof} THEN {PROVEN} ELSE {REFUTED} END"
        branch = ", ".join(said if column == at else "NULL" for column in range(columns))
        return f"{text} UNION ALL SELECT {branch}", (*values, *its)

    def accept(self, rows: Sequence[Any], at: int) -> Sequence[Any]:
        """Return the rows of a proven statement without the one that says who has run it. Raises as `select`."""
        if not self._known().text:
            return rows
        if rows and rows[-1][at] == PROVEN:
            return rows[:-1]
        if all(row[at] != PROVEN for row in rows):
            self.refuted()
        return [row for row in rows if row[at] != PROVEN]

    def refuted(self) -> None:
        """Note that a statement has not proven this server. Always raises SessionReplaced."""
        self.doubtful = True
        connection: Any = connections[self.alias]
        connection.sqlqueue_session = None
        raise SessionReplaced(
            "a statement has run in a session, or on a server, that was not known: its result is not used"
        )

    def _known(self) -> Session:
        if self._session is None:
            self._session = self._of_this_connection()
        return self._session

    def _of_this_connection(self) -> Session:
        connection: Any = connections[self.alias]
        known: tuple[Any, Session] | None = getattr(connection, "sqlqueue_session", None)
        if known is not None and known[0] is connection.connection and known[0] is not None:
            return known[1]
        return look(self.alias)
