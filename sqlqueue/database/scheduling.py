"""Adding messages to the schedule over Django's connections: each id once, unless the log has it already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, NamedTuple

from sqlqueue.database.gate import inserted
from sqlqueue.database.ids import Identity, identity_of
from sqlqueue.database.insert_sql import KEEP_DUPLICATE, LogRow, Stored
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import chunks
from sqlqueue.database.validation import (
    MARK_SCHEDULED,
    SCHEDULE,
    SCHEDULE_COPY,
    SCHEDULED_AT,
    SCHEDULED_LATER,
    SCHEDULED_ONES,
    scheduled,
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
    f" body = %s, expires_after = %s, due_at = {{due}}, refused = {{false}}, refusal = NULL WHERE id = %s AND {HAS_ID}"
)
TAKE = f"DELETE FROM sqlqueue_scheduled_message WHERE id = %s AND {HAS_ID}"
WITHDRAW = "DELETE FROM sqlqueue_scheduled_message WHERE {in_schedule}"  # index: the unique one


class Existing(NamedTuple):
    """Where an id is taken: `offset` in the log, or `number`, the id of a row of the schedule, and when that one was
    published, as the driver gives it (see Dialect.epoch), with its headers and target group. All are None for an id
    that is free."""

    offset: int | None
    number: int | None
    published: Any
    headers: Any = None
    group: str | None = None


def insert_scheduled(log: Log, rows: Sequence[LogRow]) -> None:
    """Schedule messages of fresh ids, all or none of them."""
    _in_statements(log, rows, _insert)


def insert_new_scheduled(log: Log, rows: Sequence[LogRow]) -> set[Identity]:
    """Schedule those of the messages whose ids are not scheduled, in the caller's transaction; return their identities.
    In `rows` each is there once. Whether the log has them is the caller's to see."""
    new: set[Identity] = set()
    _in_statements(log, rows, lambda *chunk: new.update(_insert_new(*chunk)))
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


def replace_scheduled(log: Log, number: int, row: LogRow) -> bool:
    """Replace a scheduled message but for its id and the time of its publish; False if it is not there any more."""
    later = "%s" if isinstance(row.scheduled_for, datetime) else "{later}"
    _, _, _, *content = scheduled(row)  # without what it is identified by
    values = (*content, _due(log, row), number, *identity_of(row))
    return bool(log.execute(REPLACE.replace("{due}", later), values).rowcount)


def _due(log: Log, row: LogRow) -> object:
    """Return the parameter that says when a row is due."""
    due = row.scheduled_for
    return log.dialect.time(due) if isinstance(due, datetime) else round((due or 0) * 1_000_000)


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
    values = (row.topic, row.key, row.id, row.priority, row.target_group, _due(log, row), source.id)
    log.execute(text, values)


def _in_statements(
    log: Log, rows: Sequence[LogRow], insert: Callable[[Log, str, Sequence[Sequence[Any]]], Any]
) -> None:
    values: dict[str, list[tuple[object, ...]]] = {SCHEDULED_LATER: [], SCHEDULED_AT: []}
    for row in rows:
        form = SCHEDULED_AT if isinstance(row.scheduled_for, datetime) else SCHEDULED_LATER
        values[form].append((*scheduled(row), _due(log, row)))
    several = [(form, some) for form, its in values.items() for some in chunks(log, its)]
    with log.atomic(savepoint=False) if len(several) > 1 else nullcontext():
        for form, some in several:
            insert(log, form, some)


def _insert(log: Log, row: str, values: Sequence[Sequence[Any]], ending: str = "") -> Any:
    text = f"{SCHEDULE} VALUES {', '.join([row] * len(values))}{ending}"
    return log.execute(text, [value for some in values for value in some])


def _insert_new(log: Log, row: str, values: Sequence[Sequence[Any]]) -> Iterable[Identity]:
    if log.connection.vendor != "mysql":
        ending = f"{KEEP_DUPLICATE} RETURNING topic, message_id, partition_key"
        return [tuple(found) for found in _insert(log, row, values, ending).fetchall()]
    first = _insert(log, row, values, MARK_SCHEDULED).lastrowid
    return inserted(log, SCHEDULED_ONES, first, [(topic, id, key) for topic, key, id, *_ in values])
