"""Adding messages to the schedule over Django's connections: each id once, unless the log has it already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, NamedTuple

from sqlqueue.database.chunks import in_chunks
from sqlqueue.database.clock import EPOCH
from sqlqueue.database.gate import inserted
from sqlqueue.database.ids import Identity, identity_of
from sqlqueue.database.insert_sql import KEEP_DUPLICATE, LogRow, Stored
from sqlqueue.database.log import Log
from sqlqueue.database.validation import (
    MARK_SCHEDULED,
    SCHEDULE,
    SCHEDULE_COPY,
    SCHEDULED_AT,
    SCHEDULED_LATER,
    SCHEDULED_ONES,
    scheduled,
)
from sqlqueue.database.weight import weight

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
    f" body = %s, expires_after = %s, due_at = {{due}}, refused = {{false}}, refusal = NULL WHERE id = %s AND {HAS_ID}"
)
TAKE = f"DELETE FROM sqlqueue_scheduled_message WHERE id = %s AND {HAS_ID}"
WITHDRAW = "DELETE FROM sqlqueue_scheduled_message WHERE {in_schedule}"  # index: the unique one


class Due(NamedTuple):
    """A message, and when it is due: `delay` seconds from now by the database's clock, or `at`."""

    row: LogRow
    delay: float | None
    at: datetime | None


class Existing(NamedTuple):
    """Where an id is taken: `offset` in the log, or `number`, the id of a row of the schedule, and when that one was
    published, as the driver gives it (see Dialect.epoch), with its headers and target group. All are None for an id
    that is free."""

    offset: int | None
    number: int | None
    published: Any
    headers: Any = None
    group: str | None = None


def insert_scheduled(log: Log, messages: Sequence[Due]) -> None:
    """Schedule messages of fresh ids, all or none of them."""
    _in_statements(log, messages, _insert)


def insert_new_scheduled(log: Log, messages: Sequence[Due]) -> set[Identity]:
    """Schedule those of the messages whose ids are not scheduled, in the caller's transaction; return their identities.
    In `messages` each is there once. Whether the log has them is the caller's to see."""
    new: set[Identity] = set()
    _in_statements(log, messages, lambda *chunk: new.update(_insert_new(*chunk)))
    return new


def find_existing(log: Log, row: LogRow) -> Existing:
    """Return where a row's id is taken, without locks."""
    text = _with_columns(log, EXISTING)
    found = [Existing._make(existing) for existing in log.execute(text, identity_of(row) * 2).fetchall()]
    return max(found, key=lambda existing: existing.offset or 0, default=Existing(None, None, None))


def lock_existing(log: Log, row: LogRow) -> Existing:
    """Return where a row's id is scheduled, as last committed, whatever the transaction's snapshot; lock it."""
    text = _with_columns(log, EXISTING_SCHEDULED)
    found = log.execute(text + "{update}", identity_of(row)).fetchone()
    return Existing._make(found) if found else Existing(None, None, None)


def _with_columns(log: Log, text: str) -> str:
    syntax = log.dialect
    return text.replace("{published}", syntax.epoch("created_at")).replace("{headers}", syntax.json_text("headers"))


def replace_scheduled(log: Log, number: int, message: Due) -> bool:
    """Replace a scheduled message but for its id and the time of its publish; False if it is not there any more."""
    row, delay, at = message
    later = "{later}" if delay is not None else "%s"
    due = round(delay * 1_000_000) if delay is not None else log.dialect.time(at or EPOCH)
    _, _, _, *content = scheduled(row)  # without what it is identified by
    values = (*content, due, number, *identity_of(row))
    return bool(log.execute(REPLACE.replace("{due}", later), values).rowcount)


def take_scheduled(log: Log, number: int, row: LogRow) -> bool:
    """Delete a scheduled message; False if it is not there any more."""
    return bool(log.execute(TAKE, (number, *identity_of(row))).rowcount)


def withdraw(log: Log, identities: Iterable[Identity]) -> None:
    """Delete messages that this transaction itself has scheduled."""
    for identity in identities:
        log.execute(WITHDRAW, identity)


def copy_scheduled(log: Log, row: LogRow, delay: float) -> None:
    """Schedule a message of a fresh id whose payload the server itself copies."""
    source = row.payload
    assert isinstance(source, Stored)
    text = SCHEDULE_COPY.replace("{table}", source.table).replace("{key}", source.key)
    values = (row.topic, row.key, row.id, row.priority, row.target_group, round(delay * 1_000_000), source.id)
    log.execute(text, values)


def _in_statements(
    log: Log, messages: Sequence[Due], insert: Callable[[Log, str, Sequence[Sequence[Any]]], Any]
) -> None:
    later = [(*scheduled(row), round(delay * 1_000_000)) for row, delay, _ in messages if delay is not None]
    at = [(*scheduled(row), log.dialect.time(at)) for row, _, at in messages if at is not None]
    chunks = [(SCHEDULED_LATER, some) for some in in_chunks(log, later, weigh=weight)]
    chunks += [(SCHEDULED_AT, some) for some in in_chunks(log, at, weigh=weight)]
    with log.atomic(savepoint=False) if len(chunks) > 1 else nullcontext():
        for row, some in chunks:
            insert(log, row, some)


def _insert(log: Log, row: str, values: Sequence[Sequence[Any]], ending: str = "") -> Any:
    text = f"{SCHEDULE} VALUES {', '.join([row] * len(values))}{ending}"
    return log.execute(text, [value for some in values for value in some])


def _insert_new(log: Log, row: str, values: Sequence[Sequence[Any]]) -> Iterable[Identity]:
    if log.connection.vendor != "mysql":
        ending = f"{KEEP_DUPLICATE} RETURNING topic, message_id, partition_key"
        return [tuple(found) for found in _insert(log, row, values, ending).fetchall()]
    first = _insert(log, row, values, MARK_SCHEDULED).lastrowid
    return inserted(log, SCHEDULED_ONES, first, [(topic, id, key) for topic, key, id, *_ in values])
