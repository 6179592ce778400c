"""The sequence of the log's offsets: none is ever issued twice.

A group never reads below its position. So if the sequence falls back, what is published next is never delivered. It
falls back where SQLite rebuilds a table (a migration), where a server is restored without its sequences or is replaced
by one that lacks the last transactions, and by TRUNCATE.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.apps import apps
from django.db import Error

from sqlqueue.core.partition.writes import MOST_AHEAD
from sqlqueue.database.insert_sql import HORIZON
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError

LOG = "sqlqueue_message"
# MySQL's and MariaDB's. MySQL's may be a day old, unless the session wants the present one.
NEXT = "SELECT AUTO_INCREMENT FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s"
MOST_AGE = "@@SESSION.INFORMATION_SCHEMA_STATS_EXPIRY"  # seconds
SERIAL = f"PG_GET_SERIAL_SEQUENCE('{LOG}', 'offset')"  # PostgreSQL's name of it
MAY = "SELECT HAS_SEQUENCE_PRIVILEGE(%s, %s)"  # of PostgreSQL, any of several rights
READ, SET = "USAGE, SELECT", "UPDATE"  # who may insert into the log needs neither
DENIED = 1142  # a statement, by MySQL
USER = {  # as GRANT wants it
    "postgresql": "SELECT QUOTE_IDENT(CURRENT_USER)",
    "mysql": "SELECT CONCAT(QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', 1)), '@',"
    " QUOTE(SUBSTRING_INDEX(CURRENT_USER(), '@', -1)))",
}
# Columns that hold offsets which may have left the log; an app's AppConfig names its own in `offset_columns`. Small
# tables, or (receipts) the end of an index.
KNOWN = (
    ("sqlqueue_message", "offset", ""),
    ("sqlqueue_offset", "position", ""),
    ("sqlqueue_offset", "claimed_to", ""),
    ("sqlqueue_consumer_group", "start", ""),
    ("sqlqueue_receipt", "message_offset", ""),
    ("sqlqueue_topic", "purged_to", ""),
    ("sqlqueue_topic", "collected_to", ""),
    ("sqlqueue_publish_gate", "value", f" WHERE slot = {HORIZON}"),  # at or below which consumers expect nothing new
)
CLAIMS = "sqlqueue_offset.claimed_to"
MAY_NOT = "the database's user may not raise the sequence of offsets: "
MAY_NOT_READ = "the database's user may not read the sequence of offsets: "


class Mark(NamedTuple):
    """known: the highest offset in the tables; column: the one that holds it; last_issued: by the sequence; certain:
    the highest of which the tables show that it was issued, for a claim may be ahead of the log."""

    known: int
    column: str
    last_issued: int
    certain: int

    @property
    def fell_back(self) -> bool:
        """Tell whether an offset would be issued a second time."""
        return self.certain > self.last_issued


def look(log: Log) -> Mark:
    """Compare the sequence with the offsets in the tables. Raises ConfigurationError if the database's user may not
    read it. Six statements at most."""
    looks = [
        f"SELECT '{table}.{column}', COALESCE(MAX(\"{column}\"), 0) FROM {table}{only}"
        for table, column, only in (*KNOWN, *_of_apps(log))
    ]
    found = log.execute(" UNION ALL ".join(looks)).fetchall()
    column, known = max(found, key=lambda row: row[1])
    certain = max(value - MOST_AHEAD * (name == CLAIMS) for name, value in found)
    return Mark(known, column, last_issued(log), certain)


def _of_apps(log: Log) -> list[tuple[str, str, str]]:
    """Return the columns of the apps' tables that are there: an app may be migrated after the queue."""
    found = [column for app in apps.get_app_configs() for column in getattr(app, "offset_columns", ())]
    present = log.connection.introspection.table_names() if found else []
    return [(table, column, only) for table, column, only in found if table in present]


def last_issued(log: Log) -> int:
    """Return the last offset that the sequence has given, 0 if none."""
    vendor = log.connection.vendor
    if vendor == "mysql":
        with _present_statistics(log):
            (following,) = log.execute(NEXT, (LOG,)).fetchone()
        return (following or 1) - 1
    if vendor == "postgresql":
        (name,) = log.execute(f"SELECT {SERIAL}").fetchone()
        require_right(log, name, READ, MAY_NOT_READ)  # some versions say NULL to those who may not
        return log.execute("SELECT PG_SEQUENCE_LAST_VALUE(CAST(%s AS REGCLASS))", (name,)).fetchone()[0] or 0
    row = log.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", (LOG,)).fetchone()
    return row[0] or 0 if row else 0


@contextmanager
def _present_statistics(log: Log) -> Iterator[None]:
    """Let INFORMATION_SCHEMA tell what is so now. (SHOW CREATE TABLE does, in a text that depends on sql_mode.)"""
    if log.connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        yield
        return
    (age,) = log.execute(f"SELECT {MOST_AGE}").fetchone()
    log.execute(f"SET {MOST_AGE} = 0")
    try:
        yield
    finally:
        log.execute(f"SET {MOST_AGE} = {age:d}")


def catch_up(log: Log) -> None:
    """Raise the sequence to the highest known offset. At worst it leaves a gap, so it may run beside publishers. Raises
    ConfigurationError if the database's user may not."""
    mark = look(log)
    if mark.known <= mark.last_issued:
        return
    vendor = log.connection.vendor
    if vendor == "mysql":  # which ignores a value that is below the table's highest
        try:
            log.execute(f"ALTER TABLE {LOG} AUTO_INCREMENT = {mark.known + 1:d}")
        except Error as error:
            if error.args[0] != DENIED:
                raise
            raise ConfigurationError(MAY_NOT + _granted(log, "ALTER, CREATE, INSERT ON", LOG)) from error
    elif vendor == "postgresql":
        (name,) = log.execute(f"SELECT {SERIAL}").fetchone()
        require_right(log, name, SET, MAY_NOT)
        log.execute("SELECT SETVAL(%s, %s)", (name, mark.known))
    else:
        _raise_on_sqlite(log, LOG, mark.known)


def require_right(log: Log, name: str, any_of: str, may_not: str) -> None:
    """Raise ConfigurationError, with what may not be done and how to grant it, where this user has none of these rights
    on a sequence of PostgreSQL."""
    if log.connection.vendor == "postgresql" and not log.execute(MAY, (name, any_of)).fetchone()[0]:
        raise ConfigurationError(may_not + _granted(log, f"{any_of} ON SEQUENCE", name))


def _granted(log: Log, right: str, name: str) -> str:
    (user,) = log.execute(USER[log.connection.vendor]).fetchone()
    return f"run this as the owner of the tables, or let the owner run GRANT {right} {name} TO {user}"


def _raise_on_sqlite(log: Log, table: str, value: int) -> None:
    """sqlite_sequence has no unique key, and no row for a table that was always empty."""
    changed = log.execute("UPDATE sqlite_sequence SET seq = MAX(seq, %s) WHERE name = %s", (value, table))
    if not changed.rowcount:
        log.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", (table, value))


@contextmanager
def kept(connection: Any) -> Iterator[None]:
    """Leave SQLite's sequences where they were: Django changes a table there by making another, whose sequence begins
    behind the rows that are left."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, seq FROM sqlite_sequence WHERE name LIKE %s", ["sqlqueue_%"])
        before = cursor.fetchall()
    yield
    present = set(connection.introspection.table_names())
    for table, value in before:
        if table in present:
            _raise_on_sqlite(Log.of(connection.alias), table, value)
