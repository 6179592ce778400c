"""How many of a topic's messages each group has settled, asked often and cheaply."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict

from sqlqueue.models import DeliveryState, Message, Offset

Stream = tuple[int, int]
"""A partition and a priority: what a group has one position in."""


class SettledCounter:
    """Counts settled messages of a topic to which nothing is published any more.

    Offsets are one sequence for the whole log, so a position is not a count. The messages' offsets are read once;
    afterwards a count costs the groups' few position rows, and the few messages that their positions do not tell.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._offsets: dict[Stream, array[int]] = defaultdict(lambda: array("q"))
        messages = Message.objects.filter(topic=topic).order_by("offset").values_list("partition", "priority", "offset")
        for partition, priority, offset in messages.iterator(chunk_size=10_000):
            self._offsets[partition, priority].append(offset)
        self.total = sum(len(offsets) for offsets in self._offsets.values())

    def settled(self) -> dict[str, int]:
        """Return the number of settled messages by group; a group that has not begun is not there."""
        counts: Counter[str] = Counter()
        positions: dict[tuple[str, Stream], int] = {}
        offsets = Offset.objects.filter(topic=self.topic)
        for group, partition, priority, position in offsets.values_list(
            "consumer_group", "partition", "priority", "position"
        ):
            stream = (partition, priority)
            positions[group, stream] = position
            counts[group] += bisect_right(self._offsets[stream], position)
        states = DeliveryState.objects.filter(topic=self.topic)
        for group, partition, priority, offset, acked in states.values_list(
            "consumer_group", "partition", "priority", "message_offset", "acked"
        ):
            behind = offset <= positions.get((group, (partition, priority)), 0)
            if behind and not acked:
                counts[group] -= 1
            elif acked and not behind:
                counts[group] += 1
        return dict(counts)
