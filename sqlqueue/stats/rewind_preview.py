"""Counts what a group would read again, or skip, if it were moved to another offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.slices import in_slice
from sqlqueue.database.statements import dialect, execute
from sqlqueue.log import layouts
from sqlqueue.models import ConsumerGroup, Offset, Topic
from sqlqueue.stats.sampling import MOST_ROWS, SAMPLE, TABLES_AT_ONCE, estimate

# Both ends of a range in one partition and priority. Index: (topic, partition, priority, offset).
HEAD = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset") FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within}{slice} ORDER BY {ascending} LIMIT %s) AS head
"""
TAIL = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset") FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within}{slice} ORDER BY {descending} LIMIT %s) AS tail
"""


class RewindPreview(NamedTuple):
    """Counts of messages. above: those above the offset; again: those of them that the group has read already; skipped:
    those at or below the offset that it has not read; estimated: the counts are estimates."""

    above: int
    again: int
    skipped: int
    estimated: bool


class PartitionRange(NamedTuple):
    """Offsets of one partition and priority, or a slice of it: above `low`, up to `high`."""

    partition: int
    priority: int
    low: int
    high: int
    slice: int = 0
    slices: int = 1


class Positions(NamedTuple):
    """The positions of a group by (partition, priority, slice), of those with an offset row; that of all others; and
    how many slices each partition has."""

    of: dict[tuple[int, int, int], int]
    start: int
    slices: int

    def each(self, partitions: Iterable[int], priorities: int) -> Iterator[tuple[PartitionRange, int]]:
        """Yield every slice of some partitions as a range that is empty, and its position."""
        for stream in product(partitions, range(priorities), range(self.slices)):
            partition, priority, slice = stream
            yield PartitionRange(partition, priority, 0, 0, slice, self.slices), self.of.get(stream, self.start)


def count_above(
    alias: str, topic: str, offset: int, partition: int | None = None, group: str | None = None
) -> RewindPreview:
    """Count the messages of a topic (or one partition) above an offset, and what moving a group there would do.

    Exact up to some 10,000 messages (at least 200 for each partition and priority), beyond that estimated from how
    densely the ends are filled. One statement for every 60 partitions and priorities. Messages for another target group
    count, too.
    """
    options = Topic.objects.using(alias).filter(name=topic).first()
    if options is None:
        return RewindPreview(0, 0, 0, False)
    partitions = layouts.numbers(alias, topic) if partition is None else [partition]
    positions = positions_of(alias, topic, group) if group else Positions({}, offset, 1)
    highest = highest_offset(alias)
    between, beyond, read = [], [], []
    for empty, position in positions.each(partitions, options.priorities):
        between.append(empty._replace(low=min(offset, position), high=max(offset, position)))
        beyond.append(empty._replace(low=max(offset, position), high=max(offset, position, highest)))
        read.append(position > offset)
    counts, estimated = count_ranges(alias, topic, [*between, *beyond])
    inside, after = counts[: len(between)], counts[len(between) :]
    again = sum(count for count, was_read in zip(inside, read) if was_read)
    skipped = sum(inside) - again
    return RewindPreview(again + sum(after), again, skipped, estimated)


def positions_of(alias: str, topic: str, group: str) -> Positions:
    """Return the group's positions."""
    groups = ConsumerGroup.objects.using(alias).filter(topic=topic, consumer_group=group)
    start, slices = groups.values_list("start", "sharing").first() or (0, 1)
    rows = Offset.objects.using(alias).filter(topic=topic, consumer_group=group)
    found = rows.values_list("partition", "priority", "slice", "position")
    return Positions({(p, q, slice): position for p, q, slice, position in found}, start, slices)


def count_ranges(alias: str, topic: str, ranges: list[PartitionRange]) -> tuple[list[int], bool]:
    """Return how many messages each range has, and whether any of these counts is an estimate."""
    sql = dialect(alias)
    both = " UNION ALL ".join([sql.branch.format(HEAD.strip()), sql.branch.format(TAIL.strip())])
    counts = [0] * len(ranges)
    estimated = False
    filled = [index for index, one in enumerate(ranges) if one.low < one.high]
    sample = max(SAMPLE, MOST_ROWS // max(1, len(filled)))
    for start in range(0, len(filled), TABLES_AT_ONCE):
        some = filled[start : start + TABLES_AT_ONCE]
        values: list[object] = []
        for index in some:
            one = ranges[index]
            bounds = sql.range_values(topic, *one[:4])
            values += (index, *bounds, sample, -1 - index, *bounds, sample)
        ends: dict[int, tuple[int, int, int]] = {}
        slices = [(ranges[index].slice, ranges[index].slices) for index in some]
        texts = [both.replace("{slice}", in_slice('"offset"', *its)) for its in slices]
        for index, *end in execute(alias, " UNION ALL ".join(texts), values).fetchall():
            ends[index] = tuple(int(value or 0) for value in end)  # type: ignore[assignment]
        for index in some:
            counts[index], rough = estimate(ends[index], ends[-1 - index], sample)
            estimated = estimated or rough
    return counts, estimated
