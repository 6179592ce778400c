"""Deletes batches that have ended once their retention is over; and the system check of that setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, register

from sqlqueue.checks import TAG
from sqlqueue.conf import app_retention
from sqlqueue.contrib.batches.models import Batch, BatchPart
from sqlqueue.core.bounds import WEEK
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError

AT_ONCE = 500  # batches of one transaction
PARTS_AT_ONCE = 1_000  # rows of one transaction
MOST_AT_ONCE = 5_000  # batches of one call

# Batches whose retention is over, the oldest first; those inside another only once that is deleted: it may wait for
# their success. Index: (ended_at); the primary key.
ENDED = """
    SELECT b.id FROM sqlqueue_batch b WHERE b.ended_at <= {earlier}
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_batch p WHERE p.id = b.parent) ORDER BY b.ended_at LIMIT %s
"""


def retention() -> float | None:
    """Return for how many seconds a batch that has ended is kept, as SQLQUEUE_BATCHES["RETENTION"] says; None: for
    ever. Raises ConfigurationError if that setting is wrong."""
    return app_retention("SQLQUEUE_BATCHES", WEEK)


@register(TAG)
def check_retention(**kwargs: Any) -> list[CheckMessage]:
    """sqlqueue_batches.E001: the setting SQLQUEUE_BATCHES is wrong."""
    try:
        retention()
    except ConfigurationError as error:
        return [Error(str(error), hint="docs/guide.md has its option.", id="sqlqueue_batches.E001")]
    return []


def collect(log: Log) -> int:
    """Delete batches that have ended as long ago, with their members, at most MOST_AT_ONCE; return how many."""
    kept, total = retention(), 0
    while kept is not None and total < MOST_AT_ONCE:
        ids = [id for (id,) in log.execute(ENDED, (round(kept * 1_000_000), AT_ONCE)).fetchall()]
        if not ids:
            break
        while retries.run(log, _delete_parts, log, ids):
            pass
        retries.run(log, Batch.objects.using(log.alias).filter(id__in=ids).delete)
        total += len(ids)
    return total


def _delete_parts(log: Log, ids: Sequence[str]) -> int:
    rows = BatchPart.objects.using(log.alias)
    some = list(rows.filter(batch__in=ids).values_list("pk", flat=True)[:PARTS_AT_ONCE])
    return rows.filter(pk__in=some).delete()[0]
