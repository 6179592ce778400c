"""Deletes work items that are done, with their audit trail, once their retention is over."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlqueue.conf import settings
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.database.statements import execute
from sqlqueue.models import WorkItem
from sqlqueue.models.work_item import DONE

logger = logging.getLogger("sqlqueue")

AT_ONCE = 100  # items of one transaction, with all events of each
MOST_AT_ONCE = 5_000  # items of one call

# Those that are done have a time, and keep it; the oldest first. Index: (finished_at).
FINISHED = "SELECT id FROM sqlqueue_work_item WHERE finished_at <= {earlier} ORDER BY finished_at LIMIT %s"


def collect(alias: str) -> int:
    """Delete items that were done WORK_ITEM_RETENTION ago, about MOST_AT_ONCE at most; return how many. An item that
    another transaction has locked stays: a comment may be on its way."""
    kept: float | None = settings.WORK_ITEM_RETENTION
    total = 0
    while kept is not None and total < MOST_AT_ONCE:
        ids = [id for (id,) in execute(alias, FINISHED, (round(kept * 1_000_000), AT_ONCE)).fetchall()]
        deleted = retries.run(alias, _delete, alias, ids) if ids else 0
        total += deleted
        if deleted < AT_ONCE:
            break
    if total:
        logger.info(logfmt("work_items_collected", count=total))
    return total


def _delete(alias: str, ids: Sequence[int]) -> int:
    items = WorkItem.objects.using(alias).filter(state=DONE)
    free = list(items.filter(pk__in=ids).select_for_update(skip_locked=True).values_list("pk", flat=True))
    items.filter(pk__in=free).only("pk").delete()  # with their events
    return len(free)
