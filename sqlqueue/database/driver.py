"""Connections as their drivers know them, without asking the server, and what a forked child does with its copies.

The connections of a process in which the engine runs are its own: a child that it forks abandons its copies, and
opens others. Python deletes, in the child, what the parent's other threads have, before any code of the child runs; and
a connection that is deleted tells the server that it ends, over the socket that the parent goes on using. So all of
them are held from before the fork on.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from django.db import connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from sqlqueue.core import forks

if TYPE_CHECKING:
    from sqlqueue.database.log import Log

ROWS_AT_ONCE = 100  # of streamed(): in memory besides what its reader keeps
# An unbuffered result is sent as it is read: its reader may be busy with what it has for longer than a minute.
LONG_WRITES = ("SET SESSION net_write_timeout = 3600", "SET SESSION net_read_timeout = 3600")
IN_TRANSACTION, FAILED = 2, 3  # of psycopg's TransactionStatus

_lock = threading.Lock()
_opened: WeakSet[Any] = WeakSet()  # Django's connections, of all threads
_held: dict[int, list[Any]] = {}  # by the thread that forks; in its child for good


def standing(connection: Any) -> tuple[bool, int]:
    """Return whether autocommit is on, and the transaction, as the driver knows them."""
    raw, vendor = connection.connection, connection.vendor
    if vendor == "mysql":
        try:
            return bool(raw.get_autocommit()), 0
        except Exception:  # it is closed: then there is nothing to tell
            return connection.autocommit, 0
    elif vendor == "sqlite":
        return connection.autocommit, IN_TRANSACTION if raw.in_transaction else 0
    elif vendor == "postgresql":
        status = int(raw.info.transaction_status)
        return connection.autocommit, status if status in (IN_TRANSACTION, FAILED) else 0
    return connection.autocommit, 0


def may_be_lost(connection: Any) -> bool:
    """Tell whether a connection that has rested has to be asked whether it still works.

    PostgreSQL says so when it ends a connection, as does what stands in between: then there is something to read. Where
    there is nothing, no statement is needed to find out. MySQL's question is none.
    """
    if connection.vendor != "postgresql" or connection.connection.closed:
        return True
    with selectors.DefaultSelector() as waiting:
        waiting.register(connection.connection.fileno(), selectors.EVENT_READ)
        return bool(waiting.select(0))


def allow_slow_reads(log: Log) -> None:
    """Let the reader of streamed() rest for up to an hour between two rows."""
    if log.connection.vendor == "mysql":
        for statement in LONG_WRITES:
            log.execute(statement)


def streamed(log: Log, text: str, values: Sequence[object]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a query as they come, a hundred at a time; a result of any size needs no memory here."""
    connection: Any = log.connection
    connection.ensure_connection()
    # Where such a cursor lives on PostgreSQL.
    with log.atomic() if connection.vendor == "postgresql" else nullcontext():
        if connection.vendor == "mysql":
            from MySQLdb.cursors import SSCursor

            cursor = connection.connection.cursor(SSCursor)
        else:
            cursor = connection.chunked_cursor()
        cursor.execute(log.dialect.sql(text), tuple(values))
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield list(rows)
        cursor.close()


def abandon(vendor: str, raw: Any) -> None:
    """Lead what a driver's connection writes from now on nowhere: its socket is that of a parent process, too. Closing
    it, or deleting it, would tell the server that it ends."""
    with suppress(Exception):  # it is closed
        socket = raw.fileno() if vendor == "mysql" else raw.pgconn.socket if vendor == "postgresql" else -1
        if socket >= 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, socket, inheritable=False)
            os.close(nowhere)


@receiver(connection_created)
def _note(connection: Any, **_: Any) -> None:
    with _lock:
        _opened.add(connection)


def _hold() -> None:
    if forks.hosts():
        with _lock:
            opened = list(_opened)
        _held[threading.get_ident()] = [(one, one.connection) for one in opened if one.connection is not None]


def _release() -> None:
    _held.pop(threading.get_ident(), None)


def _abandon() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have had it
    held = _held.get(threading.get_ident())
    if held is None:
        return
    for connection, raw in list(held):
        abandon(connection.vendor, raw)
        pools: dict[str, Any] = getattr(type(connection), "_connection_pools", {})
        held.append(dict(pools))
        pools.clear()  # so that Django makes others
    for connection in connections.all(initialized_only=True):
        held.append(connection)
        del connections[connection.alias]


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_abandon)
