"""Keeps operations from connections whose sessions change values, see session_values. Each is asked once."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from django.db import connections

from sqlqueue.database.log import Log
from sqlqueue.database.session_values import OF_DRIVER, Change, change
from sqlqueue.exceptions import ConfigurationError

_faithful: WeakSet[Any] = WeakSet()  # the drivers' connections


def refuse_changing_session(log: Log) -> None:
    """Raise ConfigurationError if this thread's connection changes values. A statement for a new connection."""
    connection = connections[log.alias]
    if connection.vendor not in OF_DRIVER or (connection.connection is not None and connection.connection in _faithful):
        return
    if changed := change_of(log):
        raise ConfigurationError(f"DATABASES[{log.alias!r}]: {changed}")
    _faithful.add(connection.connection)


def change_of(log: Log) -> Change | None:
    """Return what this thread's connection changes, if it does. Opens it. One statement."""
    connection = log.connection
    connection.ensure_connection()
    return change(connection.vendor, connection.connection, log.execute)
