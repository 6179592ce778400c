"""People's work as an effect: HandOver makes a work item of a message."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlqueue.contrib.people import items, survey
from sqlqueue.contrib.people.exceptions import HandOver
from sqlqueue.contrib.people.models import DONE, UNFINISHED, WorkItem
from sqlqueue.contrib.people.topics import retention
from sqlqueue.core.effects import Count, Effect, EffectWrite
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.database.log import Log

logger = logging.getLogger("sqlqueue")

AT_ONCE = 100  # items that one transaction of a sweep, or of a drop, deletes, with all events of each
MOST_AT_ONCE = 5_000  # items of one sweep

# Those that are done have a time, and keep it; the oldest first. Index: (finished_at).
FINISHED = "SELECT id FROM sqlqueue_work_item WHERE finished_at <= {earlier} ORDER BY finished_at LIMIT %s"


class WorkItems(Effect):
    """Writes, counts and deletes work items."""

    exception = HandOver
    figures = survey.FIGURES

    def decide(self, error: HandOver) -> items.HandedOver:
        """Return what the handler says to the people who go on with the message."""
        return items.handed_over(error)

    def settle(self, log: Log, writes: Sequence[EffectWrite]) -> None:
        """Copy the messages to the work items."""
        for lease in dict.fromkeys(each.lease for each in writes):
            items.write(log, lease, [each for each in writes if each.lease is lease])

    def sweep(self, log: Log) -> bool:
        """Delete items that were done SQLQUEUE_PEOPLE["RETENTION"] ago, with their audit trail."""
        return collect(log) >= MOST_AT_ONCE

    def withdrawn(self, log: Log, topic: str, group: str, messages: Iterable[Any] | None) -> int:
        """Delete some of what people have not done of a topic that is dropped, and of its dead letters. Index: (state,
        topic)."""
        names = [topic, topic + DEAD_LETTER_SUFFIX]
        rows = WorkItem.objects.using(log.alias).filter(state__in=UNFINISHED, topic__in=names)
        some = list(rows.values_list("pk", flat=True)[:AT_ONCE])
        WorkItem.objects.using(log.alias).filter(pk__in=some).only("pk").delete()  # with their events
        return len(some)

    def survey(self, log: Log, topics: Sequence[str]) -> Mapping[str, Mapping[str, Count]]:
        """Count what people have not done, and what of that is overdue."""
        return survey.open_work(log, topics)


WORK_ITEMS = WorkItems()


def collect(log: Log) -> int:
    """Delete items that were done SQLQUEUE_PEOPLE["RETENTION"] ago, about MOST_AT_ONCE at most; return how many. An
    item that another transaction has locked stays: a comment may be on its way. Raises ConfigurationError if that
    setting is wrong."""
    kept = retention()
    total = 0
    while kept is not None and total < MOST_AT_ONCE:
        ids = [id for (id,) in log.execute(FINISHED, (round(kept * 1_000_000), AT_ONCE)).fetchall()]
        deleted = retries.run(log, _delete, log, ids) if ids else 0
        total += deleted
        if deleted < AT_ONCE:
            break
    if total:
        logger.info(logfmt("work_items_collected", count=total))
    return total


def _delete(log: Log, ids: Sequence[int]) -> int:
    rows = WorkItem.objects.using(log.alias).filter(state=DONE)
    free = list(rows.filter(pk__in=ids).select_for_update(skip_locked=True).values_list("pk", flat=True))
    rows.filter(pk__in=free).only("pk").delete()  # with their events
    return len(free)
