"""The connections of a thread in which handlers run: that they work before a delivery, and that no handler leaves one
behind that would spoil the next delivery. Handlers may use any alias."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple

from django.db import Error, connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from sqlqueue.database import driver
from sqlqueue.exceptions import BrokenTransaction

CONNECTIONS_LAST = 1.0  # seconds between two looks at whether connections still work

now = time.monotonic
_care = threading.local()


class State(NamedTuple):
    """How a connection stands, as far as it can be told without asking the server."""

    autocommit: bool
    in_atomic_block: bool
    savepoints: int
    transaction: int  # as the driver knows it: 0 none, or not told; 3: a failed one


def close_stale_connections() -> None:
    """Close this thread's connections that are too old, as Django's request cycle does, and those that are broken."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or connection.in_atomic_block:
            continue
        connection.close_if_unusable_or_obsolete()
        # Django trusts a connection that has met no error yet; the server may have ended it for being idle.
        if connection.connection is not None and not connection.is_usable():
            connection.close()


def care_for_connections() -> None:
    """Close stale connections before a delivery, but at most once a second while deliveries follow each other:
    CONN_MAX_AGE = 0 would otherwise mean a new connection for each of thousands of messages a second."""
    moment = now()
    if moment - getattr(_care, "taken", 0.0) >= CONNECTIONS_LAST:
        _care.taken = moment
        close_stale_connections()


@receiver(connection_created)
def _note(connection: Any, **_: Any) -> None:
    # Closed ones go: a verb may open one of its own, of the same alias, for a moment.
    others = [known for known in _opened() if known is not connection and known.connection is not None]
    _care.opened = [*others, connection]


def _opened() -> list[Any]:
    """Return the connections that this thread has ever opened. Django's own list would cost more than a delivery."""
    try:
        return _care.opened
    except AttributeError:
        _care.opened = list(connections.all(initialized_only=True))
        return _care.opened


def states() -> dict[Any, State]:
    """Return how those of this thread's connections stand that are not idle."""
    return {connection: _state(connection) for connection in _opened() if not _is_idle(connection)}


def restore(before: dict[Any, State]) -> list[str]:
    """Let every connection of this thread stand as it did before; return what was wrong. What has lost its server is
    closed, and so is, rolled back, what is inside a transaction or has autocommit off."""
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


class Undisturbed:
    """Entered around a handler. At its end the thread's connections are restored; raises BrokenTransaction if one had
    to be rolled back and the handler has raised nothing itself."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = states()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        left = restore(self._before)
        if left and error is None:
            raise BrokenTransaction(f"the handler returned and left {', '.join(left)}; what it wrote was rolled back")


def _idle(connection: Any) -> State:
    """Return how a connection stands that is fresh, or not open."""
    return State(connection.settings_dict["AUTOCOMMIT"], False, 0, 0)


def _is_idle(connection: Any) -> bool:
    """Tell whether a connection stands as a fresh one: nearly all do, before a delivery and after it."""
    if connection.connection is None:
        return True
    if connection.in_atomic_block or connection.savepoint_ids or connection.closed_in_transaction:
        return False
    return driver.standing(connection) == (connection.settings_dict["AUTOCOMMIT"], 0)


def _state(connection: Any) -> State:
    autocommit, transaction = connection.autocommit, 0
    if not connection.closed_in_transaction:
        autocommit, transaction = driver.standing(connection)
    return State(autocommit, connection.in_atomic_block, len(connection.savepoint_ids), transaction)


def _difference(before: State, after: State) -> str:
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
    """Whatever state it is in; its next query opens it anew."""
    if connection.closed_in_transaction:
        connection.connection = None
    connection.in_atomic_block = connection.closed_in_transaction = connection.needs_rollback = False
    connection.savepoint_ids, connection.atomic_blocks, connection.run_on_commit = [], [], []
    connection.commit_on_exit = True
    with suppress(Error):
        connection.rollback()
    with suppress(Error):
        connection.close()
    if connection.connection is not None:  # SQLite's in memory, which does not close
        connection.set_autocommit(connection.settings_dict["AUTOCOMMIT"])
