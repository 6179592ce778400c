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

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.utils.functional import cached_property

from sqlqueue.database.log import Log
from sqlqueue.database.server_session import Session, session_of_mysql, session_of_postgresql
from sqlqueue.database.session import refuse_changing_session
from sqlqueue.exceptions import LeaseLost

CONNECTIONS_TRIED = 10  # to find the named server behind a balancer

PROVEN, REFUTED = -1_000_000, -1_000_001  # in a row that a proven statement returns beside its own


class ServerChanged(LeaseLost):
    """The server was started again, or another one has taken its place."""

    def __init__(self) -> None:
        super().__init__(
            "the database server was started again, or another one has taken its place: nothing was changed"
        )


class SessionReplaced(LeaseLost):
    """A statement ran in another session than the one that was looked at: whether on the same server is not known."""


class NotNamedServer(SessionReplaced):
    """The connection leads to a server of a cluster that is not the named one, and so do others. Consumers are of no
    use there: they do not see who publishes. writer: the named one."""

    def __init__(self, here: str, writer: str) -> None:
        self.writer = writer.removeprefix("-")
        super().__init__(
            f"this is the server {here!r}, and the one that messages enter through is {self.writer!r}: no partition is "
            "served from here"
        )


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


def look(log: Log) -> Session:
    """Ask the server which one it is; over a new connection if the last one was lost. Raises NotNamedServer if the gate
    names another one, and new connections do not lead there either; ConfigurationError if the connection changes
    values."""
    connection: Any = log.connection
    connection.sqlqueue_session = None
    refuse_changing_session(log)
    run = log.execute
    if connection.vendor == "mysql":
        session = _look_at_mysql(log)
    elif connection.vendor == "postgresql":
        connection.ensure_connection()
        session = session_of_postgresql(run, connection.pg_version, not connection.in_atomic_block)
    else:
        session = Session("")
    connection.sqlqueue_session = (connection.connection, session)
    return session


def lead(log: Log) -> None:
    """Where the gate names a server, let this thread's connection lead to that one. No statement for one that does.
    Raises NotNamedServer if none can be found that does."""
    if log.has_writer:
        session_of_connection(log)


def forget_session(log: Log) -> None:
    """Look again before the next statement that matters."""
    connection: Any = log.connection
    connection.sqlqueue_session = None


def session_of_connection(log: Log) -> Session:
    """Return the session of this thread's connection; look at it if it is new."""
    connection: Any = log.connection
    known: tuple[Any, Session] | None = getattr(connection, "sqlqueue_session", None)
    if known is not None and known[0] is connection.connection and known[0] is not None:
        return known[1]
    return look(log)


def _look_at_mysql(log: Log) -> Session:
    connection: Any = log.connection
    elsewhere: list[Any] = []
    try:
        for _ in range(CONNECTIONS_TRIED):
            session = session_of_mysql(log.execute, connection.mysql_is_mariadb)
            log.has_writer = log.has_writer or bool(session.writer)
            if session.writer in ("", session.here):
                return session
            if connection.in_atomic_block or session.writer == f"-{session.here}":
                break  # no connection may be changed; or nothing is to be acquired before the log is open
            # Kept until another one is found: a balancer would lead to the server with the fewest connections again.
            elsewhere.append(connection.connection)
            connection.connection = None
        raise NotNamedServer(session.here, session.writer)
    finally:
        for each in elsewhere:
            with suppress(Exception):
                each.close()


class ServerIdentity:
    """The server on which leases were taken, and from which everything was read. It is looked at once; then statements
    prove that they run on it, in any thread.

    doubtful: a statement has not proven it, and the server was not looked at since.
    """

    def __init__(self, log: Log):
        self.log = log
        self.doubtful = False

    # Django's: that of functools has, before Python 3.12, one lock for all servers, and keeps it while one is asked.
    @cached_property
    def session(self) -> Session:
        """The session in which the server was looked at first: of two threads' looks the one that ended first."""
        found: Session = self.__dict__.setdefault("session", session_of_connection(self.log))
        return found

    @property
    def identity(self) -> str:
        """The identity as text; "" on SQLite."""
        return self.session.identity

    def make_sure(self) -> None:
        """Look at the server if there is doubt. To be called often, by the thread that owns the leases.

        Raises ServerChanged if the server is another one, or was started again.
        """
        known = self.session
        if self.doubtful:
            self.doubtful = look(self.log).identity != known.identity
            if self.doubtful:
                raise ServerChanged

    def proof(self) -> tuple[str, tuple[object, ...]]:
        """Return SQL that holds only where it runs on this server, with its parameters; "" if there is none.

        Raises ServerChanged if this thread's connection is known to lead to another one.
        """
        if self.session.shared:
            return self.session.text, self.session.values
        session = session_of_connection(self.log)
        if session.identity != self.session.identity:
            self.doubtful = True
            raise ServerChanged
        return session.text, session.values

    def confirm(self) -> None:
        """Raise SessionReplaced (or ServerChanged) unless this thread's connection still leads to this server: one
        statement. A transaction in which it is the last statement has run here."""
        text, values = self.proof()
        if text and not self.log.execute(f"SELECT CASE WHEN {text} THEN 1 ELSE 0 END", values).fetchone()[0]:
            self.refuted()

    def proven(self, text: str, values: Sequence[object], columns: int, at: int) -> tuple[str, Sequence[object]]:
        """Return a SELECT, and its parameters, that also gives a row which says whether this server runs it.

        columns: how many it has; at: the place of one of whole numbers, never below REFUTED.
        """
        proof, its = self.proof()
        if not proof:
            return text, values
        said = f"CASE WHEN {proof} THEN {PROVEN} ELSE {REFUTED} END"
        branch = ", ".join(said if column == at else "NULL" for column in range(columns))
        return f"{text} UNION ALL SELECT {branch}", (*values, *its)

    def accept(self, rows: Sequence[Any], at: int) -> Sequence[Any]:
        """Return the rows of a proven statement without the one that says who has run it. Raises SessionReplaced or
        ServerChanged if another server has."""
        if not self.session.text:
            return rows
        if rows and rows[-1][at] == PROVEN:
            return rows[:-1]
        if all(row[at] != PROVEN for row in rows):
            self.refuted()
        return [row for row in rows if row[at] != PROVEN]

    def refuted(self) -> None:
        """Note that a statement has not proven this server. Always raises SessionReplaced."""
        self.doubtful = True
        forget_session(self.log)
        raise SessionReplaced(
            "a statement has run in a session, or on a server, that was not known: its result is not used"
        )


def select(
    log: Log, text: str, values: Sequence[object], server: ServerIdentity | None, columns: int, at: int
) -> Sequence[Any]:
    """Run a SELECT; return its rows, those of this server alone if one is given: see ServerIdentity.proven()."""
    if server is None or not server.identity:
        rows: Sequence[Any] = log.execute(text, values).fetchall()
        return rows
    if "ORDER BY" in text and " UNION ALL " not in text:
        text = log.dialect.branch.format(text)
    text, values = server.proven(text, values, columns, at)
    return server.accept(log.execute(text, values).fetchall(), at)
