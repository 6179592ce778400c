"""Which change of a topic's partitions is under way, how far it is, and what is said of it in the active language."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.database.log import Log
from sqlqueue.log.layout_changes import (
    END,
    GATE,
    KEYS,
    LAST,
    TRANSACTIONS,
    Progress,
    may_abort,
    standing,
    under_way,
)
from sqlqueue.models import Topic
from sqlqueue.stats.texts import duration

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


def change_text(topic: str, change: ChangeSurvey) -> str:
    """Say what is changed, and since when."""
    names = {"topic": topic, "before": change.before, "after": change.after}
    if change.before == change.after:
        text = _("The change of the partitions of %(topic)s is over, and its publishers learn of that.") % names
    else:
        text = _("The keys of %(topic)s go over from %(before)s partitions to %(after)s others.") % names
    begun = _("That was begun %(age)s ago.") % {"age": duration(change.age)}
    return f"{text} {begun}"


def progress_text(one: Progress) -> str:
    """Say how far a change is, and what it waits for."""
    if one.stage == TRANSACTIONS:
        return _("It waits for transactions that have published before the change, and are still open.")
    if one.stage == END:
        return _("All keys have gone over; where the former partitions end is still to be stored.")
    assert one.stage in (GATE, KEYS, LAST)
    if one.stage == KEYS:
        return ngettext(
            "%(left)d of %(of)d parts of its keys has not gone over: it waits for transactions that have published "
            "and are still open.",
            "%(left)d of %(of)d parts of its keys have not gone over: they wait for transactions that have published "
            "and are still open.",
            one.left,
        ) % {"left": one.left, "of": one.of}
    return ngettext(
        "%(left)d of %(of)d parts of its publishers does not know of it yet: it waits for transactions that have "
        "published and are still open.",
        "%(left)d of %(of)d parts of its publishers do not know of it yet: they wait for transactions that have "
        "published and are still open.",
        one.left,
    ) % {"left": one.left, "of": one.of}


def change_advice(topic: str, change: ChangeSurvey) -> str:
    """Say what can be done."""
    text = _(
        "Nothing is lost or held up. Consumer processes carry it on, and so does “%(command)s”. If it stands still: "
        "start them, and end the transactions, which the database's process list shows."
    ) % {"command": change.command}
    if not change.may_abort:
        return text
    abort = _("“python manage.py queuetopic alter %(topic)s --abort” takes it back.") % {"topic": topic}
    return f"{text} {abort}"
