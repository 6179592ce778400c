"""How batches end: each of their callbacks is published in the transaction that records why, and so exactly once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from django.db import Error

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.log import batch_publish
from sqlqueue.log.batch_standing import Standing, standings
from sqlqueue.log.publish import publish_message
from sqlqueue.models import Batch, BatchGroup, ConsumerGroup

logger = logging.getLogger("sqlqueue")

SWEPT_AT_ONCE = 100  # batches


def check(log: Log, ids: Iterable[str]) -> None:
    """Publish the callbacks of those batches that have failed, finished or succeeded. After a commit that may have
    brought that about: what another process commits at the same time, the later check of the two sees.

    A callback that cannot be published is logged, and tried again by the sweep.
    """
    wanted = set(ids)
    while wanted:
        parents: set[str] = set()
        for standing in standings(log, sorted(wanted)).values():
            try:
                ended = _end(log, standing)
            except Exception as error:
                if isinstance(error, Error) and _may_pass(log, error):
                    raise
                logger.error(logfmt("batch_callback_refused", batch=standing.batch.id, error=error))
                continue
            if ended and standing.batch.parent:
                parents.add(standing.batch.parent)
        wanted = parents


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


def sweep(log: Log, beyond: str = "") -> str:
    """Check some batches that are not over, above an id; return the id of the last one, "" after the last of all.

    That is for what comes with time (deadlines, groups that are registered or removed), and for processes that were
    killed between a settle and the check behind it. One statement if there are none.
    """
    rows = Batch.objects.using(log.alias).filter(over=False, id__gt=beyond).order_by("id")
    ids = list(rows.values_list("id", flat=True)[:SWEPT_AT_ONCE])
    check(log, ids)
    return ids[-1] if len(ids) == SWEPT_AT_ONCE else ""


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


def _end(log: Log, standing: Standing) -> bool:
    """Record what has come about of a batch, and publish its callbacks; return whether anything has."""
    batch = standing.batch
    if batch.over:
        return False
    if batch.sealed_at is not None and standing.to_list:
        _list(log, batch, standing.to_list)
    ended = False
    if batch.failed_at is None and (standing.failed or standing.failed_inside or standing.overdue):
        ended = retries.run(log, _record, log, batch, "failed_at", "failure")
    if standing.to_go_on:
        ended = retries.run(log, _begin_next, log, batch) or ended
    elif standing.finished and (batch.finished_at is None or standing.succeeded):
        ended = retries.run(log, _finish, log, standing) or ended
    return ended


def _finish(log: Log, standing: Standing) -> bool:
    """Record that a batch is finished, and whether it has succeeded. In one transaction: between two, a batch around it
    would see it finished, and not yet succeeded."""
    batch, ended = standing.batch, False
    if batch.finished_at is None:
        ended = _record(log, batch, "finished_at", "finish", ended_at=DatabaseNow())
    if standing.succeeded:
        ended = _record(log, batch, "succeeded_at", "success", over=True) or ended
    return ended


def _list(log: Log, batch: Batch, groups: Iterable[tuple[str, str]]) -> None:
    rows = [BatchGroup(batch=batch.id, topic=topic, consumer_group=group) for topic, group in groups]
    BatchGroup.objects.using(log.alias).bulk_create(rows, ignore_conflicts=True)


def _list_new_topics(log: Log, batch: Batch, topics: set[str]) -> None:
    """List the groups of those topics of a step that had no members before: all that are registered by now see it."""
    listed = BatchGroup.objects.using(log.alias).filter(batch=batch.id).values("topic")
    groups = ConsumerGroup.objects.using(log.alias).filter(topic__in=topics).exclude(topic__in=listed)
    _list(log, batch, list(groups.values_list("topic", "consumer_group")))


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
    _list_new_topics(log, batch, {wanted["topic"] for wanted in step})
    for wanted in step:
        batch_publish.publish_member(batch.id, wanted["topic"], _message(wanted))
    return True
