"""How batches end: each of their callbacks is published in the transaction that records why, and so exactly once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db import Error
from django.db.models import Exists, OuterRef, Q

from sqlqueue.contrib.batches.models import Batch, BatchPart
from sqlqueue.contrib.batches.publishing import Block
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.log.publish import publish_message

logger = logging.getLogger("sqlqueue")

AT_ONCE = 100  # batches of one statement


def standings(log: Log, ids: Collection[str]) -> list[Any]:
    """Return batches with what a check asks: whether a member is `outstanding`, or `dead`, whether a batch inside is
    `unfinished`, `unsuccessful`, or has `failed`, and whether the deadline is over (`late`).

    One statement, and so one snapshot of what is settled and of what was added. Indexes: the primary key, (batch,
    outstanding), (batch, dead), (parent).
    """
    its = BatchPart.objects.filter(batch=OuterRef("id"))
    inside = Batch.objects.filter(parent=OuterRef("id"))
    return list(
        Batch.objects.using(log.alias)
        .filter(id__in=ids)
        .annotate(
            outstanding=Exists(its.filter(outstanding__gt=0)),
            dead=Exists(its.filter(dead__gt=0)),
            unfinished=Exists(inside.filter(cancelled_at=None, finished_at=None)),
            unsuccessful=Exists(inside.filter(cancelled_at=None, succeeded_at=None)),
            failed=Exists(inside.exclude(failed_at=None)),
            late=Q(deadline_at__isnull=False, deadline_at__lte=DatabaseNow()),
        )
    )


def check(log: Log, ids: Iterable[str]) -> None:
    """Publish the callbacks of those batches that have failed, finished or succeeded. After a commit that may have
    brought that about: what another process commits at the same time, the later check of the two sees.

    A callback that cannot be published is logged, and tried again by the sweep.
    """
    wanted = sorted(set(ids))
    while wanted:
        parents: set[str] = set()
        for batch in standings(log, wanted[:AT_ONCE]):
            try:
                ended = _end(log, batch)
            except Exception as error:
                if isinstance(error, Error) and _may_pass(log, error):
                    raise
                logger.error(logfmt("batch_callback_refused", batch=batch.id, error=error))
                continue
            if ended and batch.parent:
                parents.add(batch.parent)
        wanted = sorted({*wanted[AT_ONCE:], *parents})


def _may_pass(log: Log, error: Error) -> bool:
    """Tell whether an error of the database is none of this one batch, or leaves its caller's transaction unusable."""
    return log.connection.in_atomic_block or retries.classify(error) in (
        retries.ErrorKind.GONE,
        retries.ErrorKind.CONTENTION,
    )


def check_quietly(log: Log, ids: Iterable[str]) -> None:
    """The same where the caller must go on: what the database refuses now, the sweep does."""
    try:
        check(log, ids)
    except Error as error:
        logger.warning(logfmt("batch_check_failed", error_kind=retries.classify(error).name, error=error))


def sweep(log: Log) -> bool:
    """Check all batches that are not over; return whether there are any.

    That is for what comes with time (deadlines), and for processes that were killed between a settle and the check
    behind it. One statement if there are none.
    """
    rows = Batch.objects.using(log.alias).filter(over=False).order_by("id")
    ids, beyond, found = [""] * AT_ONCE, "", False
    while len(ids) == AT_ONCE:
        ids = list(rows.filter(id__gt=beyond).values_list("id", flat=True)[:AT_ONCE])
        check(log, ids)
        beyond, found = (ids or [""])[-1], found or bool(ids)
    return found


def cancel(log: Log, id: str) -> bool:
    """Cancel a batch that is not over: no callback of it is published any more. Return whether it was not over."""
    cancelled = retries.run(log, _cancel, log, id)
    if cancelled and (parent := Batch.objects.using(log.alias).values_list("parent", flat=True).get(id=id)):
        log.on_commit(lambda: check_quietly(log, [parent]))
    return cancelled


def _cancel(log: Log, id: str) -> bool:
    rows = Batch.objects.using(log.alias).filter(id=id, over=False)
    rows.filter(ended_at=None).update(ended_at=DatabaseNow())
    return bool(rows.update(cancelled_at=DatabaseNow(), over=True))


def _end(log: Log, batch: Any) -> bool:
    """Record what has come about of a batch, as `standings` has found it, and publish its callbacks; return whether
    anything has."""
    if batch.over:
        return False
    settled = batch.sealed_at is not None and not batch.outstanding and not batch.unfinished
    acked = settled and not batch.dead and not batch.unsuccessful
    ended = False
    late = batch.late and batch.finished_at is None
    if batch.failed_at is None and (batch.dead or batch.failed or late):
        ended = retries.run(log, _record, log, batch, "failed_at", "failure")
    if acked and batch.callbacks.get("then"):
        ended = retries.run(log, _begin_next, log, batch) or ended
    elif settled and (acked or batch.finished_at is None):
        ended = retries.run(log, _finish, log, batch, acked) or ended
    return ended


def _finish(log: Log, batch: Batch, acked: bool) -> bool:
    """Record that a batch is finished, and whether it has succeeded. In one transaction: between two, a batch around it
    would see it finished, and not yet succeeded."""
    ended = False
    if batch.finished_at is None:
        ended = _record(log, batch, "finished_at", "finish", ended_at=DatabaseNow())
    if acked:
        ended = _record(log, batch, "succeeded_at", "success", over=True) or ended
    return ended


def _record(log: Log, batch: Batch, column: str, callback: str, **also: Any) -> bool:
    """Set a time of a batch that is not set, and publish the callback for it; return False if another process has."""
    rows = Batch.objects.using(log.alias).filter(id=batch.id, cancelled_at=None, **{column: None})
    if not rows.update(**{column: DatabaseNow()}, **also):
        return False
    if (wanted := batch.callbacks.get(callback)) is not None:
        publish_message(wanted["topic"], _message(wanted, id=f"batch:{batch.id}:{callback}"), relay=True)
    return True


def _message(wanted: Mapping[str, Any], id: str | None = None) -> NewMessage:
    return NewMessage(wanted["payload"], key=wanted.get("key", ""), id=id)


def _begin_next(log: Log, batch: Batch) -> bool:
    """Publish the next step of a chain, as members of the batch, and store which ones are left; return False if another
    process has begun it, or the batch was cancelled."""
    rows = Batch.objects.using(log.alias).filter(id=batch.id, over=False)
    stored = rows.select_for_update().values_list("callbacks", flat=True).first()
    if stored is None or len(stored["then"]) != len(batch.callbacks["then"]):
        return False
    step, *rest = stored["then"]
    rows.update(callbacks={**stored, "then": rest})
    rows.exclude(ended_at=None).update(ended_at=DatabaseNow())  # it goes on after a replay: kept for as long again
    block = Block(batch.id)
    for wanted in step:
        block.publish(wanted["topic"], _message(wanted))
    return True
