"""How many of a topic's messages each group has settled, counted cheaply."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict

from sqlqueue.models import DeliveryState, Message, Offset

PartitionAndPriority = tuple[int, int]
"""A partition and a priority, for which a group has one position."""


class SettledCounter:
    """Counts settled messages of a topic to which nothing is published any more.

    Offsets are one sequence for the whole log, so a position is not a count. The messages' offsets are read once;
    afterwards a count reads the groups' offset rows and delivery states, which are few.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._offsets: dict[PartitionAndPriority, array[int]] = defaultdict(lambda: array("q"))
        messages = Message.objects.filter(topic=topic).order_by("offset").values_list("partition", "priority", "offset")
        for partition, priority, offset in messages.iterator(chunk_size=10_000):
            self._offsets[partition, priority].append(offset)
        self.total = sum(len(offsets) for offsets in self._offsets.values())

    def settled(self) -> dict[str, int]:
        """Return the number of settled messages by group, without groups that have not begun."""
        counts: Counter[str] = Counter()
        positions: dict[tuple[str, PartitionAndPriority], int] = {}
        offsets = Offset.objects.filter(topic=self.topic)
        for group, partition, priority, position in offsets.values_list(
            "consumer_group", "partition", "priority", "position"
        ):
            positions[group, (partition, priority)] = position
            counts[group] += bisect_right(self._offsets[partition, priority], position)
        states = DeliveryState.objects.filter(topic=self.topic)
        for group, partition, priority, offset, acked in states.values_list(
            "consumer_group", "partition", "priority", "message_offset", "acked"
        ):
            passed = offset <= positions.get((group, (partition, priority)), 0)
            if passed and not acked:
                counts[group] -= 1
            elif acked and not passed:
                counts[group] += 1
        return dict(counts)
