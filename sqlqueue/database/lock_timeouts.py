"""Lock timeouts: how long the engine's own threads wait for a lock, and statements that do not wait for one.

A table is locked by LOCK TABLES, and by ALTER TABLE and other changes of its definition, which also let all others wait
while they wait themselves for a transaction that has read it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, OperationalError
from django.db.backends.signals import connection_created

from sqlqueue.database.log import Log

# MySQL's own limit is 50 s, longer than a lease. An operation that waits still holds what it has locked: a slot of
# the gate, for which the horizon waits, or a topic. One that gives up releases it, logs that, and is run again.
LIMIT = (
    "SET SESSION innodb_lock_wait_timeout = CAST(LEAST(@@SESSION.innodb_lock_wait_timeout, 5) AS UNSIGNED),"
    " SESSION lock_wait_timeout = CAST(LEAST(@@SESSION.lock_wait_timeout, 5) AS UNSIGNED)"
)
# PostgreSQL has no limit of its own. For the transaction only: a pooler may give the session to another client next.
# (An operation of a single statement has no timeout: while it waits, it holds nothing.)
LIMIT_TRANSACTION = "SELECT SET_CONFIG('lock_timeout', '5s', TRUE) WHERE CURRENT_SETTING('lock_timeout') = '0'"
# For a single statement of which others do not wait.
BRIEFLY = "SELECT SET_CONFIG('lock_timeout', %s, TRUE)"
NOT_GRANTED = (1205, 3024, "55P03")  # the last two: MAX_EXECUTION_TIME, lock_not_available

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
        log.execute(LIMIT_TRANSACTION)


def _limit(connection: Any, **_: object) -> None:
    if connection.vendor == "mysql" and getattr(_thread, "limited", False):
        with connection.cursor() as cursor:
            cursor.execute(LIMIT)


# Once: the signal keeps something for each call, though it connects a receiver once.
connection_created.connect(_limit, dispatch_uid="sqlqueue.lock_timeout")
