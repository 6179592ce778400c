"""The state of a connection as the driver knows it, without asking the server."""

from __future__ import annotations

import selectors
from typing import Any

IN_TRANSACTION, FAILED = 2, 3  # of psycopg's TransactionStatus


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
