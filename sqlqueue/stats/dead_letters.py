"""Groups dead letters by group and fingerprint, for an operator who looks into failures.

A read is bounded: it takes the first dead letters of a topic in the order of its partitions. The rest appears once
others have been replayed or discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.log import Log
from sqlqueue.models import Message, Topic, dead_letter_topic
from sqlqueue.stats import counting

MOST_READ = 10_000  # dead letters, of one topic or of all
LEAST_READ = 100  # of each, if there are many topics
MOST_SHOWN = 200  # kinds of failure

# Index: (topic, partition, priority, offset), by the topic; the messages by their primary key.
READ = 'SELECT failed_group, fingerprint, "offset" FROM sqlqueue_message{by_stream} WHERE topic = %s LIMIT %s'
GROUPED = f"""
    SELECT %s, failed_group, fingerprint, COUNT(*), MIN("offset"), MAX("offset") FROM ({READ}) AS dead_letters
    GROUP BY failed_group, fingerprint
"""
CHOSEN = f'SELECT "offset" FROM ({READ}) AS dead_letters WHERE failed_group <> %s'


@dataclass(frozen=True, slots=True)
class FailureKind:
    """Dead letters of one topic, group and fingerprint: how many, when the first and the last one failed, and the last
    one's error and offset."""

    topic: str
    group: str
    fingerprint: str
    dead_letters: int
    first_at: datetime | None
    last_at: datetime | None
    error: str
    offset: int


class FailureKinds(NamedTuple):
    """kinds: the most frequent kinds of failure; unread: topics of which not all dead letters were read; hidden: how
    many kinds are left out."""

    kinds: list[FailureKind]
    unread: list[str]
    hidden: int = 0


def topics_with_dead_letters(log: Log) -> list[str]:
    """Return the topics that have a dead-letter topic."""
    names = Topic.objects.using(log.alias).filter(name__endswith=DEAD_LETTER_SUFFIX).order_by("name")
    return [name.removesuffix(DEAD_LETTER_SUFFIX) for name in names.values_list("name", flat=True)]


def failures(log: Log, topics: Sequence[str], group: str = "") -> FailureKinds:
    """Sort the dead letters of these topics (of one group, or all) by their fingerprints, most frequent first."""
    most = max(LEAST_READ, MOST_READ // max(1, len(topics)))
    items = {name: (dead_letter_topic(name), most) for name in topics}
    found = counting.each(log, GROUPED, items)
    rows = [(name, *row) for name, row in found]
    unread = [name for name in topics if _read(rows, name) == most and has_more(log, name, most)]
    rows = [row for row in rows if row[1] and group in ("", row[1])]
    rows.sort(key=lambda row: -row[3])
    return FailureKinds(_kinds(log, rows[:MOST_SHOWN]), unread, max(0, len(rows) - MOST_SHOWN))


def dead_letters(
    log: Log,
    topic: str,
    most: int,
    *,
    group: str = "",
    fingerprint: str | None = None,
    before: int | None = None,
) -> list[int]:
    """Return offsets of a topic's dead letters, newest first: of one group or all (""), of one fingerprint or any
    (None), at most so many, below `before`."""
    text, values = CHOSEN, [dead_letter_topic(topic), MOST_READ, ""]
    for condition, value in (
        ("failed_group = %s", group or None),
        ("fingerprint = %s", fingerprint),
        ('"offset" < %s', before),
    ):
        if value is not None:
            text, values = f"{text} AND {condition}", [*values, value]
    rows = log.execute(f'{text} ORDER BY "offset" DESC LIMIT %s', [*values, most]).fetchall()
    return [offset for (offset,) in rows]


def _read(rows: Sequence[Any], topic: str) -> int:
    return sum(row[3] for row in rows if row[0] == topic)


def has_more(log: Log, topic: str, read: int | None = None) -> bool:
    """Tell whether a topic has more dead letters than were read (unless told: than are ever read)."""
    read = MOST_READ if read is None else read
    rows = Message.objects.using(log.alias).filter(topic=dead_letter_topic(topic)).values_list("topic", flat=True)
    return bool(rows[read : read + 1])


def _kinds(log: Log, rows: Sequence[Any]) -> list[FailureKind]:
    firsts = {row[4] for row in rows}
    lasts = {row[5] for row in rows}
    at = Message.objects.using(log.alias).filter(offset__in=firsts | lasts)
    times = dict(at.values_list("offset", "failed_at"))
    errors = dict(at.filter(offset__in=lasts).values_list("offset", "last_error"))
    return [
        FailureKind(topic, group, print_, count, times.get(first), times.get(last), errors.get(last) or "", last)
        for topic, group, print_, count, first, last in rows
    ]
