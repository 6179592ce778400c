"""Session settings that change values between Python and the server: operations are kept from sessions that have one.
Each is asked once.

Values are sent, read and compared. The character sets are compared by their names as well: where all of them are the
same wrong one, a text comes back as it was sent, and is another one in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any
from weakref import WeakSet

from django.core.checks import CheckMessage, Error
from django.db import connections

from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError

TIME = datetime(2001, 2, 3, 4, 5, 6, 789_012, tzinfo=timezone.utc)
SENT = TEXT, BYTES = ("é😀'\"\\", b"\0\xff'\\")
# The server's names of its character sets come last.
TRIAL = {
    "mysql": """
        SELECT %s, '', CAST(%s AS BINARY), TIMESTAMP('2001-02-03 04:05:06.789012'), 7, 0.5E0,
        @@character_set_client, @@character_set_connection, @@character_set_results
    """,
    "postgresql": """
        SELECT CAST(%s AS TEXT), '', CAST(%s AS BYTEA), TIMESTAMPTZ '2001-02-03 04:05:06.789012+00', 7,
        CAST(0.5 AS FLOAT8), CURRENT_SETTING('client_encoding')
    """,
}
EXPECTED = {
    "mysql": (TEXT, "", BYTES, TIME.replace(tzinfo=None), 7, 0.5),
    "postgresql": (TEXT, "", BYTES, TIME, 7, 0.5),
}
OF_DRIVER = {"mysql": "utf8mb4", "postgresql": "utf-8"}  # the only character set that changes no text
OF_SERVER = {"mysql": "utf8mb4", "postgresql": "UTF8"}
CHARACTERS = {
    "mysql": "Set OPTIONS['charset'] = 'utf8mb4', which is Django's default, and let nothing on the way change it.",
    "postgresql": "Leave client_encoding out of OPTIONS, for Django sets it to UTF8, and let nothing change it.",
}
VALUES = {
    "mysql": "Leave use_unicode, conv and cursorclass out of OPTIONS, and let sql_mode be STRICT_TRANS_TABLES.",
    "postgresql": "Leave DateStyle (ISO) out of OPTIONS['options'], ALTER ROLE … SET, ALTER DATABASE … SET, and SET.",
}

_unaltered: WeakSet[Any] = WeakSet()  # the drivers' connections that change nothing


def refuse_changing_session(log: Log) -> None:
    """Raise ConfigurationError if this thread's connection changes values. A statement for a new connection."""
    connection = connections[log.alias]
    if connection.vendor not in TRIAL or (connection.connection is not None and connection.connection in _unaltered):
        return
    if changed := change_of(log):
        raise ConfigurationError(f"{changed.msg}. {changed.hint}")
    _unaltered.add(connection.connection)


def change_of(log: Log) -> CheckMessage | None:
    """Return E047 if this thread's connection changes values: which ones, and what to write. Opens it. One statement.

    The driver may call the character set otherwise than the server does, where a proxy stands between them.
    """
    connection: Any = log.connection
    connection.ensure_connection()
    vendor, driver = connection.vendor, connection.connection
    if vendor not in TRIAL:
        return None
    name = driver.character_set_name() if vendor == "mysql" else driver.info.encoding
    if name != OF_DRIVER[vendor]:
        return _character_sets(log, [name])
    try:
        row = log.execute(TRIAL[vendor], SENT).fetchone()
    except (UnicodeError, NotImplementedError) as error:  # the latter: of psycopg, for times
        hints = CHARACTERS if isinstance(error, UnicodeError) else VALUES
        return _changed(log, f"values cannot be read: {error}", hints)
    if type(row) is not tuple:
        return _changed(log, f"rows are read as {type(row).__name__}, not as tuple", VALUES)
    expected = EXPECTED[vendor]
    # A connection that reads no texts has the names as bytes.
    names = [name for name in row[len(expected) :] if not isinstance(name, bytes)]
    if set(names) - {OF_SERVER[vendor]}:
        return _character_sets(log, names)
    for value, wanted in zip(row, expected):
        if not _same(value, wanted):
            return _changed(log, f"values change on their way: {wanted!r} is read as {value!r}", VALUES)
    return None


def _character_sets(log: Log, names: Iterable[object]) -> CheckMessage:
    named = " and ".join(dict.fromkeys(map(str, names)))
    text = f"the connection's character set is {named}: texts with characters that it lacks are changed, or refused"
    return _changed(log, text, CHARACTERS)


def _changed(log: Log, text: str, hints: Mapping[str, str]) -> CheckMessage:
    return Error(f"alias {log.alias!r}: {text}", hint=hints[log.connection.vendor], id="sqlqueue.E047")


def _same(value: object, wanted: object) -> bool:
    if isinstance(value, datetime) and isinstance(wanted, datetime) and wanted.tzinfo is not None:
        return True  # it can be read; the queue's statements ask for UTC, whatever the session's zone is
    return type(value) is type(wanted) and value == wanted
