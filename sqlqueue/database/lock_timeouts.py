"""Lock timeouts: how long the engine's threads and changes of tables wait for a lock, and statements that never wait.

A table is locked by LOCK TABLES, and by ALTER TABLE and other changes of its definition, which also let all others wait
while they wait themselves for a transaction that has read it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, OperationalError
from django.db.backends.signals import connection_created

from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.log import Log

# MySQL's own limit is 50 s, longer than a lease. An operation that waits still holds what it has locked: a slot of
# the gate, for which the horizon waits, or a topic. One that gives up releases it, logs that, and is run again.
LIMIT = (
    "SET SESSION innodb_lock_wait_timeout = CAST(LEAST(@@SESSION.innodb_lock_wait_timeout, 5) AS UNSIGNED),"
    " SESSION lock_wait_timeout = CAST(LEAST(@@SESSION.lock_wait_timeout, 5) AS UNSIGNED)"
)
# PostgreSQL has no limit of its own. For the transaction only: a pooler may give the session to another client next.
# (An operation of a single statement has no timeout: while it waits, it holds nothing.)
LIMIT_TRANSACTION = "SELECT SET_CONFIG('lock_timeout', %s, TRUE) WHERE CURRENT_SETTING('lock_timeout') = '0'"
# For a single statement of which others do not wait.
BRIEFLY = "SELECT SET_CONFIG('lock_timeout', %s, TRUE)"
NOT_GRANTED = (1205, 3024, "55P03")  # the last two: MAX_EXECUTION_TIME, lock_not_available

# Of a change of a table: it waits for seconds only, lets the others go on, and tries again a few times.
WAIT = 3  # seconds that a statement waits for a table, and publishers behind it
PAUSE = 1.0  # seconds between two tries, for the publishers
TRIES = 5
LIMIT_CHANGE = "SET SESSION lock_wait_timeout = CAST(LEAST(@@SESSION.lock_wait_timeout, %s) AS UNSIGNED)"
RESTORE = "SET SESSION lock_wait_timeout = %s"

_thread = threading.local()


class TableLocked(OperationalError):
    """Another session has locked a table that a statement does not wait for."""


def unless_locked(log: Log, text: str, parameters: Any = (), *, seconds: float) -> list[tuple[Any, ...]]:
    """Run one statement, and return its rows; raise TableLocked in place of waiting for a table's lock.

    seconds: for which it waits at most, where the server has no statement that does not wait at all; one that writes
    waits a second on MySQL. Inside a transaction it waits like any other statement.
    """
    connection = log.connection
    if connection.in_atomic_block or not connection.get_autocommit():
        return _rows(log, text, parameters)
    try:
        if connection.vendor != "postgresql":
            return _rows(log, log.dialect.unless_locked(text, seconds), parameters)
        with log.atomic():
            _rows(log, BRIEFLY, (f"{seconds * 1000:.0f}ms",))
            return _rows(log, text, parameters)
    except Error as error:
        cause = error.__cause__
        if (getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)) in NOT_GRANTED:
            raise TableLocked(str(error)) from cause
        raise


def _rows(log: Log, text: str, parameters: Any) -> list[tuple[Any, ...]]:
    cursor = log.execute(text, parameters)
    return cursor.fetchall() if cursor.description else []


@contextmanager
def limited(log: Log) -> Iterator[None]:
    """Let the connections of this thread wait for a lock for 5 s at most.

    For threads in which only the engine works: a handler's transactions are the application's.
    """
    _thread.limited = True
    connection = log.connection
    if connection.connection is not None:
        try:
            _limit(connection)
        except Error:
            if connection.in_atomic_block:
                raise
            connection.close()  # it was lost meanwhile; the next one is limited when it is made
    try:
        yield
    finally:
        _thread.limited = False


def limit_transaction(log: Log) -> None:
    """Do the same for the transaction that has just begun, where connections have to stay as they are."""
    if log.connection.vendor == "postgresql" and getattr(_thread, "limited", False):
        log.execute(LIMIT_TRANSACTION, ("5s",))


def _limit(connection: Any, **_: object) -> None:
    if connection.vendor == "mysql" and getattr(_thread, "limited", False):
        with connection.cursor() as cursor:
            cursor.execute(LIMIT)


# Once: the signal keeps something for each call, though it connects a receiver once.
connection_created.connect(_limit, dispatch_uid="sqlqueue.lock_timeout")


# -- changes of tables -------------------------------------------------------------------------------------------------


@contextmanager
def brief_waits(connection: Any, tables: Sequence[str], name: str) -> Iterator[None]:
    """Let statements wait briefly for these tables, which they change. name: of what changes them, for the CommandError
    that is raised if one is in use for too long."""
    try:
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT @@SESSION.lock_wait_timeout")
                (before,) = cursor.fetchone()
                cursor.execute(LIMIT_CHANGE, [WAIT])
                try:
                    # A migration is no transaction there: one that finds the tables in use should not even begin.
                    if tables and not connection.in_atomic_block:
                        _touch(cursor, tables)
                    with connection.execute_wrapper(_insist):
                        yield
                finally:
                    cursor.execute(RESTORE, [before])
        else:
            if connection.vendor == "postgresql" and connection.in_atomic_block:
                with connection.cursor() as cursor:
                    cursor.execute(LIMIT_TRANSACTION, [f"{WAIT}s"])
            yield
    except Error as error:
        if classify(error) is not ErrorKind.CONTENTION:
            raise
        raise CommandError(
            f"{name} waited too long for a table: a transaction that has used it is still open, and "
            f"publishers must not wait behind a migration. End it, or wait for it, and migrate again. ({error})"
        ) from error


def _touch(cursor: Any, tables: Sequence[str]) -> None:
    """Have these tables alone for a moment. Raises the database's error if they are not to be had in time."""
    try:
        _insist(cursor.execute, "LOCK TABLES " + ", ".join(f"{table} WRITE" for table in tables))
    except Error as error:
        if classify(error) is ErrorKind.CONTENTION:
            raise
        return  # without the privilege (LOCK TABLES), or in a cluster: then it shows at the first change
    cursor.execute("UNLOCK TABLES")


def _insist(execute: Callable[..., Any], *arguments: Any) -> Any:
    """Execute a statement; try again, some times, if it did not get what it waited for."""
    for left in reversed(range(TRIES)):
        try:
            return execute(*arguments)
        except Error as error:
            if not left or classify(error) is not ErrorKind.CONTENTION:
                raise
            time.sleep(PAUSE)
    raise AssertionError("unreachable")
