"""Adding messages to the schedule over Django's connections: each id once, unless the log has it already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connections, transaction

from sqlqueue.database.chunks import in_chunks
from sqlqueue.database.clock import EPOCH
from sqlqueue.database.gate import inserted
from sqlqueue.database.ids import Identity, identity_of
from sqlqueue.database.insert_sql import KEEP_DUPLICATE, LogRow, Stored
from sqlqueue.database.statements import dialect, execute
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


def insert_scheduled(alias: str, messages: Sequence[Due]) -> None:
    """Schedule messages of fresh ids, all or none of them."""
    _in_statements(alias, messages, _insert)


def insert_new_scheduled(alias: str, messages: Sequence[Due]) -> set[Identity]:
    """Schedule those of the messages whose ids are not scheduled, in the caller's transaction; return their identities.
    In `messages` each is there once. Whether the log has them is the caller's to see."""
    new: set[Identity] = set()
    _in_statements(alias, messages, lambda *chunk: new.update(_insert_new(*chunk)))
    return new


def find_existing(alias: str, row: LogRow) -> Existing:
    """Return where a row's id is taken, without locks."""
    text = _with_columns(alias, EXISTING)
    found = [Existing._make(existing) for existing in execute(alias, text, identity_of(row) * 2).fetchall()]
    return max(found, key=lambda existing: existing.offset or 0, default=Existing(None, None, None))


def lock_existing(alias: str, row: LogRow) -> Existing:
    """Return where a row's id is scheduled, as last committed, whatever the transaction's snapshot; lock it."""
    text = _with_columns(alias, EXISTING_SCHEDULED)
    found = execute(alias, text + "{update}", identity_of(row)).fetchone()
    return Existing._make(found) if found else Existing(None, None, None)


def _with_columns(alias: str, text: str) -> str:
    syntax = dialect(alias)
    return text.replace("{published}", syntax.epoch("created_at")).replace("{headers}", syntax.json_text("headers"))


def replace_scheduled(alias: str, number: int, message: Due) -> bool:
    """Replace a scheduled message but for its id and the time of its publish; False if it is not there any more."""
    row, delay, at = message
    later = "{later}" if delay is not None else "%s"
    due = round(delay * 1_000_000) if delay is not None else dialect(alias).time(at or EPOCH)
    _, _, _, *content = scheduled(row)  # without what it is identified by
    values = (*content, due, number, *identity_of(row))
    return bool(execute(alias, REPLACE.replace("{due}", later), values).rowcount)


def take_scheduled(alias: str, number: int, row: LogRow) -> bool:
    """Delete a scheduled message; False if it is not there any more."""
    return bool(execute(alias, TAKE, (number, *identity_of(row))).rowcount)


def withdraw(alias: str, identities: Iterable[Identity]) -> None:
    """Delete messages that this transaction itself has scheduled."""
    for identity in identities:
        execute(alias, WITHDRAW, identity)


def copy_scheduled(alias: str, row: LogRow, delay: float) -> None:
    """Schedule a message of a fresh id whose payload the server itself copies."""
    source = row.payload
    assert isinstance(source, Stored)
    text = SCHEDULE_COPY.replace("{table}", source.table).replace("{key}", source.key)
    values = (row.topic, row.key, row.id, row.priority, row.target_group, round(delay * 1_000_000), source.id)
    execute(alias, text, values)


def _in_statements(
    alias: str, messages: Sequence[Due], insert: Callable[[str, str, Sequence[Sequence[Any]]], Any]
) -> None:
    later = [(*scheduled(row), round(delay * 1_000_000)) for row, delay, _ in messages if delay is not None]
    at = [(*scheduled(row), dialect(alias).time(at)) for row, _, at in messages if at is not None]
    chunks = [(SCHEDULED_LATER, some) for some in in_chunks(alias, later, weigh=weight)]
    chunks += [(SCHEDULED_AT, some) for some in in_chunks(alias, at, weigh=weight)]
    with transaction.atomic(using=alias, savepoint=False) if len(chunks) > 1 else nullcontext():
        for row, some in chunks:
            insert(alias, row, some)


def _insert(alias: str, row: str, values: Sequence[Sequence[Any]], ending: str = "") -> Any:
    text = f"{SCHEDULE} VALUES {', '.join([row] * len(values))}{ending}"
    return execute(alias, text, [value for some in values for value in some])


def _insert_new(alias: str, row: str, values: Sequence[Sequence[Any]]) -> Iterable[Identity]:
    if connections[alias].vendor != "mysql":
        ending = f"{KEEP_DUPLICATE} RETURNING topic, message_id, partition_key"
        return [tuple(found) for found in _insert(alias, row, values, ending).fetchall()]
    first = _insert(alias, row, values, MARK_SCHEDULED).lastrowid
    return inserted(alias, SCHEDULED_ONES, first, [(topic, id, key) for topic, key, id, *_ in values])
