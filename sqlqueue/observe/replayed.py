"""What a group would read again, or skip, if it were moved to another offset: counted before it is done."""

from __future__ import annotations

from typing import NamedTuple

from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.horizon import highest_offset
from sqlqueue.models import ConsumerGroup, Offset, Topic
from sqlqueue.observe.survey import MOST_ROWS, SAMPLE, TABLES_AT_ONCE, reckoned

# Both ends of a range of a stream. Index: (topic, partition, priority, offset).
HEAD = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset") FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place} LIMIT %s) AS head
"""
TAIL = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset") FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place_down} LIMIT %s) AS tail
"""


class Replayed(NamedTuple):
    """Counts of messages. above: what stands above the offset; again: what of that the group has read already; skipped:
    what it has yet to read at or below the offset; estimated: reckoned, not counted."""

    above: int
    again: int
    skipped: int
    estimated: bool


class Range(NamedTuple):
    """A part of a stream: above `low`, up to `high`."""

    partition: int
    priority: int
    low: int
    high: int


def count_above(
    alias: str, topic: str, offset: int, partition: int | None = None, group: str | None = None
) -> Replayed:
    """Count the messages of a topic (or one partition) above an offset, and what moving a group there would do.

    Exact up to some 10,000 messages (200 a stream at least), reckoned from how densely the ends are filled beyond that;
    a statement for every 60 streams. Messages that were published for another group alone count, too.
    """
    options = Topic.objects.using(alias).filter(name=topic).first()
    if options is None:
        return Replayed(0, 0, 0, False)
    partitions = range(options.partitions) if partition is None else [partition]
    streams = [(number, priority) for number in partitions for priority in range(options.priorities)]
    positions = _positions(alias, topic, group) if group else {}
    start = positions.get((-1, -1), offset)
    highest = highest_offset(alias)
    between, beyond = [], []
    for stream in streams:
        position = positions.get(stream, start)
        between.append(Range(*stream, min(offset, position), max(offset, position)))
        beyond.append(Range(*stream, max(offset, position), max(offset, position, highest)))
    counts, estimated = _count(alias, topic, [*between, *beyond])
    inside, after = counts[: len(between)], counts[len(between) :]
    read = [positions.get(stream, start) > offset for stream in streams]
    again = sum(count for count, was_read in zip(inside, read) if was_read)
    skipped = sum(inside) - again
    return Replayed(again + sum(after), again, skipped, estimated)


def _positions(alias: str, topic: str, group: str) -> dict[tuple[int, int], int]:
    """Return the group's position in each stream that has a row; at (-1, -1) that of all others."""
    found = {(-1, -1): 0}
    for start in ConsumerGroup.objects.using(alias).filter(topic=topic, consumer_group=group).values_list("start"):
        found[-1, -1] = start[0]
    rows = Offset.objects.using(alias).filter(topic=topic, consumer_group=group)
    found.update({(p, q): position for p, q, position in rows.values_list("partition", "priority", "position")})
    return found


def _count(alias: str, topic: str, ranges: list[Range]) -> tuple[list[int], bool]:
    words = dialect(alias)
    both = [words.branch.format(HEAD.strip()), words.branch.format(TAIL.strip())]
    counts = [0] * len(ranges)
    estimated = False
    filled = [index for index, one in enumerate(ranges) if one.low < one.high]
    sample = max(SAMPLE, MOST_ROWS // max(1, len(filled)))
    for start in range(0, len(filled), TABLES_AT_ONCE):
        some = filled[start : start + TABLES_AT_ONCE]
        values: list[object] = []
        for index in some:
            one = ranges[index]
            place = words.place(topic, *one)
            values += (index, *place, sample, -1 - index, *place, sample)
        ends: dict[int, tuple[int, int, int]] = {}
        for index, *end in execute(alias, " UNION ALL ".join(both * len(some)), values).fetchall():
            ends[index] = tuple(int(value or 0) for value in end)  # type: ignore[assignment]
        for index in some:
            counts[index], rough = reckoned(ends[index], ends[-1 - index], sample)
            estimated = estimated or rough
    return counts, estimated
