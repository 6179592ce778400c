"""Deletes batches that have ended once their retention is over."""

from __future__ import annotations

from collections.abc import Sequence

from sqlqueue.conf import settings
from sqlqueue.database import retries
from sqlqueue.database.statements import execute
from sqlqueue.models import Batch, BatchGroup, BatchPart, BatchProgress

AT_ONCE = 500  # batches of one transaction
MOST_AT_ONCE = 5_000  # batches of one call

# Batches whose retention is over, the oldest first. Index: (ended_at).
ENDED = "SELECT id FROM sqlqueue_batch WHERE ended_at <= {earlier} ORDER BY ended_at LIMIT %s"


def collect(alias: str) -> int:
    """Delete batches that ended BATCH_RETENTION ago, with their counts, at most MOST_AT_ONCE; return how many."""
    total = 0
    while total < MOST_AT_ONCE:
        values = (round(settings.BATCH_RETENTION * 1_000_000), AT_ONCE)
        ids = [id for (id,) in execute(alias, ENDED, values).fetchall()]
        if ids:
            retries.run(alias, _delete, alias, ids)
        total += len(ids)
        if len(ids) < AT_ONCE:
            break
    return total


def _delete(alias: str, ids: Sequence[str]) -> None:
    for model in (BatchProgress, BatchPart, BatchGroup):
        model._default_manager.using(alias).filter(batch__in=ids).delete()
    Batch.objects.using(alias).filter(id__in=ids).delete()
