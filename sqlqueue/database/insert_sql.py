"""How messages enter the log: the statements, which hold the publish gate before they take an offset.

They have the placeholders of the dialects; the modules that have a connection run them as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from sqlqueue.database.dialects import DIALECTS, Composed
from sqlqueue.database.generations import Condition, Known, placed

SLOTS = 256  # of 10 ms each: a publishing transaction under 2.5 s always leaves some slot free to be seen
SLOT_SECONDS = 0.01
REMEMBERED = 64  # statements, by how many rows of which columns they have
HORIZON = -7  # the row with the horizon that one consumer of many has found, for the others: see database.horizon
NAMED = -6  # the row that says which server is named, and how often its processes have said that they are there
ADVISORY = 1936093029  # PostgreSQL's advisory lock that is the gate: (this, 0)

COLUMNS = ("topic", '"partition"', "priority", "partition_key", "message_id", "payload", "headers", "target_group")
PAYLOAD = COLUMNS.index("payload")
TIME_COLUMNS = ("published_at", "due_at")
# What few messages have: those times if they were scheduled, bytes, and the time at which they expire.
FURTHER_COLUMNS = (*TIME_COLUMNS, "body", "expires_at")
NO_FURTHER = (None,) * len(FURTHER_COLUMNS)
ALL_COLUMNS = (*COLUMNS, *FURTHER_COLUMNS)
FAILURE_COLUMNS = (
    "failed_at",
    "failure_count",
    "last_error",
    "original_topic",
    "original_offset",
    "failed_group",
    "fingerprint",
)
# What all rows of a statement leave at its default is not sent: drivers spend much of their time on parameters.
ALWAYS = object()
DEFAULTS = (ALWAYS, ALWAYS, 0, ALWAYS, ALWAYS, ALWAYS, None, "", *NO_FURTHER)
PLAIN_COLUMNS = tuple(column for column, default in zip(ALL_COLUMNS, DEFAULTS) if default is ALWAYS)
# The first value of the first row reads the gate, so that its lock is held before the first offset is taken. A missing
# gate row makes the topic NULL, which the column refuses: no message is better than one that could be missed. So does
# another generation than the rows were placed by, and a slot of their keys that is in another epoch. All of these rows
# stay locked until the transaction ends. Each is read by its whole key: a range would lock its neighbours.
# A gate that names a server is open there alone (see writer), for a publisher that knows about it.
HELD = "(SELECT generation FROM sqlqueue_publish_gate WHERE slot = %s AND writer = {writer} LOCK IN SHARE MODE) = %s"
IN_EPOCH = (
    " AND (SELECT epoch FROM sqlqueue_epoch_slot FORCE INDEX (sqlqueue_epoch_slot_topic)"
    " WHERE topic = %s AND slot = %s LOCK IN SHARE MODE) = %s"
)
# The server that runs a statement, by what a restart does not change: its transactions do not outlive it.
SERVER_LENGTH = 200
HERE = f"LEFT(CONCAT_WS(' ', @@hostname, @@port, @@server_id, @@datadir), {SERVER_LENGTH})"
# Which server the gate names, and which this is. Index: the primary key.
STANDING = f"SELECT writer, value, {HERE} FROM sqlqueue_publish_gate WHERE slot = {NAMED}"
NONE_OR_HERE = f" AND (writer = '' OR writer = {HERE})"  # for who does not know whether a server is named
GATED_TOPIC = f"IF({HELD}{{in_epochs}}, %s, NULL)"
STEADY_TOPIC = GATED_TOPIC.format(writer="''", in_epochs="")
# SQLite: under the lock of its one writer.
CHECKED_TOPIC = "CASE WHEN (SELECT generation FROM sqlqueue_publish_gate WHERE slot = 0) = %s THEN %s END"
# The first row's topic, where no topic was altered.
GATES = {"mysql": STEADY_TOPIC, "postgresql": "%s", "sqlite": CHECKED_TOPIC}
# A duplicate changes nothing; LAST_INSERT_ID marks it (by a high bit) and tells where the first one stands. Not by way
# of the offset itself: MySQL refuses that (1869) when one statement repeats an id of its own.
MARK = 1 << 62
MARK_DUPLICATE = (
    " ON DUPLICATE KEY UPDATE failure_count = sqlqueue_message.failure_count"
    f' + 0 * LAST_INSERT_ID(sqlqueue_message."offset" + {MARK})'
)
KEEP_DUPLICATE = " ON CONFLICT (topic, message_id, partition_key) DO NOTHING"
REFRESH_FAILURE = {
    "failed_at": "{new:failed_at}",
    "failure_count": "{new:failure_count}",
    "last_error": "{new:last_error}",
    "fingerprint": "{new:fingerprint}",
}
# Index: the primary key.
INSERTED = 'SELECT topic, message_id, partition_key FROM sqlqueue_message{by_offset} WHERE "offset" BETWEEN %s AND %s'
# PostgreSQL: a row's offset is taken when the row is put out, which it is not before the gate has let it pass: a single
# row by WHERE, several by a join with the gate's own row (WHERE would ask the gate for each). One lock for all
# publishers: the horizon looks at who holds it. The gate lets nothing pass where another generation is in force. That
# is read once the lock is held (CASE sees to the order), and from a sequence: whatever the transaction's snapshot is,
# it gives the present value. By a function: in a query of its own it took twice the server's time, on each publish.
HOLDING = (
    f"CASE WHEN PG_ADVISORY_XACT_LOCK_SHARED({ADVISORY}, 0) IS NOT NULL"
    " THEN PG_SEQUENCE_LAST_VALUE('sqlqueue_generation') = %s END"
)
HOLD_GATE = f"WITH gate AS MATERIALIZED (SELECT 1 WHERE {HOLDING}) "
# A column of VALUES is a text where all of its rows have NULL.
TYPES = {"payload": "JSONB", "headers": "JSONB", **dict.fromkeys(TIME_COLUMNS, "TIMESTAMPTZ"), "body": "BYTEA"}
TIMES = {"failed_at": "{now}", "expires_at": "{later}"}
COPIED = ("payload", "headers", "body")


class Stored(NamedTuple):
    """A payload, with its headers, that the server copies from this row: it is bytes, or too large to be sent."""

    table: str
    key: str
    id: int


class LogRow(NamedTuple):
    """A message as it is written, its columns first.

    payload, headers: JSON text
    published_at, due_at: of a message that was scheduled, as a time column holds them
    body: of a payload of bytes, whose JSON text is null
    expires: in so many microseconds from when it enters the log, or (a scheduled one) from when it is due
    scheduled_for: of one that goes to the schedule: in so many seconds by the database's clock, or at this time
    named: its id is the caller's own
    replace: it replaces a scheduled one of its id
    unique_for: for how many seconds a pending message of its key keeps it out; None: not at all
    """

    topic: str
    partition: int
    priority: int
    key: str
    id: str
    payload: str | Stored
    headers: str | None
    target_group: str
    published_at: object = None
    due_at: object = None
    body: bytes | None = None
    expires: int | None = None
    scheduled_for: float | datetime | None = None
    named: bool = False
    replace: bool = False
    unique_for: float | None = None


class FailedRow(NamedTuple):
    """A dead letter's further columns; failed_at is the database's now."""

    failures: int
    error: str
    topic: str
    offset: int
    group: str
    fingerprint: str


def slot() -> int:
    """Return the slot of this moment. Which one it is matters for progress only, never for safety."""
    return int(time.time() / SLOT_SECONDS) % SLOTS


def insertion(vendor: str, rows: Sequence[Sequence[Any]], ending: str, known: Known, at: int) -> tuple[str, list[Any]]:
    """Return the statement, and its parameters, that inserts rows (all LogRows, or all with a FailedRow too) and
    holds the gate before it takes an offset. A row whose payload is Stored comes alone.

    known: by what they are placed
    at: the gate's slot
    """
    conditions: Sequence[Condition] = ()
    if known.placings:
        rows, conditions = placed(rows, known)
    gated: str = GATES[vendor]
    held: list[Any] = [known.generation]
    if vendor == "mysql":
        held = [at, known.generation, *chain.from_iterable(conditions)]
        if conditions or known.named:
            writer = HERE if known.named else "''"
            gated = GATED_TOPIC.format(writer=writer, in_epochs=IN_EPOCH * len(conditions))
    source = rows[0][PAYLOAD]
    if isinstance(source, Stored):
        return _copying(vendor, rows[0], source, ending, gated, held)
    columns, values = _sent(rows)
    text = _text(vendor, columns, len(rows), gated, ending)
    return text, [*values, *held] if len(rows) == 1 and vendor == "postgresql" else [*held, *values]


@lru_cache(REMEMBERED)
def _text(vendor: str, columns: Sequence[str], rows: int, gated: str, ending: str) -> Composed:
    """Return the statement in the vendor's SQL, composed of a row's, for it may have a thousand."""
    sql = DIALECTS[vendor].sql
    marks = [TIMES.get(column, "%s") for column in columns]
    first, other = (sql(f"({', '.join(row)})") for row in ((gated, *marks[1:]), marks))
    values = f"VALUES {', '.join([first, *[other] * (rows - 1)])}"
    names = ", ".join(columns)
    into = f"INSERT INTO sqlqueue_message ({names}) "
    if vendor != "postgresql":
        return Composed(f"{sql(into)}{values}{sql(ending)}")
    if rows == 1:
        chosen = ", ".join(map(_typed, columns, marks))
        return Composed(sql(f"{into}SELECT {chosen} WHERE {HOLDING}{ending}"))
    chosen = ", ".join(map(_typed, columns, columns))
    gate = sql(f"{HOLD_GATE}{into}SELECT {chosen} FROM gate CROSS JOIN ")
    return Composed(f"{gate}({values}) AS {sql(f'new ({names})')}{sql(ending)}")


def _typed(column: str, value: str) -> str:
    return f"CAST({value} AS {TYPES[column]})" if column in TYPES else value


def _copying(
    vendor: str, row: Sequence[Any], source: Stored, ending: str, gated: str, held: Sequence[object]
) -> tuple[str, list[Any]]:
    given = ALL_COLUMNS if isinstance(row, LogRow) else (*COLUMNS, *FAILURE_COLUMNS)
    named = dict(zip((column for column in given if column != "failed_at"), row))
    columns = given if isinstance(row, LogRow) else (*given, "body")
    special = TIMES | {name: f"original.{name}" for name in COPIED}
    special["topic"] = gated
    gate, text = "", f"INSERT INTO sqlqueue_message ({', '.join(columns)})"
    if vendor == "postgresql":
        gate, text = "gate CROSS JOIN ", HOLD_GATE + text
    text += (
        f" SELECT {', '.join(special.get(column, '%s') for column in columns)} FROM {gate}{source.table} AS original"
    )
    values = [value for column, value in named.items() if column not in COPIED]
    return f'{text} WHERE original."{source.key}" = %s{ending}', [*held, *values, source.id]


def _sent(rows: Sequence[Sequence[Any]]) -> tuple[tuple[str, ...], Iterable[Any]]:
    """Return the columns that the statement names, and the rows' values one after another."""
    if not isinstance(rows[0], LogRow):
        return (*COLUMNS, *FAILURE_COLUMNS), chain.from_iterable(rows)
    if len(rows) == 1:
        row = rows[0]
        if not (row.priority or row.headers or row.target_group) and row[len(COLUMNS) : len(ALL_COLUMNS)] == NO_FURTHER:
            return PLAIN_COLUMNS, (row.topic, row.partition, row.key, row.id, row.payload)
    sent = [
        (column, values)
        for column, default, values in zip(ALL_COLUMNS, DEFAULTS, zip(*rows))
        if default is ALWAYS or values.count(default) < len(rows)
    ]
    return tuple(column for column, _ in sent), chain.from_iterable(zip(*(values for _, values in sent)))
