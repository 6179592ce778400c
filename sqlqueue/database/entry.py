"""How messages enter the log: the statements, which hold the publish gate before they take an offset. Needs no Django.

They are in the words of the dialects; whoever has a connection runs them, and adds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

SLOTS = 256  # of 10 ms each: a publishing transaction under 2.5 s always leaves some slot free to be seen
SLOT_SECONDS = 0.01
ADVISORY = 1936093029  # PostgreSQL's advisory lock that is the gate: (this, 0)

COLUMNS = ("topic", '"partition"', "priority", "partition_key", "message_id", "payload", "headers", "target_group")
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
PLAIN_COLUMNS = ("topic", '"partition"', "partition_key", "message_id", "payload")
# The first value of the first row reads the gate, so that its lock is held before the first offset is taken. A gate row
# that is missing makes the topic NULL, which the column refuses: better no message than one that could be missed.
GATED_TOPIC = "IF((SELECT slot FROM sqlqueue_publish_gate WHERE slot = %s LOCK IN SHARE MODE) >= 0, %s, NULL)"
# A duplicate changes nothing; LAST_INSERT_ID marks it (by a high bit) and tells where the first one stands. Not by way
# of the offset itself: MySQL refuses that (1869) when one statement repeats an id of its own.
MARK = 1 << 62
MARK_DUPLICATE = (
    " ON DUPLICATE KEY UPDATE failure_count = sqlqueue_message.failure_count"
    f' + 0 * LAST_INSERT_ID(sqlqueue_message."offset" + {MARK})'
)
KEEP_DUPLICATE = ' ON CONFLICT (topic, "partition", message_id) DO NOTHING'
REFRESH_FAILURE = {
    "failed_at": "{new:failed_at}",
    "failure_count": "{new:failure_count}",
    "last_error": "{new:last_error}",
    "fingerprint": "{new:fingerprint}",
}
# InnoDB keeps what a duplicate has locked until the transaction ends: the first one and the gap before it, and at
# REPEATABLE READ the log's very end, where every publisher of every topic would wait. So a transaction looks first.
# Index: the unique (topic, partition, message_id).
FIND_MANY = "SELECT topic, `partition`, message_id FROM sqlqueue_message FORCE INDEX (sqlqueue_message_id) WHERE "
FIND_BRANCH = "(topic = %s AND `partition` = %s AND message_id IN ({marks}))"
FIND = 'SELECT "offset" FROM sqlqueue_message WHERE topic = %s AND "partition" = %s AND message_id = %s'
# Index: the primary key.
COUNT_NEW = 'SELECT COUNT(*) FROM sqlqueue_message{by_offset} WHERE "offset" BETWEEN %s AND %s'
# PostgreSQL: no row of the join exists before the gate has given its own, and a row's offset is taken when it is
# inserted. One lock for all publishers: the horizon looks at who holds it.
HOLD_GATE = f"WITH gate AS MATERIALIZED (SELECT PG_ADVISORY_XACT_LOCK_SHARED({ADVISORY}, 0)) "
JSON_COLUMNS = {name: f"CAST({name} AS JSONB)" for name in ("payload", "headers")}


Place = tuple[str, int, str]  # topic, partition, id: unique in the log


class Stored(NamedTuple):
    """A payload, and the headers beside it, that the server itself copies from this row: too much to be sent."""

    table: str
    key: str
    id: int


class LogRow(NamedTuple):
    """A message as it is written: payload and headers are JSON text."""

    topic: str
    partition: int
    priority: int
    key: str
    id: str
    payload: str | Stored
    headers: str | None
    target_group: str


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


def insertion(vendor: str, rows: Sequence[Sequence[Any]], ending: str = "") -> tuple[str, list[Any]]:
    """Return the statement, and its parameters, that inserts rows (all LogRows, or all with a FailedRow too) and
    holds the gate before it takes an offset. A row whose payload is Stored comes alone."""
    source = rows[0][COLUMNS.index("payload")]
    if isinstance(source, Stored):
        return _copying(vendor, rows[0], source, ending)
    columns, values = _sent(rows)
    marks = ["{now}" if column == "failed_at" else "%s" for column in columns]
    row = f"({', '.join(marks)})"
    lines = [row] * len(rows)
    if vendor == "mysql":
        lines[0] = f"({', '.join([GATED_TOPIC, *marks[1:]])})"
        values.insert(0, slot())
    source = f"VALUES {', '.join(lines)}"
    names = ", ".join(columns)
    text = f"INSERT INTO sqlqueue_message ({names}) "
    if vendor == "postgresql":
        chosen = ", ".join(JSON_COLUMNS.get(column, column) for column in columns)
        text = f"{HOLD_GATE}{text}SELECT {chosen} FROM gate CROSS JOIN ({source}) AS new ({names})"
    else:
        text += source
    return text + ending, values


def _copying(vendor: str, row: Sequence[Any], source: Stored, ending: str) -> tuple[str, list[Any]]:
    columns = COLUMNS if len(row) == len(COLUMNS) else (*COLUMNS, *FAILURE_COLUMNS)
    named = dict(zip((column for column in columns if column != "failed_at"), row))
    special = {"payload": "original.payload", "headers": "original.headers", "failed_at": "{now}"}
    if vendor == "mysql":
        special["topic"] = GATED_TOPIC
    gate, text = "", f"INSERT INTO sqlqueue_message ({', '.join(columns)})"
    if vendor == "postgresql":
        gate, text = "gate CROSS JOIN ", HOLD_GATE + text
    text += (
        f" SELECT {', '.join(special.get(column, '%s') for column in columns)} FROM {gate}{source.table} AS original"
    )
    values = [value for column, value in named.items() if column not in ("payload", "headers")]
    gated = [slot()] if vendor == "mysql" else []
    return f'{text} WHERE original."{source.key}" = %s{ending}', [*gated, *values, source.id]


def _sent(rows: Sequence[Sequence[Any]]) -> tuple[tuple[str, ...], list[Any]]:
    """Return the columns that the statement names, and the rows' values one after another."""
    if len(rows[0]) > len(COLUMNS):
        return (*COLUMNS, *FAILURE_COLUMNS), [value for row in rows for value in row]
    if any(priority or headers or group for _, _, priority, _, _, _, headers, group in rows):
        return COLUMNS, [value for row in rows for value in row]
    plain = ((topic, partition, key, id, payload) for topic, partition, _, key, id, payload, _, _ in rows)
    return PLAIN_COLUMNS, [value for row in plain for value in row]


def each_once(rows: Sequence[LogRow]) -> dict[Place, LogRow]:
    """Return the rows by what must be unique of them: of those with the same id, the first."""
    once: dict[Place, LogRow] = {}
    for row in rows:
        once.setdefault((row.topic, row.partition, row.id), row)
    return once


def known_places(places: Iterable[Place]) -> tuple[str, list[Any]]:
    """Return MySQL's statement, and its parameters, that finds those of the places which are in the log already."""
    ids: dict[tuple[str, int], list[str]] = {}
    for topic, partition, id in places:
        ids.setdefault((topic, partition), []).append(id)
    branches = [FIND_BRANCH.replace("{marks}", ", ".join(["%s"] * len(some))) for some in ids.values()]
    return FIND_MANY + " OR ".join(branches), [value for place, some in ids.items() for value in (*place, *some)]
