"""Reads of each topic its options, dead letters and scheduled messages, and the change of partitions that is under way;
says that in the active language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Exists, OuterRef
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.core.effects import Count
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
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
from sqlqueue.log.layouts import with_present
from sqlqueue.models import EpochSlot, Layout, Topic, dead_letter_topic
from sqlqueue.stats import counting
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


OVERDUE = 60.0  # seconds

# Index: the log's unique key or that of its streams, by the topic.
DEAD_LETTERS = """
    SELECT %s, failed_group, COUNT(*) FROM (SELECT failed_group FROM sqlqueue_message WHERE topic = %s LIMIT %s)
    AS dead_letters GROUP BY failed_group
"""
# Whether a topic has messages. Index: the same.
ANY = "SELECT %s FROM sqlqueue_message WHERE topic = %s LIMIT 1"
# Index: (refused, due_at).
SCHEDULED = """
    SELECT topic, COUNT(*), SUM(CASE WHEN due_at < {earlier} THEN 1 ELSE 0 END) FROM
    (SELECT topic, due_at FROM sqlqueue_scheduled_message{by_due} WHERE refused = %s ORDER BY due_at LIMIT %s)
    AS waiting GROUP BY topic
"""


@dataclass(frozen=True, slots=True)
class TopicSurvey:
    """Options and counts of a topic.

    retention: seconds, None for ever; overridden: options that an operator has overridden; unread: it has messages and
    no group; dead_letters: of all groups, registered or not, up to 10,000 (more_dead_letters: there are more);
    scheduled, overdue, refused: scheduled messages, of the first 10,000 of all topics (more_scheduled, more_refused:
    there are more, perhaps of this topic); counts: what effects have of it, by the names of their figures;
    epoch: the number of the newest epoch, whose partitions these are: how often they were changed; change: of its
    partitions or databases, if one is under way.
    """

    name: str
    partitions: int
    priorities: int
    paused: bool
    retention: float | None
    history: str
    overridden: tuple[str, ...]
    unread: bool
    dead_letters: int
    more_dead_letters: bool
    scheduled: int
    overdue: int
    refused: int
    more_scheduled: bool
    more_refused: bool
    counts: Mapping[str, Count] = field(default_factory=dict)
    epoch: int = 0
    change: ChangeSurvey | None = None


def topics_of(log: Log, only: str) -> list[Topic]:
    """Return every topic, or only one and its dead-letter topic; `altered` says whether its partitions were changed,
    and `turning` whether they are being changed."""
    layouts = Layout.objects.using(log.alias).filter(topic=OuterRef("name"), base__gt=0)
    slots = EpochSlot.objects.using(log.alias).filter(topic=OuterRef("name"))
    topics = (
        with_present(Topic.objects.using(log.alias))
        .order_by("name")
        .annotate(altered=Exists(layouts), turning=Exists(slots))
    )
    return list(topics.filter(name__in=[only, dead_letter_topic(only)]) if only else topics)


def dead_letters_in(log: Log, topics: Sequence[str]) -> dict[tuple[str, str], int]:
    """Return how many dead letters these dead-letter topics have, by topic and the group in which they failed."""
    found = counting.each(log, DEAD_LETTERS, {topic: (topic, counting.MOST_ROWS) for topic in topics})
    return {(topic, group): count for topic, (group, count) in found}


def with_messages(log: Log, topics: Iterable[str]) -> set[str]:
    """Return which of these topics have messages; dead-letter topics are left out."""
    names = sorted(name for name in topics if not name.endswith(DEAD_LETTER_SUFFIX))
    return {name for name, _ in counting.each(log, ANY, {name: (name,) for name in names})}


def scheduled_in(log: Log, refused: bool) -> dict[str, tuple[int, int]]:
    """Return by topic how many messages are scheduled (or refused), and how many of them are overdue."""
    rows = log.execute(SCHEDULED, (round(OVERDUE * 1_000_000), refused, counting.MOST_ROWS)).fetchall()
    return {topic: (count, int(overdue)) for topic, count, overdue in rows}
