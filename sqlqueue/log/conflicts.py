"""Publishing an id that may be taken: in the log it stays as it is; on the schedule it stays, or is replaced.

An id is unique in the log and on the schedule, each by an index. What replaces or takes a scheduled message locks its
row first, as the scheduler does, so one of them precedes the other, and the later one sees what the first has done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

from sqlqueue.core.effects import of_headers
from sqlqueue.database import retries
from sqlqueue.database.clock import moment
from sqlqueue.database.gate import find_offset, ids_in_log, ids_scheduled, insert_many, insert_new, insert_one
from sqlqueue.database.ids import Identity, identity_of
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import (
    Existing,
    find_existing,
    insert_scheduled,
    lock_existing,
    replace_scheduled,
    take_scheduled,
    withdraw,
)
from sqlqueue.log import withdrawing
from sqlqueue.log.published_topic import CREATED, IGNORED, UPDATED, Status


def add(log: Log, row: LogRow) -> tuple[int | None, Status]:
    """Publish one message; return its offset (None: it is scheduled) and what has become of it.

    After a deadlock it is run again, as far as it is no part of a caller's transaction."""
    if row.named and row.scheduled_for is not None:
        return retries.run_statement(log, _schedule, log, row)
    if row.named and row.replace:
        return retries.run_statement(log, _replace_now, log, row)
    if row.scheduled_for is not None:
        insert_scheduled(log, [row])
        return None, CREATED
    offset, created = insert_one(log, row, may_repeat=row.named)
    return offset, CREATED if created else IGNORED


def add_many(log: Log, rows: Sequence[LogRow]) -> list[Status]:
    """Publish messages, all or none of them; return what has become of each, in their order. Of those with the same id
    each finds what the one before it has left.

    After a deadlock it is run again, as far as it is no part of a caller's transaction."""
    if not any(row.named for row in rows):
        now = [row for row in rows if row.scheduled_for is None]
        later = [row for row in rows if row.scheduled_for is not None]
        with log.atomic(savepoint=False) if now and later else nullcontext():
            insert_many(log, now)
            insert_scheduled(log, later)
        return [CREATED] * len(rows)
    return retries.run_statement(log, _add_named, log, rows)


def _add_named(log: Log, rows: Sequence[LogRow]) -> list[Status]:
    statuses: list[Status] = [CREATED] * len(rows)
    runs = list(_runs(rows, statuses))
    taken = _taken_ids(log, rows, runs[0])
    several = len(runs) > 1 or any(row.scheduled_for is not None or row.replace for row in rows)
    with log.atomic(savepoint=False) if several else nullcontext():
        for number, run in enumerate(runs):
            found = taken if number == 0 else _taken_ids(log, rows, run)
            _add_run(log, rows, run, found, statuses)
    return statuses


def _schedule(log: Log, row: LogRow) -> tuple[int | None, Status]:
    existing = find_existing(log, row)
    vanished = False
    while True:
        if existing is not None:
            if existing.number is None or not row.replace:
                return existing.offset, IGNORED
            if _replaced(log, existing, row, partial(replace_scheduled, log, existing.number, row)):
                return None, UPDATED
            vanished = True  # cancelled, or in the log now
        # In one transaction, for the scheduler might move what is committed before the log is looked at.
        with log.atomic(savepoint=False):
            if insert_scheduled(log, [row], may_repeat=True):
                offset = find_offset(log, row, latest=vanished)
                if offset is None:
                    return None, CREATED
                withdraw(log, [identity_of(row)])
                return offset, IGNORED
        if not row.replace:
            return None, IGNORED
        existing = lock_existing(log, row)


def _replace_now(log: Log, row: LogRow) -> tuple[int | None, Status]:
    existing = find_existing(log, row)
    while existing is not None and existing.number is not None:
        with log.atomic(savepoint=False):
            if _replaced(log, existing, row, partial(take_scheduled, log, existing.number, row)):
                row = row._replace(published_at=log.dialect.time(moment(existing.published)))  # as the replaced one
                offset, created = insert_one(log, row, may_repeat=True, look=False)
                return offset, UPDATED if created else IGNORED
        existing = lock_existing(log, row)
    if existing is not None:
        return existing.offset, IGNORED
    offset, created = insert_one(log, row, may_repeat=True, look=False)
    return offset, CREATED if created else IGNORED


def _replaced(log: Log, existing: Existing, row: LogRow, replace: Callable[[], bool]) -> bool:
    """Replace a scheduled message; False if it is not there any more. What replaces it has none of its effects."""
    if not of_headers(existing.headers):
        return replace()
    with log.atomic(savepoint=False):
        done = replace()
        if done:
            withdrawing.replaced(log, row.topic, existing.group or "", existing.headers)
    return done


def _runs(rows: Sequence[LogRow], statuses: list[Status]) -> Iterator[list[int]]:
    """Yield the indexes of rows that have different ids, those of one run at a time: what replaces a message of this
    call begins a new run, and what does not is ignored here."""
    run: list[int] = []
    seen: set[Identity] = set()
    of_run: set[Identity] = set()
    for index, row in enumerate(rows):
        identity = identity_of(row)
        if identity in seen and not row.replace:
            statuses[index] = IGNORED
            continue
        if identity in of_run:
            yield run
            run, of_run = [], set()
        run.append(index)
        of_run.add(identity)
        seen.add(identity)
    yield run


def _taken_ids(log: Log, rows: Sequence[LogRow], run: Sequence[int]) -> tuple[set[Identity], set[Identity]]:
    """Return which ids of a run are scheduled, and which of those to be scheduled are in the log: the log's own index
    tells of the others."""
    named = [rows[index] for index in run if rows[index].named]
    scheduled = ids_scheduled(log, named)
    in_log = ids_in_log(log, [row for row in named if row.scheduled_for is not None])
    return scheduled, in_log  # in this order: what is moved in between is seen in the log


def _add_run(
    log: Log,
    rows: Sequence[LogRow],
    run: Sequence[int],
    taken: tuple[set[Identity], set[Identity]],
    statuses: list[Status],
) -> None:
    scheduled, in_log = taken
    now: list[int] = []
    later: list[int] = []
    for index in run:
        row = rows[index]
        identity = identity_of(row)
        if identity in in_log or (identity in scheduled and not row.replace):
            statuses[index] = IGNORED
        elif row.scheduled_for is not None and identity in scheduled:
            statuses[index] = _schedule(log, row)[1]
        elif row.scheduled_for is not None:
            later.append(index)
        elif identity in scheduled:
            _add_now(log, rows, now, statuses)  # those before it, to keep the order
            now = []
            statuses[index] = _replace_now(log, row)[1]
        else:
            now.append(index)
    _add_now(log, rows, now, statuses)
    _add_later(log, rows, later, statuses)


def _add_now(log: Log, rows: Sequence[LogRow], indexes: Sequence[int], statuses: list[Status]) -> None:
    new = insert_new(log, [rows[index] for index in indexes])
    for index in indexes:
        statuses[index] = CREATED if identity_of(rows[index]) in new else IGNORED


def _add_later(log: Log, rows: Sequence[LogRow], indexes: Sequence[int], statuses: list[Status]) -> None:
    some = [rows[index] for index in indexes]
    new = insert_scheduled(log, some, may_repeat=True)
    moved = ids_in_log(log, [row for row in some if row.named and identity_of(row) in new])  # since it was looked
    withdraw(log, moved)
    for index, row in zip(indexes, some):
        identity = identity_of(row)
        if identity in moved:
            statuses[index] = IGNORED
        elif identity in new:
            statuses[index] = CREATED
        else:  # scheduled by another transaction since it was looked
            statuses[index] = _schedule(log, row)[1] if row.replace else IGNORED
