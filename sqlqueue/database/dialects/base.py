"""Dialects: the SQL in which databases differ, as placeholders that statements are composed of.

A statement is standard SQL, its keywords and functions in CAPITALS and its identifiers in small letters: whatever is in
small letters is quoted for the server, since its next version may reserve any word. It has these placeholders: {now}
the database's clock; {later} the same plus a parameter in microseconds; {earlier} minus one; {greatest}, {least};
{true}, {false}; {div} divides whole numbers; {share}, {update} row locks; {skip} skip locked rows; {by_stream},
{by_offset} the index of the log to use, {by_receipt} that of the receipts, {by_due} that of the scheduled messages:
left to itself an optimizer that sees ORDER BY offset LIMIT may walk the primary key through all other topics' messages,
which costs more the longer the history is. {by_message_id}, {by_scheduled_id} the unique ones of the ids in either;
{by_end} that of the leases' ends, {by_holder} that of their holders, {by_digest} that of what subscribers serve: while
the tables grow, the optimizer takes them for small ones, and reads them whole; {by_id} any table's primary key,
{then} a join that looks its right side up for each row of its left side: a statement that locks may not scan, for it
would wait for, or lock, rows that it does not need. {beyond} what a stream has above an offset, {within} the same up
to another one, ORDER BY {ascending}: where the index cannot be named, in a form that no other index serves; their
parameters are Dialect.range_values(); {descending} is the same backwards. {minute} is the
present minute's beginning; {begun} that of the transaction, where a guard compares it; {bytes} how many payload,
headers and body have. {in_log}, {in_schedule} are conditions of the log and of the schedule: the one message of a
topic, id and key, which are the parameters. {log_of_wanted}, {schedule_of_wanted} are the same tables, joined with the
topics, message_ids and partition_keys of `wanted`; {log_of_wanted_keys} the log, joined with its topics and
message_ids. All five have a form that only the unique index serves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from functools import cache, lru_cache
from typing import Any, ClassVar

# A text, a "quoted" identifier, or a bare one; not the s of %s.
IDENTIFIER = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|(?<![%\w])[a-z_][a-z0-9_]*""")

LONG = 4_096  # characters of a statement: of those with many rows there are too many to remember
REMEMBERED = 64

BEYOND = 'topic = %s AND "partition" = %s AND priority = %s AND "offset" > %s'
RANGES = {
    "beyond": BEYOND,
    "within": BEYOND + ' AND "offset" <= %s',
    "ascending": '"offset"',
    "descending": '"offset" DESC',
}

OF_ID = "topic = %s AND message_id = %s AND partition_key = %s"
UNIQUE = {
    "in_log": OF_ID,
    "in_schedule": OF_ID,
    "log_of_wanted": "sqlqueue_message",
    "log_of_wanted_keys": "sqlqueue_message",
    "schedule_of_wanted": "sqlqueue_scheduled_message",
}


class Composed(str):
    """A statement that is in a vendor's SQL already."""

    __slots__ = ()


class Dialect:
    """The SQL of one vendor."""

    vendor: ClassVar[str]
    placeholders: ClassVar[dict[str, str]]
    quote: ClassVar[str] = '"'
    branch: ClassVar[str]  # one SELECT with its own LIMIT inside a UNION ALL
    writers: ClassVar[AbstractContextManager[Any]] = nullcontext()  # what a thread holds while it writes
    # Publishers need the gate: offsets can become visible out of order. Without it a transaction that has written keeps
    # every other connection from writing.
    gated: ClassVar[bool] = True
    # The gate is many rows, each of which says its generation. (MySQL, whose INSERT that leaves out duplicates cannot
    # return what it has inserted, either.)
    slotted: ClassVar[bool] = False
    rows_of_one_insert: ClassVar[int] = 1_000
    json_value: ClassVar[str] = "%s"  # a parameter with JSON text, where a statement selects it into a JSON column
    driver_tells_number: ClassVar[bool] = True  # which an INSERT has given its row, without RETURNING
    plans_by_statistics: ClassVar[bool] = False  # even where all columns of a unique key are given
    refuses_silently: ClassVar[bool] = False  # a statement that the gate refuses just adds nothing; else it fails
    # SQL for a column:
    remaining: Callable[[str], str]  # seconds until the time in it, negative if that is past
    microseconds: Callable[[str], str]  # its time as whole microseconds since 1970, in UTC
    epoch: Callable[[str], str] = "{}".format  # its time in whatever form the driver reads fastest
    moved: Callable[[str], str]  # its time, later by a parameter in microseconds, which may be negative
    json_text: Callable[[str], str] = "{}".format  # its JSON as text
    # About how many bytes (of text: bytes or characters) its JSON or bytes have, as cheaply as the server can tell it.
    size: Callable[[str], str] = "LENGTH({})".format

    def sql(self, text: str) -> str:
        """Return a statement in this vendor's SQL."""
        if type(text) is Composed:
            return text
        return (_short if len(text) < LONG else _long)(self, text)

    def unless_locked(self, text: str, seconds: float) -> str:
        """Return a statement that fails in place of waiting so long for the lock of a table, where a statement can say
        so itself."""
        return text

    def range_values(self, topic: str, partition: int, priority: int, low: int, *high: int) -> tuple[object, ...]:
        """Return the parameters of {beyond}; of {within} with `high`."""
        return (topic, partition, priority, low, *high)

    def check_json(self, text: str, kind: str) -> None:
        """Raise InvalidMessage for JSON that this vendor's columns refuse."""

    def time(self, at: datetime) -> object:
        """Return an aware time as a time column holds it: UTC, whatever the connection's time zone is."""
        return at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")

    def joined(self, name: str, columns: Sequence[str], rows: int, text: str) -> str:
        """Return a statement in this vendor's SQL that joins so many rows of parameters, where it says {name}."""
        raise NotImplementedError

    def update(
        self, table: str, columns: Sequence[str], rows: int, values: str, where: str = "", key: str = "id"
    ) -> str:
        """Return the statement that updates so many rows, each by the parameters of its own, in their order where the
        server has locks of rows. columns: what the parameters of a row are called, the first one is that of its primary
        key; values, of SET, and where: SQL with these names and the table's."""
        also = f" AND {where}" if where else ""
        return f"UPDATE {table} SET {values} FROM {given(columns, rows)} WHERE {key} = {columns[0]}{also}"

    def upsert(self, conflict: str, updates: dict[str, str], where: str = "") -> str:
        """Return the clause that updates instead of inserting a duplicate. updates: column to SQL, in which {new:x} is
        the value that was to be inserted; where: keep the old row unless this holds, in which {new:x} is the same."""
        raise NotImplementedError

    def ignore(self, conflict: str) -> str:
        """Return the clause that changes nothing where the row is there already."""
        raise NotImplementedError

    def delete(self, table: str, key: str, rows: int, also: Sequence[str] = ()) -> str:
        """Return the statement that deletes so many rows by their unique key, and touches no other row. Parameters: a
        `key` for each row, then the values of the columns `also`, which complete the unique key."""
        columns = "".join(f' AND "{column}" = %s' for column in also)
        return f'DELETE FROM {table} WHERE "{key}" IN ({marks_of(rows)}){columns}'

    def lock_free(self, table: str, key: str, rows: int, also: Sequence[str] = ()) -> str:
        """Return the statement that locks those of so many rows which no other transaction has locked, without waiting,
        and gives their unique keys and the SQL `also`. Parameters: a `key` for each row."""
        columns = ", ".join((f'"{key}"', *also))
        return f'SELECT {columns} FROM {table} WHERE "{key}" IN ({marks_of(rows)}){{skip}}'


class WithOnConflict(Dialect):
    """What SQLite and PostgreSQL have in common."""

    def joined(self, name: str, columns: Sequence[str], rows: int, text: str) -> str:
        """VALUES: PostgreSQL plans each branch of a UNION by itself."""
        text = self.sql(text).replace(f"{{{self.quote}{name}{self.quote}}}", name)
        values = ", ".join([f"({marks_of(len(columns))})"] * rows)
        named = ", ".join(f"{self.quote}{column}{self.quote}" for column in columns)
        return f"WITH {name} ({named}) AS (VALUES {values}) {text}"

    def upsert(self, conflict: str, updates: dict[str, str], where: str = "") -> str:
        """ON CONFLICT, from SQLite 3.24."""
        parts = ", ".join(f"{column} = {new_values(sql, 'excluded.{}')}" for column, sql in updates.items())
        return f"ON CONFLICT ({conflict}) DO UPDATE SET {parts}" + (
            f" WHERE {new_values(where, 'excluded.{}')}" if where else ""
        )

    def ignore(self, conflict: str) -> str:
        """ON CONFLICT … DO NOTHING names the index, so no other error is swallowed."""
        return f"ON CONFLICT ({conflict}) DO NOTHING"


def given(columns: Sequence[str], rows: int) -> str:
    """Return a derived table of so many rows of parameters."""
    first = ", ".join(f'%s AS "{column}"' for column in columns)
    return f"({' UNION ALL '.join([f'SELECT {first}', *[f'SELECT {marks_of(len(columns))}'] * (rows - 1)])}) AS given"


def marks_of(values: int) -> str:
    """Return so many marks of parameters."""
    return ", ".join(["%s"] * values)


def new_values(sql: str, form: str) -> str:
    """Return SQL with each {new:x} in this form, in which {} is the column."""
    before, found, rest = sql.partition("{new:")
    if not found:
        return sql
    column, _, after = rest.partition("}")
    return before + form.format(column) + new_values(after, form)


def _compose(dialect: Dialect, text: str) -> str:
    for word, meaning in dialect.placeholders.items():
        text = text.replace("{" + word + "}", meaning)

    def quoted(found: re.Match[str]) -> str:
        name = found[0]
        return name if name[0] == "'" else dialect.quote + name.strip('"`') + dialect.quote

    return IDENTIFIER.sub(quoted, text)


# Short statements are remembered for good, of the long ones the last some.
_short, _long = cache(_compose), lru_cache(REMEMBERED)(_compose)
