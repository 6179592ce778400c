"""What operators do with batches."""

from __future__ import annotations

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.membership import HEADER
from sqlqueue.models import BatchPart, Message
from sqlqueue.operations.replay import replay
from sqlqueue.twins import refuse_in_async

MOST_RETRIED = 10_000  # dead letters of one call


def retry_failed(id: str, most: int = MOST_RETRIED) -> int:
    """Deliver the dead letters of a batch again, each to the group in which it failed, at most so many; return how
    many. Those of groups that are not registered any more stay. It reads the dead letters of the batch's topics."""
    refuse_in_async("retry_failed", "await sync_to_async(retry_failed)(…)")
    alias = settings.home
    done = 0
    topics = (
        BatchPart.objects.using(alias).filter(batch=id).values_list("topic", flat=True).distinct().order_by("topic")
    )
    for topic in topics:
        dead_letters = Message.objects.using(alias).filter(
            topic=topic + DEAD_LETTER_SUFFIX, **{f"headers__{HEADER}": id}
        )
        offsets = list(dead_letters.order_by("offset").values_list("offset", flat=True)[: max(0, most - done)])
        if offsets:
            done += replay(topic, offsets=offsets)
    return done
