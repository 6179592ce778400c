"""Which change of a topic's partitions is under way, and how far it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlqueue.database.statements import dialect, execute
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


def changes(alias: str, topics: Iterable[Topic]) -> dict[str, ChangeSurvey]:
    """Return the change that is under way, by its topic. topics: those of `stats.topics.topics_of`. Nothing is read
    while there is none."""
    turning = {topic.name for topic in topics if topic.turning}  # type: ignore[attr-defined]
    change = under_way(alias) if turning else None
    if change is None or change.topic not in turning:
        return {}
    after = change.later.partitions
    return {
        change.topic: ChangeSurvey(
            change.earlier.partitions,
            after,
            f"python manage.py queuetopic alter {change.topic} --partitions {after}",
            may_abort(alias, change),
            _age(alias, change.topic, change.later.epoch),
            standing(alias, change),
        )
    }


def _age(alias: str, topic: str, epoch: int) -> float:
    """Return for how many seconds an epoch has been there, by the database's clock."""
    left = execute(alias, BEGAN.format(left=dialect(alias).remaining("created_at")), (topic, epoch)).fetchone()[0]
    return max(0.0, -float(left or 0))
