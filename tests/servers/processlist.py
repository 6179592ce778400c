"""What a database server knows of its connections, asked over the calling thread's own: who waits for a lock, who is
gone."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from typing import Any

from django.db import connection as own
from django.db import connections

from tests.servers.session import connection_id, isolate, wait_for_locks

GONE_TIMEOUT = 30.0
PATIENCE = 20  # seconds for which a connection waits for a lock: longer than a test lets one stand there


class Sessions:
    """Where connections wait for each other's locks, and can be ended from outside."""

    separate = True  # a connection can be lost while both its ends live

    def identify(self, connection: Any) -> int:
        """Return the number by which the server knows a connection."""
        raise NotImplementedError

    def waiting(self) -> set[int]:
        """Return those that wait for a lock in this moment."""
        raise NotImplementedError

    def kill(self, session: int) -> None:
        """End a connection from outside, whatever it does; it may be gone already."""
        raise NotImplementedError

    def is_there(self, session: int) -> bool:
        """Tell whether a connection is still known: once it is not, its transaction has been rolled back."""
        raise NotImplementedError

    def others(self) -> set[int]:
        """Return all connections to this database but the calling thread's."""
        raise NotImplementedError

    def prepare(self, isolation: str) -> None:
        """Set how long the calling thread's connection waits for a lock, and its isolation level."""
        wait_for_locks(PATIENCE)
        isolate(isolation)

    def impatient(self, statement: str) -> str:
        """Return a statement that fails at once where it would have to wait for a lock, if the server has such."""
        return statement

    def holds_up(self, connection: Any, statement: str, others: list[Any]) -> bool:
        """Tell whether a statement would be tried again and again without end while these stand where they do."""
        return False

    def end(self, session: int) -> None:
        """End a connection from outside, and return when its transaction has been rolled back."""
        if self.is_there(session):
            self.kill(session)
        deadline = time.monotonic() + GONE_TIMEOUT
        while self.is_there(session):
            assert time.monotonic() < deadline, f"connection {session} does not go"
            time.sleep(0.001)


def _fetch(text: str, *values: object) -> list[tuple[Any, ...]]:
    with own.cursor() as cursor:
        cursor.execute(text, values)
        return list(cursor.fetchall())


class _OfMySQL(Sessions):
    def identify(self, connection: Any) -> int:
        return int(connection.connection.thread_id())

    def kill(self, session: int) -> None:
        try:
            with own.cursor() as cursor:
                cursor.execute(f"KILL CONNECTION {session}")
        except Exception as error:
            if getattr(error, "args", (0,))[0] != 1094:  # ER_NO_SUCH_THREAD
                raise

    def is_there(self, session: int) -> bool:
        return bool(_fetch("SELECT 1 FROM information_schema.processlist WHERE id = %s", session))

    def others(self) -> set[int]:
        text = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        return {int(session) for (session,) in _fetch(text)}


class OfMariaDB(_OfMySQL):
    """MariaDB."""

    _transaction = re.compile(r"^---TRANSACTION .*?(?=^---|\Z)", re.MULTILINE | re.DOTALL)
    _waits = re.compile(r"^LOCK WAIT .*?thread id (\d+)", re.MULTILINE | re.DOTALL)

    def waiting(self) -> set[int]:
        """From the engine's own report: the tables of information_schema are up to 0.1 s old."""
        ((_, _, report),) = _fetch("SHOW ENGINE INNODB STATUS")
        transactions = report.partition("LIST OF TRANSACTIONS FOR EACH SESSION:")[2]
        blocks = self._transaction.findall(transactions)
        return {int(found[1]) for block in blocks if (found := self._waits.search(block))}

    def impatient(self, statement: str) -> str:
        # Not what skips locked rows, and never waits: with such a time limit it fails for another reason (1180).
        if "SKIP LOCKED" in statement or not statement.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
            return statement
        return f"SET STATEMENT innodb_lock_wait_timeout = 0 FOR {statement}"


class OfMySQL(_OfMySQL):
    """MySQL."""

    def waiting(self) -> set[int]:
        text = """
            SELECT t.PROCESSLIST_ID FROM performance_schema.data_lock_waits w
            JOIN performance_schema.threads t ON t.THREAD_ID = w.REQUESTING_THREAD_ID
        """
        return {session for (session,) in _fetch(text)}


class OfPostgreSQL(Sessions):
    """PostgreSQL."""

    def identify(self, connection: Any) -> int:
        return int(connection.connection.info.backend_pid)

    def waiting(self) -> set[int]:
        return {session for (session,) in _fetch("SELECT pid FROM pg_locks WHERE NOT granted")}

    def kill(self, session: int) -> None:
        _fetch("SELECT pg_terminate_backend(%s)", session)

    def is_there(self, session: int) -> bool:
        return bool(_fetch("SELECT 1 FROM pg_stat_activity WHERE pid = %s", session))

    def others(self) -> set[int]:
        text = "SELECT pid FROM pg_stat_activity WHERE datname = CURRENT_DATABASE() AND pid <> PG_BACKEND_PID()"
        return {int(session) for (session,) in _fetch(text)}


class OfSQLite(Sessions):
    """SQLite has no server. A writer that finds another one writing sleeps and tries again: that is told beforehand,
    so that none has to sleep."""

    separate = False

    def identify(self, connection: Any) -> int:
        return 0

    def waiting(self) -> set[int]:
        return set()

    def is_there(self, session: int) -> bool:
        return False

    def prepare(self, isolation: str) -> None:
        with own.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")

    def holds_up(self, connection: Any, statement: str, others: list[Any]) -> bool:
        writes = not connection.connection.in_transaction and not statement.lstrip(" (\n").startswith("SELECT")
        return writes and any(other.connection is not None and other.connection.in_transaction for other in others)


def sessions() -> Sessions:
    """Return those of the database that the tests run on."""
    if own.vendor == "mysql":
        return OfMariaDB() if own.mysql_is_mariadb else OfMySQL()
    return OfPostgreSQL() if own.vendor == "postgresql" else OfSQLite()


def end_this_threads_connection() -> None:
    """Let the server end the calling thread's connection, which is idle. A pooler's clients have none: there the way to
    the pooler is cut."""
    if os.environ.get("POOLER"):
        own.ensure_connection()
        with socket.socket(fileno=os.dup(own.connection.pgconn.socket)) as way:
            way.shutdown(socket.SHUT_RDWR)
        return
    session = connection_id()

    def end() -> None:
        sessions().end(session)
        connections.close_all()

    other = threading.Thread(target=end)
    other.start()
    other.join()
