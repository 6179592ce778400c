"""What differs by vendor, in words that the statements are composed of. Needs no Django.

A statement is standard SQL, its keywords and functions in CAPITALS and its identifiers in small letters: whatever is in
small letters is quoted for the server, since its next version may reserve any word. It has these words in braces: {now}
the database's clock; {later} the same plus a parameter in microseconds; {earlier} minus one; {greatest}, {least};
{true}, {false}; {div} divides whole numbers; {share}, {update} row locks; {skip} skip locked rows; {by_stream},
{by_offset} the index of the log to use, {by_receipt} that of the receipts, {by_due} that of the scheduled messages:
left to itself an optimizer that sees ORDER BY offset LIMIT may walk the primary key through all other topics' messages,
which costs more the longer the history is. {by_id} any table's primary key, {then} a join that looks its right side up
for each row of its left side: a statement that locks may not scan, for it would wait for, or take, rows that are none
of its business. {beyond} what a stream has above an offset, {within} the same up to another one, ORDER BY {by_place}:
for those who cannot be told the index, in a form that no other index serves; their parameters are Dialect.place();
{by_place_down} is the same backwards. {minute} is the present minute's beginning; {begun} that of the transaction,
where a guard goes by it; {bytes} how many payload and headers have.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from functools import cache
from typing import Any, ClassVar

from sqlqueue.exceptions import InvalidMessage

NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # in JSON text: an escape, not an escaped backslash before "u0000"
# A text, a "quoted" identifier, or a bare one; not the s of %s.
IDENTIFIER = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|(?<![%\w])[a-z_][a-z0-9_]*""")

BEYOND = 'topic = %s AND "partition" = %s AND priority = %s AND "offset" > %s'
PLACES = {
    "beyond": BEYOND,
    "within": BEYOND + ' AND "offset" <= %s',
    "by_place": '"offset"',
    "by_place_down": '"offset" DESC',
}


class Dialect:
    """One vendor's way of saying things."""

    vendor: ClassVar[str]
    words: ClassVar[dict[str, str]]
    quote: ClassVar[str] = '"'
    branch: ClassVar[str]  # one SELECT with its own LIMIT inside a UNION ALL
    writers: ClassVar[AbstractContextManager[Any]] = nullcontext()  # what a thread holds while it writes
    gated: ClassVar[bool] = True  # publishers need the gate: offsets can become visible out of order
    rows_of_one_insert: ClassVar[int] = 1_000

    def sql(self, text: str) -> str:
        """Return a statement in this vendor's words."""
        return _composed(self.vendor, text)

    def place(self, topic: str, partition: int, priority: int, low: int, *high: int) -> tuple[object, ...]:
        """Return the parameters of {beyond}; of {within} with `high`."""
        return (topic, partition, priority, low, *high)

    def check_json(self, text: str, kind: str) -> None:
        """Raise InvalidMessage for JSON that this vendor's columns refuse."""

    def remaining(self, column: str) -> str:
        """Return SQL for the seconds until the time in a column, negative if it is past."""
        raise NotImplementedError

    def epoch(self, column: str) -> str:
        """Return SQL for a time column in whatever form the driver reads fastest."""
        return column

    def microseconds(self, column: str) -> str:
        """Return SQL for a time column as whole microseconds since 1970, in UTC."""
        raise NotImplementedError

    def json_text(self, column: str) -> str:
        """Return SQL for a JSON column as text."""
        return column

    def time(self, at: datetime) -> object:
        """Return an aware time as a time column holds it: UTC, whatever the connection's time zone is."""
        return at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")

    def upsert(self, conflict: str, updates: dict[str, str], where: str = "") -> str:
        """Return the clause that updates instead of inserting a duplicate. updates: column to SQL, in which {new:x} is
        the value that was to be inserted; where: keep the old row unless this holds."""
        raise NotImplementedError

    def ignore(self, conflict: str) -> str:
        """Return the clause that changes nothing where the row is there already."""
        raise NotImplementedError

    def delete(self, table: str, key: str, rows: int, also: Sequence[str] = ()) -> str:
        """Return the statement that deletes so many rows by their unique key, and touches no other row. Parameters: a
        `key` for each row, then the values of the columns `also`, which complete the unique key."""
        columns = "".join(f' AND "{column}" = %s' for column in also)
        return f'DELETE FROM {table} WHERE "{key}" IN ({_marks(rows)}){columns}'

    def lock_free(self, table: str, key: str, rows: int) -> str:
        """Return the statement that locks those of so many rows which nobody else has locked, without waiting, and
        gives their unique keys. Parameters: a `key` for each row."""
        return f'SELECT "{key}" FROM {table} WHERE "{key}" IN ({_marks(rows)}){{skip}}'


def _marks(rows: int) -> str:
    return ", ".join(["%s"] * rows)


@cache
def _composed(vendor: str, text: str) -> str:
    kind = DIALECTS[vendor]
    for word, meaning in kind.words.items():
        text = text.replace("{" + word + "}", meaning)

    def quoted(found: re.Match[str]) -> str:
        name = found[0]
        return name if name[0] == "'" else kind.quote + name.strip('"`') + kind.quote

    return IDENTIFIER.sub(quoted, text)


def _new_values(sql: str, form: str) -> str:
    before, found, rest = sql.partition("{new:")
    if not found:
        return sql
    column, _, after = rest.partition("}")
    return before + form.format(column) + _new_values(after, form)


class MySQL(Dialect):
    """MySQL 8 and 9, MariaDB from 10.6."""

    vendor = "mysql"
    quote = "`"
    branch = "({})"
    words: ClassVar = {
        **PLACES,
        "now": "UTC_TIMESTAMP(6)",
        "later": "UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND",
        "earlier": "UTC_TIMESTAMP(6) - INTERVAL %s MICROSECOND",
        "minute": "TIMESTAMP(UTC_DATE(), MAKETIME(HOUR(UTC_TIME()), MINUTE(UTC_TIME()), 0))",
        "greatest": "GREATEST",
        "least": "LEAST",
        "true": "1",
        "false": "0",
        "share": " LOCK IN SHARE MODE",
        "update": " FOR UPDATE",
        "skip": " FOR UPDATE SKIP LOCKED",
        "by_stream": " FORCE INDEX (sqlqueue_message_fetch)",
        "by_offset": " FORCE INDEX (PRIMARY)",
        "by_due": " FORCE INDEX (sqlqueue_scheduled_due)",
        "by_receipt": " FORCE INDEX (sqlqueue_receipt_message)",
        "by_id": " FORCE INDEX (PRIMARY)",
        "then": "STRAIGHT_JOIN",
        "div": "DIV",
        "begun": "NULL",
        "bytes": "LENGTH(payload) + COALESCE(LENGTH(headers), 0)",
    }

    def remaining(self, column: str) -> str:
        """TIMESTAMPDIFF gives whole microseconds."""
        return f"TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {column}) / 1000000"

    def epoch(self, column: str) -> str:
        """A number: the driver would spend more on a datetime than on all other columns."""
        return self.microseconds(column)

    def microseconds(self, column: str) -> str:
        """TIMESTAMPDIFF knows no time zones, and the columns hold UTC."""
        return f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {column})"

    def upsert(self, conflict: str, updates: dict[str, str], where: str = "") -> str:
        """Assignments are done from left to right: a column that `where` reads must be the last."""
        parts = []
        for column, sql in updates.items():
            value = _new_values(sql, "VALUES({})")
            parts.append(f"{column} = IF({where}, {value}, {column})" if where else f"{column} = {value}")
        return "ON DUPLICATE KEY UPDATE " + ", ".join(parts)

    def ignore(self, conflict: str) -> str:
        """Not INSERT IGNORE: that would also cut what is too long, and swallow every other error."""
        column = conflict.split(",")[0].strip()
        return f"ON DUPLICATE KEY UPDATE {column} = {column}"

    def delete(self, table: str, key: str, rows: int, also: Sequence[str] = ()) -> str:
        """A join, which looks each row up. With IN the optimizer may scan the table, or a part of it, and a scan that
        locks waits for every open transaction whose row it meets."""
        columns = "".join(f' AND {table}."{column}" = %s' for column in also)
        return f"DELETE {table} FROM {self._looked_up(table, key, rows)}{columns}"

    def lock_free(self, table: str, key: str, rows: int) -> str:
        """The same join, for the same reason."""
        return f'SELECT {table}."{key}" FROM {self._looked_up(table, key, rows)}{{skip}}'

    def _looked_up(self, table: str, key: str, rows: int) -> str:
        keys = " UNION ALL ".join([f'SELECT %s AS "{key}"'] + ["SELECT %s"] * (rows - 1))
        return f'({keys}) these STRAIGHT_JOIN {table} ON {table}."{key}" = these."{key}"'


class WithOnConflict(Dialect):
    """What SQLite and PostgreSQL have in common."""

    def upsert(self, conflict: str, updates: dict[str, str], where: str = "") -> str:
        """ON CONFLICT, from SQLite 3.24."""
        parts = ", ".join(f"{column} = {_new_values(sql, 'excluded.{}')}" for column, sql in updates.items())
        return f"ON CONFLICT ({conflict}) DO UPDATE SET {parts}" + (f" WHERE {where}" if where else "")

    def ignore(self, conflict: str) -> str:
        """ON CONFLICT … DO NOTHING names the index, so no other error is swallowed."""
        return f"ON CONFLICT ({conflict}) DO NOTHING"


class SQLite(WithOnConflict):
    """One writer at a time: offsets become visible in their order, and no lock is needed but the writer's."""

    vendor = "sqlite"
    # SQLite has one writer, and lets the others sleep and try again; threads of one process had better queue up here.
    writers = threading.RLock()
    gated = False
    branch = "SELECT * FROM ({})"
    rows_of_one_insert = 500
    words: ClassVar = {
        **PLACES,
        "now": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')",
        "later": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', (%s / 1000000.0) || ' seconds')",
        "earlier": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', (%s / -1000000.0) || ' seconds')",
        "minute": "STRFTIME('%%Y-%%m-%%d %%H:%%M:00', 'now')",
        "greatest": "MAX",
        "least": "MIN",
        "true": "1",
        "false": "0",
        "share": "",
        "update": "",
        "skip": "",
        "by_stream": " INDEXED BY sqlqueue_message_fetch",
        "by_offset": " NOT INDEXED",
        "by_due": " INDEXED BY sqlqueue_scheduled_due",
        "by_receipt": " INDEXED BY sqlqueue_receipt_message",
        "by_id": " NOT INDEXED",
        "then": "CROSS JOIN",
        "div": "/",
        "begun": "NULL",
        "bytes": "LENGTH(CAST(payload AS BLOB)) + COALESCE(LENGTH(CAST(headers AS BLOB)), 0)",
    }

    def remaining(self, column: str) -> str:
        """Julian days; a double keeps them to some 50 microseconds."""
        return f"(JULIANDAY({column}) - JULIANDAY('now')) * 86400.0"

    def microseconds(self, column: str) -> str:
        """Times are text, with six digits behind the seconds or none."""
        return f"CAST(STRFTIME('%%s', {column}) AS INTEGER) * 1000000 + CAST(SUBSTR({column}, 21, 6) AS INTEGER)"


class PostgreSQL(WithOnConflict):
    """PostgreSQL from 14."""

    vendor = "postgresql"
    branch = "({})"
    words: ClassVar = {
        "now": "STATEMENT_TIMESTAMP()",
        "later": "STATEMENT_TIMESTAMP() + %s * INTERVAL '1 microsecond'",
        "earlier": "STATEMENT_TIMESTAMP() - %s * INTERVAL '1 microsecond'",
        "minute": "DATE_TRUNC('minute', STATEMENT_TIMESTAMP())",
        "greatest": "GREATEST",
        "least": "LEAST",
        "true": "TRUE",
        "false": "FALSE",
        "share": " FOR SHARE",
        "update": " FOR UPDATE",
        "skip": " FOR UPDATE SKIP LOCKED",
        "by_stream": "",
        "by_offset": "",
        "by_due": "",
        "by_receipt": "",
        "by_id": "",
        "then": "JOIN",
        "div": "/",
        "begun": "TRANSACTION_TIMESTAMP()",
        "bytes": "OCTET_LENGTH(CAST(payload AS TEXT)) + COALESCE(OCTET_LENGTH(CAST(headers AS TEXT)), 0)",
        "beyond": '(topic, "partition", priority, "offset") > (%s, %s, %s, %s)'
        ' AND (topic, "partition", priority) <= (%s, %s, %s)',
        "within": '(topic, "partition", priority, "offset") > (%s, %s, %s, %s)'
        ' AND (topic, "partition", priority, "offset") <= (%s, %s, %s, %s)',
        "by_place": 'topic, "partition", priority, "offset"',
        "by_place_down": 'topic DESC, "partition" DESC, priority DESC, "offset" DESC',
    }

    def place(self, topic: str, partition: int, priority: int, low: int, *high: int) -> tuple[object, ...]:
        """Rows are compared as wholes, which only the index of all their columns can do."""
        return (topic, partition, priority, low, topic, partition, priority, *high)

    def check_json(self, text: str, kind: str) -> None:
        """A jsonb value has no NUL character."""
        if "\\u0000" in text and NUL.search(text):
            raise InvalidMessage(f"{kind} has a NUL character (\\u0000), which PostgreSQL cannot store: take it out")

    def time(self, at: datetime) -> object:
        """The column knows time zones itself."""
        return at

    def epoch(self, column: str) -> str:
        """In UTC: where USE_TZ is off, Django lets the driver give times of the connection's zone, without it."""
        return f"{column} AT TIME ZONE 'UTC'"

    def remaining(self, column: str) -> str:
        """Seconds, with their fraction."""
        return f"EXTRACT(EPOCH FROM {column} - STATEMENT_TIMESTAMP())"

    def microseconds(self, column: str) -> str:
        """An exact number, from PostgreSQL 14."""
        return f"CAST(EXTRACT(EPOCH FROM {column}) * 1000000 AS BIGINT)"

    def json_text(self, column: str) -> str:
        """The driver would decode it."""
        return f"CAST({column} AS TEXT)"


DIALECTS: dict[str, Dialect] = {kind.vendor: kind() for kind in (MySQL, SQLite, PostgreSQL)}
