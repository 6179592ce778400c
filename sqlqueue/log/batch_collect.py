"""Deletes batches that have ended once their retention is over."""

from __future__ import annotations

from collections.abc import Sequence

from sqlqueue.conf import settings
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.models import Batch, BatchGroup, BatchPart, BatchProgress

AT_ONCE = 500  # batches of one transaction
MOST_AT_ONCE = 5_000  # batches of one call

# Batches whose retention is over, the oldest first; those inside another only once that is deleted: it may wait for
# their success. Index: (ended_at); the primary key.
ENDED = """
    SELECT b.id FROM sqlqueue_batch b WHERE b.ended_at <= {earlier}
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_batch p WHERE p.id = b.parent) ORDER BY b.ended_at LIMIT %s
"""


def collect(log: Log) -> int:
    """Delete batches that ended BATCH_RETENTION ago, with their counts, at most MOST_AT_ONCE; return how many."""
    total = 0
    while total < MOST_AT_ONCE:
        values = (round(settings.BATCH_RETENTION * 1_000_000), AT_ONCE)
        ids = [id for (id,) in log.execute(ENDED, values).fetchall()]
        if not ids:
            break
        retries.run(log, _delete, log, ids)
        total += len(ids)
    return total


def _delete(log: Log, ids: Sequence[str]) -> None:
    for model in (BatchProgress, BatchPart, BatchGroup):
        model._default_manager.using(log.alias).filter(batch__in=ids).delete()
    Batch.objects.using(log.alias).filter(id__in=ids).delete()
