"""Publishing an id that may be taken: in the log it stays as it is; on the schedule it stays, or is replaced.

An id is unique in the log and on the schedule, each by an index. What replaces or takes a scheduled message locks its
row first, as the scheduler does, so one of them precedes the other, and the later one sees what the first has done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from sqlqueue.core.membership import batch_of
from sqlqueue.database import retries
from sqlqueue.database.clock import moment
from sqlqueue.database.gate import find_offset, ids_in_log, ids_scheduled, insert_many, insert_new, insert_one
from sqlqueue.database.ids import Identity, identity_of
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import (
    Due,
    Existing,
    find_existing,
    insert_new_scheduled,
    insert_scheduled,
    lock_existing,
    replace_scheduled,
    take_scheduled,
    withdraw,
)
from sqlqueue.log import batch_parts
from sqlqueue.log.published import CREATED, IGNORED, UPDATED, Status


class Offer(NamedTuple):
    """A message to publish: `named` if its id is the caller's own, `replace` if it replaces a scheduled one,
    `scheduled` if it goes to the schedule itself. unique_for: for how many seconds a pending message of its key keeps
    it out; None: not at all."""

    message: Due
    named: bool
    replace: bool
    scheduled: bool
    unique_for: float | None = None


class Taken(NamedTuple):
    """Which ids were taken when it was looked."""

    scheduled: set[Identity]
    in_log: set[Identity]  # of those to be scheduled only: the log's own index tells of the others


def add_one(log: Log, offer: Offer) -> tuple[int | None, Status]:
    """Publish one message; return its offset (None: it is scheduled) and what has become of it."""
    if offer.named:
        return add(log, offer)
    if not offer.scheduled:
        return insert_one(log, offer.message.row, may_repeat=False)[0], CREATED
    insert_scheduled(log, [offer.message])
    return None, CREATED


def add(log: Log, offer: Offer) -> tuple[int | None, Status]:
    """Publish one message whose id may be taken; return its offset (None: it is scheduled) and what has become of
    it.

    After a deadlock it is run again, as far as it is no part of a caller's transaction."""
    if offer.scheduled:
        return retries.run_statement(log, _schedule, log, offer.message, offer.replace)
    if offer.replace:
        return retries.run_statement(log, _replace_now, log, offer.message.row)
    offset, created = insert_one(log, offer.message.row, may_repeat=True)
    return offset, CREATED if created else IGNORED


def add_many(log: Log, offers: Sequence[Offer]) -> list[Status]:
    """Publish messages, all or none of them; return what has become of each, in their order. Of those with the same id
    each finds what the one before it has left.

    After a deadlock it is run again, as far as it is no part of a caller's transaction."""
    if not any(offer.named for offer in offers):
        now = [offer.message.row for offer in offers if not offer.scheduled]
        later = [offer.message for offer in offers if offer.scheduled]
        with log.atomic(savepoint=False) if now and later else nullcontext():
            insert_many(log, now, may_repeat=False)
            insert_scheduled(log, later)
        return [CREATED] * len(offers)
    return retries.run_statement(log, _add_named, log, offers)


def _add_named(log: Log, offers: Sequence[Offer]) -> list[Status]:
    statuses: list[Status] = [CREATED] * len(offers)
    runs = list(_runs(offers, statuses))
    taken = _look(log, offers, runs[0])
    several = len(runs) > 1 or any(offer.scheduled or offer.replace for offer in offers)
    with log.atomic(savepoint=False) if several else nullcontext():
        for number, run in enumerate(runs):
            found = taken if number == 0 else _look(log, offers, run)
            _add_run(log, offers, run, found, statuses)
    return statuses


def _schedule(log: Log, message: Due, replace: bool) -> tuple[int | None, Status]:
    existing = find_existing(log, message.row)
    vanished = False
    while True:
        if existing.offset is not None:
            return existing.offset, IGNORED
        if existing.number is not None:
            if not replace:
                return None, IGNORED
            if _replaced(log, existing, message.row, partial(replace_scheduled, log, existing.number, message)):
                return None, UPDATED
            vanished = True  # cancelled, or in the log now
        # In one transaction, for the scheduler might move what is committed before the log is looked at.
        with log.atomic(savepoint=False):
            if insert_new_scheduled(log, [message]):
                offset = find_offset(log, message.row, latest=vanished)
                if offset is None:
                    return None, CREATED
                withdraw(log, [identity_of(message.row)])
                return offset, IGNORED
        if not replace:
            return None, IGNORED
        existing = lock_existing(log, message.row)


def _replace_now(log: Log, row: LogRow) -> tuple[int | None, Status]:
    existing = find_existing(log, row)
    while existing.offset is None and existing.number is not None:
        with log.atomic(savepoint=False):
            if _replaced(log, existing, row, partial(take_scheduled, log, existing.number, row)):
                offset, created = insert_one(log, _as_published(log, row, existing), may_repeat=True, look=False)
                return offset, UPDATED if created else IGNORED
        existing = lock_existing(log, row)
    if existing.offset is not None:
        return existing.offset, IGNORED
    offset, created = insert_one(log, row, may_repeat=True, look=False)
    return offset, CREATED if created else IGNORED


def _replaced(log: Log, existing: Existing, row: LogRow, replace: Callable[[], bool]) -> bool:
    """Replace a scheduled message; False if it is not there any more. If it belongs to a batch, that has one less: what
    replaces it is no member."""
    batch = batch_of(existing.headers)
    if not batch:
        return replace()
    with log.atomic(savepoint=False):
        done = replace()
        if done:
            batch_parts.take_out(log, {batch_parts.PartKey(batch, row.topic, existing.group or ""): 1})
    return done


def _as_published(log: Log, row: LogRow, existing: Existing) -> LogRow:
    """Return a row that keeps the time at which the message that it replaces was published."""
    return row._replace(published_at=log.dialect.time(moment(existing.published)))


def _runs(offers: Sequence[Offer], statuses: list[Status]) -> Iterator[list[int]]:
    """Yield the indexes of offers that have different ids, those of one run at a time: what replaces a message of this
    call begins a new run, and what does not is ignored here."""
    run: list[int] = []
    seen: set[Identity] = set()
    of_run: set[Identity] = set()
    for index, offer in enumerate(offers):
        identity = identity_of(offer.message.row)
        if identity in seen and not offer.replace:
            statuses[index] = IGNORED
            continue
        if identity in of_run:
            yield run
            run, of_run = [], set()
        run.append(index)
        of_run.add(identity)
        seen.add(identity)
    yield run


def _look(log: Log, offers: Sequence[Offer], run: Sequence[int]) -> Taken:
    named = [offers[index] for index in run if offers[index].named]
    later = [offer.message.row for offer in named if offer.scheduled]
    scheduled = ids_scheduled(log, [offer.message.row for offer in named])
    in_log = ids_in_log(log, later)  # in this order: what is moved in between is seen here
    return Taken(scheduled, in_log)


def _add_run(log: Log, offers: Sequence[Offer], run: Sequence[int], taken: Taken, statuses: list[Status]) -> None:
    now: list[int] = []
    later: list[int] = []
    for index in run:
        offer = offers[index]
        identity = identity_of(offer.message.row)
        if identity in taken.in_log or (identity in taken.scheduled and not offer.replace):
            statuses[index] = IGNORED
        elif offer.scheduled and identity in taken.scheduled:
            statuses[index] = _schedule(log, offer.message, replace=True)[1]
        elif offer.scheduled:
            later.append(index)
        elif identity in taken.scheduled:
            _add_now(log, offers, now, statuses)  # those before it, to keep the order
            now = []
            statuses[index] = _replace_now(log, offer.message.row)[1]
        else:
            now.append(index)
    _add_now(log, offers, now, statuses)
    _add_later(log, offers, later, statuses)


def _add_now(log: Log, offers: Sequence[Offer], indexes: Sequence[int], statuses: list[Status]) -> None:
    rows = [offers[index].message.row for index in indexes]
    new = insert_new(log, rows)
    for index, row in zip(indexes, rows):
        statuses[index] = CREATED if identity_of(row) in new else IGNORED


def _add_later(log: Log, offers: Sequence[Offer], indexes: Sequence[int], statuses: list[Status]) -> None:
    messages = [offers[index].message for index in indexes]
    new = insert_new_scheduled(log, messages)
    named = [offers[index].message.row for index in indexes if offers[index].named]
    moved = ids_in_log(log, [row for row in named if identity_of(row) in new])  # since it was looked
    withdraw(log, moved)
    for index, message in zip(indexes, messages):
        identity = identity_of(message.row)
        if identity in moved:
            statuses[index] = IGNORED
        elif identity in new:
            statuses[index] = CREATED
        else:  # scheduled by another transaction since it was looked
            statuses[index] = _schedule(log, message, replace=True)[1] if offers[index].replace else IGNORED
