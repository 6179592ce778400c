"""The connections of a thread that runs handlers: they are checked before a delivery and restored after it, so that no
handler spoils the next delivery. Handlers may use any alias."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from django.db import Error, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from sqlqueue.core import forks
from sqlqueue.database import driver, forked_connections  # noqa: F401  which knows what is opened
from sqlqueue.exceptions import BrokenTransaction

CONNECTIONS_LAST = 1.0  # seconds between two checks whether connections still work

now = time.monotonic
_care = threading.local()


class ConnectionState(NamedTuple):
    """The transaction state of a connection, as far as it is known without a query."""

    autocommit: bool
    in_atomic_block: bool
    savepoints: int
    transaction: int  # as the driver knows it: 0: none or unknown; 3: a failed one


def close_stale_connections() -> None:
    """Close this thread's connections that are too old, as Django's request cycle does, and those that are broken."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or connection.in_atomic_block:
            continue
        connection.close_if_unusable_or_obsolete()
        # Django trusts a connection without an error so far; the server may have closed it for being idle.
        if connection.connection is not None and not connection.is_usable():
            connection.close()


def care_for_connections(moment: float | None = None) -> None:
    """Close stale connections before a delivery, but at most once a second while deliveries follow each other:
    CONN_MAX_AGE = 0 would otherwise mean a new connection for each of thousands of messages a second. moment: now, if
    the caller knows it."""
    moment = moment or now()
    if moment - getattr(_care, "taken", 0.0) >= CONNECTIONS_LAST:
        _care.taken = moment
        close_stale_connections()


@receiver(connection_created)
def _note(connection: Any, **_: Any) -> None:
    # Drop closed ones: an operation may open another connection of the same alias for a moment.
    others = [known for known in _opened() if known is not connection and known.connection is not None]
    _care.opened = [*others, connection]


def _opened() -> list[Any]:
    """Return the connections that this thread has ever opened. Django's own list costs more than a delivery."""
    try:
        return _care.opened
    except AttributeError:
        _care.opened = list(connections.all(initialized_only=True))
        return _care.opened


def states() -> dict[Any, ConnectionState]:
    """Return the states of those of this thread's connections that are not idle."""
    opened = _opened()
    return {connection: _state(connection) for connection in opened if not _is_idle(connection)} if opened else {}


def restore(before: dict[Any, ConnectionState]) -> list[str]:
    """Restore every connection of this thread to the state that it had before; return what was wrong. A connection that
    has lost its server is closed; one in a transaction or without autocommit is rolled back and closed."""
    left: list[str] = []
    for connection in _opened():
        was, now_is = before.get(connection), None if _is_idle(connection) else _state(connection)  # None: idle
        if now_is != was:
            difference = _difference(was or _idle(connection), now_is or _idle(connection))
            left.append(f"the connection {connection.alias!r} {difference}")
            if was is None or not was.in_atomic_block:
                _roll_back_and_close(connection)
        elif connection.errors_occurred and not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
    return left


def undisturbed(handler: Callable[[Any], Any], given: Any) -> Any:
    """Call a handler inside what Undisturbed is, at half its cost: for every message. Return what it returns. A child
    that it has forked ends here."""
    before, process = states(), forks.generation
    try:
        returned = handler(given)
    except BaseException:
        forks.leave_if_forked(process)
        restore(before)
        raise
    forks.leave_if_forked(process)
    if left := restore(before):
        raise _broken(left)
    return returned


class Undisturbed:
    """A context around a handler: at its end the thread's connections are restored. Raises BrokenTransaction if one had
    to be rolled back and the handler has not raised. A child that was forked inside ends there."""

    __slots__ = ("_before", "_process")

    def __enter__(self) -> None:
        self._before, self._process = states(), forks.generation

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        forks.leave_if_forked(self._process)
        left = restore(self._before)
        if left and error is None:
            raise _broken(left)


def _broken(left: Sequence[str]) -> BrokenTransaction:
    return BrokenTransaction(f"the handler returned and left {', '.join(left)}; what it wrote was rolled back")


def _idle(connection: Any) -> ConnectionState:
    """Return the state of a connection that is new, or not open."""
    return ConnectionState(connection.settings_dict["AUTOCOMMIT"], False, 0, 0)


def _is_idle(connection: Any) -> bool:
    """Return whether a connection has the state of a new one: nearly all do, before a delivery and after it."""
    if connection.connection is None:
        return True
    if connection.in_atomic_block or connection.savepoint_ids or connection.closed_in_transaction:
        return False
    return driver.standing(connection) == (connection.settings_dict["AUTOCOMMIT"], 0)


def _state(connection: Any) -> ConnectionState:
    autocommit, transaction = connection.autocommit, 0
    if not connection.closed_in_transaction:
        autocommit, transaction = driver.standing(connection)
    return ConnectionState(autocommit, connection.in_atomic_block, len(connection.savepoint_ids), transaction)


def _difference(before: ConnectionState, after: ConnectionState) -> str:
    if after.in_atomic_block and (not before.in_atomic_block or after.savepoints > before.savepoints):
        return "inside an atomic block"
    if after.autocommit != before.autocommit:
        return f"with autocommit {'on' if after.autocommit else 'off'}"
    if after.transaction == driver.FAILED:
        return "in a transaction that has failed: an error in it was swallowed"
    if after.transaction > before.transaction:
        return "inside a transaction"
    return "outside of its own transaction, which an error that it swallowed has rolled back, or its SQL has ended"


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
