"""Adding messages to the log, through the publish gate, in one statement."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import connections

from sqlqueue.database.dialects import dialect, execute

SLOTS = 256  # of 10 ms each: a publishing transaction under 2.5 s always leaves some slot free to be seen
SLOT_SECONDS = 0.01
SCHEDULER = -1  # whoever moves scheduled messages into the log holds this row: one at a time keeps their order
COLLECTOR = -2  # likewise whoever collects
REPLAYER = -3  # and whoever carries out the replays of dead letters
DUTIES = (SCHEDULER, COLLECTOR, REPLAYER)
ADVISORY = 1936093029  # PostgreSQL's advisory lock that is the gate: (this, 0)

COLUMNS = 'topic, "partition", priority, partition_key, message_id, payload, headers, target_group'
FAILURE_COLUMNS = "failed_at, failure_count, last_error, original_topic, original_offset, failed_group, fingerprint"
ROW = "(%s, %s, %s, %s, %s, %s, %s, %s)"
FAILED_ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, {now}, %s, %s, %s, %s, %s, %s)"
# The first value of the first row reads the gate, so that its lock is held before the first offset is taken. A gate row
# that is missing makes the topic NULL, which the column refuses: better no message than one that could be missed.
GATED = (
    "(IF((SELECT slot FROM sqlqueue_publish_gate WHERE slot = %s LOCK IN SHARE MODE) >= 0, %s, NULL), "
    "%s, %s, %s, %s, %s, %s, %s"
)
GATED_ROW = GATED + ")"
GATED_FAILED_ROW = GATED + ", {now}, %s, %s, %s, %s, %s, %s)"
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
# PostgreSQL: no row of the join exists before the gate has given its own, and a row's offset is taken when it is
# inserted. One lock for all publishers: the horizon looks at who holds it.
HOLD_GATE = f"WITH gate AS MATERIALIZED (SELECT PG_ADVISORY_XACT_LOCK_SHARED({ADVISORY}, 0)) "
JSON_COLUMNS = {name: f"CAST({name} AS JSONB)" for name in ("payload", "headers")}


class LogRow(NamedTuple):
    """A message as it is written: payload and headers are JSON text."""

    topic: str
    partition: int
    priority: int
    key: str
    id: str
    payload: str
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


def take_duty(alias: str, duty: int) -> bool:
    """Hold one of the DUTIES until the transaction ends; False if another process has it. Never waits."""
    text = "SELECT slot FROM sqlqueue_publish_gate WHERE slot = %s{skip}"  # index: the primary key
    return execute(alias, text, (duty,)).fetchone() is not None


def insert_one(alias: str, row: LogRow, may_repeat: bool) -> tuple[int, bool]:
    """Add one message; return its offset, and whether it is new. may_repeat: its id may have been published before."""
    if connections[alias].vendor == "mysql":
        found = _find(alias, row) if may_repeat and connections[alias].in_atomic_block else None
        if found:
            return found, False
        offset = _insert(alias, [row], MARK_DUPLICATE if may_repeat else "").lastrowid
        return (offset - MARK, False) if offset >= MARK else (offset, True)
    while True:
        new = _insert(alias, [row], (KEEP_DUPLICATE if may_repeat else "") + ' RETURNING "offset"').fetchone()
        if new:
            return new[0], True
        found = _find(alias, row)
        if found:  # else it has been collected between the two statements
            return found, False


def _find(alias: str, row: LogRow) -> int | None:
    found = execute(alias, FIND, (row.topic, row.partition, row.id)).fetchone()
    return found[0] if found else None


def insert_many(alias: str, rows: Sequence[LogRow], may_repeat: bool) -> int:
    """Add messages, in chunks of one statement each; return how many of them were new."""
    vendor = connections[alias].vendor
    size = dialect(alias).rows_of_one_insert
    created = 0
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size]
        if may_repeat and vendor == "mysql":
            chunk = _new_ones(alias, chunk)
            if not chunk:
                continue
        if not may_repeat:
            _insert(alias, chunk)
            created += len(chunk)
        elif vendor == "mysql":
            _insert(alias, chunk, MARK_DUPLICATE)
            created += len(chunk) - _duplicates(alias, len(chunk))
        else:
            created += _insert(alias, chunk, KEEP_DUPLICATE).rowcount
    return created


def _new_ones(alias: str, rows: Sequence[LogRow]) -> list[LogRow]:
    """Return the rows whose ids are not in the log yet, as far as can be seen, each id once."""
    new: dict[tuple[str, int, str], LogRow] = {}
    places: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        if new.setdefault((row.topic, row.partition, row.id), row) is row:
            places.setdefault((row.topic, row.partition), []).append(row.id)
    branches = [FIND_BRANCH.replace("{marks}", ", ".join(["%s"] * len(ids))) for ids in places.values()]
    values = [value for place, ids in places.items() for value in (*place, *ids)]
    with connections[alias].cursor() as cursor:  # not by execute(), which remembers every text, and this one varies
        cursor.execute(FIND_MANY + " OR ".join(branches), values)
        for found in cursor.fetchall():
            new.pop(tuple(found))
    return list(new.values())


def insert_failed(alias: str, row: LogRow, failed: FailedRow) -> None:
    """Add a dead letter; one that is there already (the message was replayed and failed again) shows the newest
    failure."""
    _insert(alias, [(*row, *failed)], " " + dialect(alias).upsert('topic, "partition", message_id', REFRESH_FAILURE))


def _insert(alias: str, rows: Sequence[Sequence[Any]], ending: str = "") -> Any:
    """Insert rows, all LogRows or all with a FailedRow's values too, in one statement that holds the gate before it
    takes an offset; return the cursor."""
    vendor = connections[alias].vendor
    failed = len(rows[0]) > len(LogRow._fields)
    columns = f"{COLUMNS}, {FAILURE_COLUMNS}" if failed else COLUMNS
    marks = [FAILED_ROW if failed else ROW] * len(rows)
    values: list[Any] = [value for row in rows for value in row]
    if vendor == "mysql":
        marks[0] = GATED_FAILED_ROW if failed else GATED_ROW
        values.insert(0, slot())
    source = f"VALUES {', '.join(marks)}"
    text = f"INSERT INTO sqlqueue_message ({columns}) "
    if vendor == "postgresql":
        chosen = ", ".join(JSON_COLUMNS.get(name, name) for name in columns.split(", "))
        text = f"{HOLD_GATE}{text}SELECT {chosen} FROM gate CROSS JOIN ({source}) AS new ({columns})"
    else:
        text += source
    return execute(alias, text + ending, values)


def _duplicates(alias: str, rows: int) -> int:
    """Return how many rows of the last INSERT were there already: the client library's own account of it.

    For one row there is no such account; its duplicate shows in LAST_INSERT_ID.
    """
    driver = connections[alias].connection
    if rows == 1:
        return int(driver.insert_id() >= MARK)
    # "Records: 3  Duplicates: 1  Warnings: 0"; MySQL counts a duplicate that an update has touched.
    words = driver.info()
    words = words.decode() if isinstance(words, bytes) else words
    return int(words.split("Duplicates:")[1].split()[0])
