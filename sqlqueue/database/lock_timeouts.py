"""Lock timeouts: how long the engine's own threads wait for a lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

# MySQL's own limit is 50 s, longer than a lease. An operation that waits still holds what it has locked: a slot of
# the gate, for which the horizon waits, or a topic. One that gives up releases it, logs that, and is run again.
LIMIT = "SET SESSION innodb_lock_wait_timeout = CAST(LEAST(@@SESSION.innodb_lock_wait_timeout, 5) AS UNSIGNED)"
# PostgreSQL has no limit of its own. For the transaction only: a pooler may give the session to another client next.
# (An operation of a single statement has no timeout: while it waits, it holds nothing.)
LIMIT_TRANSACTION = "SELECT SET_CONFIG('lock_timeout', '5s', TRUE) WHERE CURRENT_SETTING('lock_timeout') = '0'"

_thread = threading.local()


@contextmanager
def limited(alias: str) -> Iterator[None]:
    """Let the connections of this thread wait for a lock for 5 s at most.

    For threads in which only the engine works: a handler's transactions are the application's.
    """
    connection_created.connect(_limit, dispatch_uid="sqlqueue.lock_timeout")
    _thread.limited = True
    if connections[alias].connection is not None:
        _limit(connections[alias])
    try:
        yield
    finally:
        _thread.limited = False


def limit_transaction(alias: str) -> None:
    """Do the same for the transaction that has just begun, where connections have to stay as they are."""
    if connections[alias].vendor == "postgresql" and getattr(_thread, "limited", False):
        with connections[alias].cursor() as cursor:
            cursor.execute(LIMIT_TRANSACTION)


def _limit(connection: Any, **_: object) -> None:
    if connection.vendor == "mysql" and getattr(_thread, "limited", False):
        with connection.cursor() as cursor:
            cursor.execute(LIMIT)
