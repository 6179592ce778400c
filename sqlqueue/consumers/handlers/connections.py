"""The connections of a thread that runs handlers: they are checked before a delivery and restored after it, so that no
handler spoils the next delivery. Handlers may use any alias."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from django.db import Error, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from sqlqueue.core import forks
from sqlqueue.database import driver
from sqlqueue.exceptions import BrokenTransaction

CONNECTIONS_LAST = 1.0  # seconds between two checks whether connections still work

now = time.monotonic

T = TypeVar("T")


class ConnectionState(NamedTuple):
    """The transaction state of a connection, as far as it is known without a query."""

    autocommit: bool
    in_atomic_block: bool
    savepoints: int
    transaction: int  # as the driver knows it: 0: none or unknown; 3: a failed one


States = Mapping[Any, ConnectionState]  # of connections that have another state than a new one
NOTHING_OPEN: Final[States] = MappingProxyType({})


class _Thread(threading.local):
    """What is known of a thread's connections. opened: those that it has ever opened; Django's own list costs more than
    a delivery. checked: when they were checked last, in monotonic seconds."""

    checked = 0.0

    def __init__(self) -> None:
        self.opened: list[Any] = list(connections.all(initialized_only=True))


_thread = _Thread()


@receiver(connection_created)
def _note(connection: Any, **_: Any) -> None:
    # Drop closed ones: an operation may open another connection of the same alias for a moment.
    others = [known for known in _thread.opened if known is not connection and known.connection is not None]
    _thread.opened = [*others, connection]


def close_stale_connections() -> None:
    """Close this thread's connections that are too old, as Django's request cycle does, and those that are broken."""
    _thread.checked = now()
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or connection.in_atomic_block:
            continue
        connection.close_if_unusable_or_obsolete()
        # Django trusts a connection without an error so far; the server may have closed it for being idle.
        if connection.connection is not None and not connection.is_usable():
            connection.close()


def next_of(queue: SimpleQueue[T]) -> T:
    """Wait for the next one of a queue; a thread that has been idle for a while closes stale connections first."""
    try:
        return queue.get(timeout=CONNECTIONS_LAST)
    except Empty:
        close_stale_connections()
        return queue.get()


def check_connections() -> None:
    """Close stale connections before a delivery, but at most once a second while deliveries follow each other:
    CONN_MAX_AGE = 0 would otherwise mean a new connection for each of thousands of messages a second."""
    if now() - _thread.checked >= CONNECTIONS_LAST:
        close_stale_connections()


def states() -> States:
    """Return the states of those of this thread's connections that have another one than a new connection."""
    return {connection: state for connection in _thread.opened if (state := _state(connection)) is not None}


def restore(before: States) -> list[str]:
    """Restore every connection of this thread to the state that it had before; return the aliases of those that had
    another one. A connection that has lost its server is closed; one in a transaction or without autocommit is rolled
    back and closed."""
    left: list[str] = []
    for connection in _thread.opened:
        was = before.get(connection)
        if _state(connection) != was:
            left.append(connection.alias)
            if was is None or not was.in_atomic_block:
                _roll_back_and_close(connection)
        elif connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
    return left


def guarded(do: Callable[[Any], Any], given: Any, before: States = NOTHING_OPEN) -> Any:
    """Call a function with connections that work, and restore them to the states `before`; return what it returns. A
    child that it has forked ends here. Raises BrokenTransaction if it has returned and left a connection in another
    state."""
    if now() - _thread.checked >= CONNECTIONS_LAST:
        close_stale_connections()
    forked = forks.generation
    try:
        returned = do(given)
    except BaseException:
        forks.leave_if_forked(forked)
        restore(before)
        raise
    if forks.generation != forked:
        forks.leave_if_forked(forked)
    if left := restore(before):
        raise BrokenTransaction(
            f"the handler returned and left the connection {', '.join(map(repr, left))} in a transaction, or with "
            "another autocommit, than it had, or has ended the transaction that it ran in, perhaps by an error that it "
            "swallowed; what it wrote was rolled back"
        )
    return returned


def _state(connection: Any) -> ConnectionState | None:
    """Return the state of a connection; None for that of a new one: nearly all have it, before a delivery and after
    it."""
    if connection.connection is None:
        return None
    autocommit, transaction = connection.autocommit, 0
    if not connection.closed_in_transaction:
        autocommit, transaction = driver.standing(connection)
        ordinary = autocommit == connection.settings_dict["AUTOCOMMIT"] and not transaction
        if ordinary and not connection.in_atomic_block and not connection.savepoint_ids:
            return None
    return ConnectionState(autocommit, connection.in_atomic_block, len(connection.savepoint_ids), transaction)


def _roll_back_and_close(connection: Any) -> None:
    """Roll a connection back and close it, in any state; its next query opens it again."""
    if connection.closed_in_transaction:
        connection.connection = None
    connection.in_atomic_block = connection.closed_in_transaction = connection.needs_rollback = False
    connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
    connection.commit_on_exit = True
    with suppress(Error):
        connection.rollback()
    with suppress(Error):
        connection.close()
    if connection.connection is not None:  # a SQLite database in memory, which does not close
        connection.set_autocommit(connection.settings_dict["AUTOCOMMIT"])
