"""Counts what a group would read again, or skip, if it were moved to another offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.models import ConsumerGroup, Offset, Topic
from sqlqueue.stats.counting import Range, count


class RewindPreview(NamedTuple):
    """Counts of messages. above: those above the offset; again: those of them that the group has read already; skipped:
    those at or below the offset that it has not read; estimated: the counts are estimates."""

    above: int
    again: int
    skipped: int
    estimated: bool


class Positions(NamedTuple):
    """The positions of a group by (partition, priority), of those with an offset row; and that of all others."""

    of: dict[tuple[int, int], int]
    start: int

    def each(self, topic: str, partitions: Iterable[int], priorities: int) -> Iterator[tuple[Range, int]]:
        """Yield some partitions, one for each priority, as a range that is empty, and its position."""
        for stream in product(partitions, range(priorities)):
            yield Range(topic, *stream, 0, 0), self.of.get(stream, self.start)


def count_above(
    log: Log, topic: str, offset: int, partition: int | None = None, group: str | None = None
) -> RewindPreview:
    """Count the messages of a topic (or one partition) above an offset, and what moving a group there would do.

    Exact up to sampling.EXACT messages on each side of the group's positions, beyond that estimated. A few statements
    for every 60 partitions and priorities. Messages for another target group count, too.
    """
    options = Topic.objects.using(log.alias).filter(name=topic).first()
    if options is None:
        return RewindPreview(0, 0, 0, False)
    partitions = layouts.numbers(log, topic) if partition is None else [partition]
    positions = positions_of(log, topic, group) if group else Positions({}, offset)
    highest = highest_offset(log)
    between, beyond, read = [], [], []
    for empty, position in positions.each(topic, partitions, options.priorities):
        between.append(empty._replace(low=min(offset, position), high=max(offset, position), part_of="between"))
        beyond.append(empty._replace(low=max(offset, position), high=max(offset, position, highest)))
        read.append(position > offset)
    counts = count(log, [*between, *beyond])
    inside, after = counts[: len(between)], counts[len(between) :]
    again = sum(each.messages for each, was_read in zip(inside, read) if was_read)
    skipped = sum(each.messages for each in inside) - again
    above = again + sum(each.messages for each in after)
    return RewindPreview(above, again, skipped, any(each.estimated for each in counts))


def positions_of(log: Log, topic: str, group: str) -> Positions:
    """Return the group's positions."""
    groups = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    start = groups.values_list("start", flat=True).first() or 0
    rows = Offset.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    found = rows.values_list("partition", "priority", "position")
    return Positions({(p, q): position for p, q, position in found}, start)
