"""Keeps operations from connections whose sessions change values, see session_values. Each is asked once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from sqlqueue.database.log import Log
from sqlqueue.database.session_values import OF_DRIVER, Change, change, of_character_sets
from sqlqueue.exceptions import ConfigurationError

_faithful: WeakSet[Any] = WeakSet()  # the drivers' connections


def refuse_changing_session(log: Log) -> None:
    """Raise ConfigurationError if this thread's connection changes values. A statement for a new connection."""
    connection = log.connection
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


def change_by_options(vendor: str, options: Mapping[str, Any]) -> Change | None:
    """Return what a connection with these OPTIONS would change, as far as they say it: MySQL's character set. (Django
    lets no option say PostgreSQL's.)"""
    name = options.get("charset", OF_DRIVER["mysql"]) if vendor == "mysql" else None
    return None if name in (None, OF_DRIVER["mysql"]) else of_character_sets(vendor, [name])
