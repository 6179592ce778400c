"""Replaying what has failed of a batch."""

from __future__ import annotations

from sqlqueue.contrib.batches.members import HEADER
from sqlqueue.contrib.batches.models import DEAD, Batch, BatchMember
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.log import Log, home_log
from sqlqueue.models import Message
from sqlqueue.operations.replay import replay
from sqlqueue.twins import refuse_in_async

MOST_RETRIED = 10_000  # dead letters of one call


def retry_failed(id: str, most: int = MOST_RETRIED) -> int:
    """Deliver the dead letters of a batch, and of those inside it, again, each to the group in which it failed, at most
    so many; return how many. Those of groups that are not registered any more stay. It reads the dead letters of the
    batches' topics."""
    refuse_in_async("retry_failed", "await sync_to_async(retry_failed)(…)")
    done = 0
    for topic in _topics(home_log(), id):
        if some := _dead_letters(home_log(), id, topic, most - done):
            done += replay(topic, offsets=some, database=home_log().label)
    inside = Batch.objects.using(home_log().alias).filter(parent=id, cancelled_at=None).order_by("id")
    for inner in inside.values_list("id", flat=True):
        done += retry_failed(inner, most - done)
    return done


def _topics(log: Log, id: str) -> list[str]:
    rows = BatchMember.objects.using(log.alias).filter(batch=id, state=DEAD)
    return sorted(rows.values_list("topic", flat=True).distinct().order_by())


def _dead_letters(log: Log, id: str, topic: str, most: int) -> list[int]:
    rows = Message.objects.using(log.alias).filter(
        topic=topic + DEAD_LETTER_SUFFIX, **{f"headers__{HEADER}__startswith": f"{id}:"}
    )
    return list(rows.order_by("offset").values_list("offset", flat=True)[:most])
