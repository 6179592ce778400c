"""Publishing an id that may be taken: in the log it stays as it is; on the schedule it stays, or is replaced.

An id is unique in the log and on the schedule, each by an index. What replaces or takes a scheduled message locks its
row first, as the scheduler does, so one of them precedes the other, and the later one sees what the first has done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from django.db import transaction

from sqlqueue.core.membership import batch_of
from sqlqueue.database import retries
from sqlqueue.database.clock import moment
from sqlqueue.database.gate import find_offset, ids_in_log, ids_scheduled, insert_many, insert_new, insert_one
from sqlqueue.database.ids import Identity, identity_of
from sqlqueue.database.insert_sql import LogRow
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
from sqlqueue.database.statements import dialect
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


def add_one(alias: str, offer: Offer) -> tuple[int | None, Status]:
    """Publish one message; return its offset (None: it is scheduled) and what has become of it."""
    if offer.named:
        return add(alias, offer)
    if not offer.scheduled:
        return insert_one(alias, offer.message.row, may_repeat=False)[0], CREATED
    insert_scheduled(alias, [offer.message])
    return None, CREATED


def add(alias: str, offer: Offer) -> tuple[int | None, Status]:
    """Publish one message whose id may be taken; return its offset (None: it is scheduled) and what has become of
    it.

    After a deadlock it is run again, as far as it is no part of a caller's transaction."""
    if offer.scheduled:
        return retries.run_statement(alias, _schedule, alias, offer.message, offer.replace)
    if offer.replace:
        return retries.run_statement(alias, _replace_now, alias, offer.message.row)
    offset, created = insert_one(alias, offer.message.row, may_repeat=True)
    return offset, CREATED if created else IGNORED


def add_many(alias: str, offers: Sequence[Offer]) -> list[Status]:
    """Publish messages, all or none of them; return what has become of each, in their order. Of those with the same id
    each finds what the one before it has left.

    After a deadlock it is run again, as far as it is no part of a caller's transaction."""
    if not any(offer.named for offer in offers):
        now = [offer.message.row for offer in offers if not offer.scheduled]
        later = [offer.message for offer in offers if offer.scheduled]
        with transaction.atomic(using=alias, savepoint=False) if now and later else nullcontext():
            insert_many(alias, now, may_repeat=False)
            insert_scheduled(alias, later)
        return [CREATED] * len(offers)
    return retries.run_statement(alias, _add_named, alias, offers)


def _add_named(alias: str, offers: Sequence[Offer]) -> list[Status]:
    statuses: list[Status] = [CREATED] * len(offers)
    runs = list(_runs(offers, statuses))
    taken = _look(alias, offers, runs[0])
    several = len(runs) > 1 or any(offer.scheduled or offer.replace for offer in offers)
    with transaction.atomic(using=alias, savepoint=False) if several else nullcontext():
        for number, run in enumerate(runs):
            found = taken if number == 0 else _look(alias, offers, run)
            _add_run(alias, offers, run, found, statuses)
    return statuses


def _schedule(alias: str, message: Due, replace: bool) -> tuple[int | None, Status]:
    existing = find_existing(alias, message.row)
    vanished = False
    while True:
        if existing.offset is not None:
            return existing.offset, IGNORED
        if existing.number is not None:
            if not replace:
                return None, IGNORED
            if _replaced(alias, existing, message.row, partial(replace_scheduled, alias, existing.number, message)):
                return None, UPDATED
            vanished = True  # cancelled, or in the log now
        # In one transaction, for the scheduler might move what is committed before the log is looked at.
        with transaction.atomic(using=alias, savepoint=False):
            if insert_new_scheduled(alias, [message]):
                offset = find_offset(alias, message.row, latest=vanished)
                if offset is None:
                    return None, CREATED
                withdraw(alias, [identity_of(message.row)])
                return offset, IGNORED
        if not replace:
            return None, IGNORED
        existing = lock_existing(alias, message.row)


def _replace_now(alias: str, row: LogRow) -> tuple[int | None, Status]:
    existing = find_existing(alias, row)
    while existing.offset is None and existing.number is not None:
        with transaction.atomic(using=alias, savepoint=False):
            if _replaced(alias, existing, row, partial(take_scheduled, alias, existing.number, row)):
                offset, created = insert_one(alias, _as_published(alias, row, existing), may_repeat=True, look=False)
                return offset, UPDATED if created else IGNORED
        existing = lock_existing(alias, row)
    if existing.offset is not None:
        return existing.offset, IGNORED
    offset, created = insert_one(alias, row, may_repeat=True, look=False)
    return offset, CREATED if created else IGNORED


def _replaced(alias: str, existing: Existing, row: LogRow, replace: Callable[[], bool]) -> bool:
    """Replace a scheduled message; False if it is not there any more. If it belongs to a batch, that has one less: what
    replaces it is no member."""
    batch = batch_of(existing.headers)
    if not batch:
        return replace()
    with transaction.atomic(using=alias, savepoint=False):
        done = replace()
        if done:
            batch_parts.take_out(alias, {batch_parts.PartKey(batch, row.topic, existing.group or ""): 1})
    return done


def _as_published(alias: str, row: LogRow, existing: Existing) -> LogRow:
    """Return a row that keeps the time at which the message that it replaces was published."""
    return row._replace(published_at=dialect(alias).time(moment(existing.published)))


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


def _look(alias: str, offers: Sequence[Offer], run: Sequence[int]) -> Taken:
    named = [offers[index] for index in run if offers[index].named]
    later = [offer.message.row for offer in named if offer.scheduled]
    scheduled = ids_scheduled(alias, [offer.message.row for offer in named])
    in_log = ids_in_log(alias, later)  # in this order: what is moved in between is seen here
    return Taken(scheduled, in_log)


def _add_run(alias: str, offers: Sequence[Offer], run: Sequence[int], taken: Taken, statuses: list[Status]) -> None:
    now: list[int] = []
    later: list[int] = []
    for index in run:
        offer = offers[index]
        identity = identity_of(offer.message.row)
        if identity in taken.in_log or (identity in taken.scheduled and not offer.replace):
            statuses[index] = IGNORED
        elif offer.scheduled and identity in taken.scheduled:
            statuses[index] = _schedule(alias, offer.message, replace=True)[1]
        elif offer.scheduled:
            later.append(index)
        elif identity in taken.scheduled:
            _add_now(alias, offers, now, statuses)  # those before it, to keep the order
            now = []
            statuses[index] = _replace_now(alias, offer.message.row)[1]
        else:
            now.append(index)
    _add_now(alias, offers, now, statuses)
    _add_later(alias, offers, later, statuses)


def _add_now(alias: str, offers: Sequence[Offer], indexes: Sequence[int], statuses: list[Status]) -> None:
    rows = [offers[index].message.row for index in indexes]
    new = insert_new(alias, rows)
    for index, row in zip(indexes, rows):
        statuses[index] = CREATED if identity_of(row) in new else IGNORED


def _add_later(alias: str, offers: Sequence[Offer], indexes: Sequence[int], statuses: list[Status]) -> None:
    messages = [offers[index].message for index in indexes]
    new = insert_new_scheduled(alias, messages)
    named = [offers[index].message.row for index in indexes if offers[index].named]
    moved = ids_in_log(alias, [row for row in named if identity_of(row) in new])  # since it was looked
    withdraw(alias, moved)
    for index, message in zip(indexes, messages):
        identity = identity_of(message.row)
        if identity in moved:
            statuses[index] = IGNORED
        elif identity in new:
            statuses[index] = CREATED
        else:  # scheduled by another transaction since it was looked
            statuses[index] = _schedule(alias, message, replace=True)[1] if offers[index].replace else IGNORED
