"""Which change of a topic's partitions is under way, and how far it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlqueue.database.log import Log
from sqlqueue.log.change_state import Progress, may_abort, standing, under_way
from sqlqueue.models import Topic

# Index: the layouts' unique key.
BEGAN = "SELECT MIN({left}) FROM sqlqueue_layout WHERE topic = %s AND epoch = %s"


@dataclass(frozen=True, slots=True)
class ChangeSurvey:
    """A change of a topic's partitions that is under way.

    before, after: the numbers of partitions. command: what carries it on. may_abort: it can be taken back still. age:
    seconds since it was begun. progress: `left` of `of` parts of a stage are left.
    """

    before: int
    after: int
    command: str
    may_abort: bool
    age: float
    progress: Progress


def changes(log: Log, topics: Iterable[Topic]) -> dict[str, ChangeSurvey]:
    """Return the change that is under way, by its topic. topics: those of `stats.topics.topics_of`. Nothing is read
    while there is none."""
    turning = {topic.name for topic in topics if topic.turning}  # type: ignore[attr-defined]
    change = under_way(log) if turning else None
    if change is None or change.topic not in turning:
        return {}
    after = change.later.partitions
    return {
        change.topic: ChangeSurvey(
            change.earlier.partitions,
            after,
            f"python manage.py queuetopic alter {change.topic} --partitions {after}",
            may_abort(log, change),
            _age(log, change.topic, change.later.epoch),
            standing(log, change),
        )
    }


def _age(log: Log, topic: str, epoch: int) -> float:
    """Return for how many seconds an epoch has been there, by the database's clock."""
    left = log.execute(BEGAN.format(left=log.dialect.remaining("created_at")), (topic, epoch)).fetchone()[0]
    return max(0.0, -float(left or 0))
