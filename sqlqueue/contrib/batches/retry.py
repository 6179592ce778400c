"""Replaying what has failed of a batch."""

from __future__ import annotations

from sqlqueue.contrib.batches.members import HEADER
from sqlqueue.contrib.batches.models import Batch, BatchPart
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.log import home_log
from sqlqueue.models import Message
from sqlqueue.operations.replay import replay
from sqlqueue.twins import refuse_in_async

MOST_RETRIED = 10_000  # dead letters of one call


def retry_failed(id: str, most: int = MOST_RETRIED) -> int:
    """Deliver the dead letters of a batch, and of those inside it, again, each to the group in which it failed, at most
    so many; return how many. Those of groups that are not registered any more stay. It reads the dead letters of the
    batches' topics."""
    refuse_in_async("retry_failed", "await sync_to_async(retry_failed)(…)")
    log, done = home_log(), 0
    failed = BatchPart.objects.using(log.alias).filter(batch=id, dead__gt=0).order_by()
    for topic in sorted(failed.values_list("topic", flat=True).distinct()):
        dead_letters = Message.objects.using(log.alias).filter(topic=topic + DEAD_LETTER_SUFFIX)
        dead_letters = dead_letters.filter(**{f"headers__{HEADER}__startswith": f"{id}:"}).order_by("offset")
        if some := list(dead_letters.values_list("offset", flat=True)[: most - done]):
            done += replay(topic, offsets=some, database=log.label)
    inside = Batch.objects.using(log.alias).filter(parent=id, cancelled_at=None).order_by("id")
    for inner in inside.values_list("id", flat=True):
        done += retry_failed(inner, most - done)
    return done
