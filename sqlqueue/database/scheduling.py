"""Adding messages to the schedule over Django's connections: each id once, unless the log has it already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, NamedTuple

from sqlqueue.database.ids import Identity, identity_of, inserted
from sqlqueue.database.insert_sql import KEEP_DUPLICATE, MARK, LogRow, Stored
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import chunks

SCHEDULE_COLUMNS = "topic, partition_key, message_id, payload, headers, priority, target_group, body, expires_after"
SCHEDULE = f"INSERT INTO sqlqueue_scheduled_message ({SCHEDULE_COLUMNS}, due_at)"
DUE = "COALESCE(%s, {later})"  # at a time, or in so many microseconds
ROW = f"(%s, %s, %s, %s, %s, %s, %s, %s, %s, {DUE})"
# Index: that of the source's key.
SCHEDULE_COPY = (
    f"{SCHEDULE} SELECT %s, %s, %s, original.payload, original.headers, %s, %s, original.body, NULL, {DUE}"
    ' FROM {table} AS original WHERE original."{key}" = %s'
)
# As in the log: a duplicate changes nothing, and is marked. (Numbers of forwarded messages are below 0.)
MARK_SCHEDULED = (
    " ON DUPLICATE KEY UPDATE priority = sqlqueue_scheduled_message.priority"
    f" + 0 * LAST_INSERT_ID(ABS(sqlqueue_scheduled_message.id) + {MARK})"
)
# Index: the primary key.
SCHEDULED_ONES = (
    "SELECT topic, message_id, partition_key FROM sqlqueue_scheduled_message{by_id} WHERE id BETWEEN %s AND %s"
)
# The other one in a form that no index serves.
HAS_ID = "COALESCE(topic, '') = %s AND COALESCE(message_id, '') = %s AND COALESCE(partition_key, '') = %s"
# Where an id is taken. Index: the unique ones.
EXISTING_SCHEDULED = (
    "SELECT NULL, id, {published}, {headers}, target_group FROM sqlqueue_scheduled_message WHERE {in_schedule}"
)
EXISTING = (
    f'SELECT "offset", NULL, NULL, NULL, NULL FROM sqlqueue_message WHERE {{in_log}} UNION ALL {EXISTING_SCHEDULED}'
)
# By the number, as the scheduler locks it: by the id InnoDB would lock the other index first, and the two would wait
# for each other; MariaDB takes another index for an update if it is not told. Index: the primary key.
REPLACE = (
    "UPDATE sqlqueue_scheduled_message{by_id} SET payload = %s, headers = %s, priority = %s, target_group = %s,"
    f" body = %s, expires_after = %s, due_at = {DUE}, refused = {{false}}, refusal = NULL WHERE id = %s AND {HAS_ID}"
)
TAKE = f"DELETE FROM sqlqueue_scheduled_message WHERE id = %s AND {HAS_ID}"
WITHDRAW = "DELETE FROM sqlqueue_scheduled_message WHERE {in_schedule}"  # index: the unique one


class Existing(NamedTuple):
    """Where an id is taken: `offset` in the log, or `number`, the id of a row of the schedule, and when that one was
    published, as the driver gives it (see Dialect.epoch), with its headers and target group."""

    offset: int | None
    number: int | None
    published: Any
    headers: Any = None
    group: str | None = None


def scheduled(row: LogRow) -> tuple[object, ...]:
    """Return a row's values in the order of SCHEDULE_COLUMNS."""
    seconds = None if row.expires is None else row.expires / 1_000_000
    plain = (row.topic, row.key, row.id, row.payload, row.headers, row.priority, row.target_group)
    return (*plain, row.body, seconds)


def _due(log: Log, row: LogRow) -> tuple[object, int]:
    """Return the parameters of DUE."""
    due = row.scheduled_for
    return (log.dialect.time(due), 0) if isinstance(due, datetime) else (None, round((due or 0) * 1_000_000))


def insert_scheduled(log: Log, rows: Sequence[LogRow], may_repeat: bool = False) -> set[Identity]:
    """Schedule messages, all or none of them; return the identities of those whose ids were not scheduled. In `rows`
    each is there once. Whether the log has them is the caller's to see.

    may_repeat: ids may be scheduled already; then in the caller's transaction
    """
    new: set[Identity] = set()
    several = list(chunks(log, [(*scheduled(row), *_due(log, row)) for row in rows]))
    with log.atomic(savepoint=False) if len(several) > 1 else nullcontext():
        for some in several:
            new.update(_insert(log, some, may_repeat))
    return new


def _insert(log: Log, rows: Sequence[Sequence[Any]], may_repeat: bool) -> Iterable[Identity]:
    text = f"{SCHEDULE} VALUES {', '.join([ROW] * len(rows))}"
    values = [value for row in rows for value in row]
    identities = [(topic, id, key) for topic, key, id, *_ in rows]
    if not may_repeat:
        log.execute(text, values)
        return identities
    if log.dialect.vendor == "mysql":
        first = log.execute(text + MARK_SCHEDULED, values).lastrowid
        return inserted(log, SCHEDULED_ONES, first, identities)
    found = log.execute(f"{text}{KEEP_DUPLICATE} RETURNING topic, message_id, partition_key", values).fetchall()
    return [(topic, id, key) for topic, id, key in found]


def find_existing(log: Log, row: LogRow) -> Existing | None:
    """Return where a row's id is taken, without locks; None for an id that is free. One of the log comes first: a
    message may have been published and scheduled in transactions that did not see each other."""
    text = _with_columns(log, EXISTING)
    found = [Existing._make(existing) for existing in log.execute(text, identity_of(row) * 2).fetchall()]
    return max(found, key=lambda existing: existing.offset or 0, default=None)


def lock_existing(log: Log, row: LogRow) -> Existing | None:
    """Return where a row's id is scheduled, as last committed, whatever the transaction's snapshot; lock it. None for
    one that is not scheduled."""
    text = _with_columns(log, EXISTING_SCHEDULED)
    found = log.execute(text + "{update}", identity_of(row)).fetchone()
    return Existing._make(found) if found else None


def _with_columns(log: Log, text: str) -> str:
    syntax = log.dialect
    return text.replace("{published}", syntax.epoch("created_at")).replace("{headers}", syntax.json_text("headers"))


def replace_scheduled(log: Log, number: int, row: LogRow) -> bool:
    """Replace a scheduled message but for its id and the time of its publish; False if it is not there any more."""
    _, _, _, *content = scheduled(row)  # without what it is identified by
    values = (*content, *_due(log, row), number, *identity_of(row))
    return bool(log.execute(REPLACE, values).rowcount)


def take_scheduled(log: Log, number: int, row: LogRow) -> bool:
    """Delete a scheduled message; False if it is not there any more."""
    return bool(log.execute(TAKE, (number, *identity_of(row))).rowcount)


def withdraw(log: Log, identities: Iterable[Identity]) -> None:
    """Delete messages that this transaction itself has scheduled."""
    for identity in identities:
        log.execute(WITHDRAW, identity)


def copy_scheduled(log: Log, row: LogRow) -> None:
    """Schedule a message of a fresh id whose payload the server itself copies."""
    source = row.payload
    assert isinstance(source, Stored)
    text = SCHEDULE_COPY.replace("{table}", source.table).replace("{key}", source.key)
    values = (row.topic, row.key, row.id, row.priority, row.target_group, *_due(log, row), source.id)
    log.execute(text, values)
