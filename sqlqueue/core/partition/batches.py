"""What may be dispatched next: what goes into a batch, of which a partition has one at a time, and the candidates of a
consumer that handles the most urgent of its messages first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from sqlqueue.core.partition.ordering import HELD, READY, Entry, OrderingQueue


def choose(entries: Iterable[Entry], most: int) -> list[Entry]:
    """Return the first ready ones of these messages, at most `most`, of queues whose earlier ones are chosen, too."""
    chosen: list[Entry] = []
    taken: dict[OrderingQueue, int] = {}
    for entry in entries:
        if len(chosen) >= most:
            break
        if entry.state == READY and _follows(entry, taken):
            chosen.append(entry)
    return chosen


def follow_position(chosen: Sequence[Entry], offsets: Sequence[int], final: int) -> bool:
    """Tell whether the position may move past these when they are acked: they follow it without a gap, up to F."""
    follows = len(offsets) >= len(chosen) and all(e.offset == o and not e.row for e, o in zip(chosen, offsets))
    return follows and chosen[-1].offset <= final


def enough(loaded: Iterable[Entry], limit: int) -> bool:
    """Tell whether at least `limit` loaded messages can be dispatched. Those behind a message that failed again do not
    count: they cannot be dispatched before that one, which is among the due rows."""
    return (
        sum(entry.queue is None or not entry.queue.entries or entry.queue.entries[0].state != HELD for entry in loaded)
        >= limit
    )


def _follows(entry: Entry, taken: dict[OrderingQueue, int]) -> bool:
    """Tell whether all earlier messages of an entry's queue are chosen; then count it among them."""
    queue = entry.queue
    if queue is None:
        return True
    before = taken.get(queue, 0)
    if queue.busy or before >= len(queue.entries) or queue.entries[before] is not entry or not queue.reaches(entry):
        return False
    taken[queue] = before + 1
    return True


class UrgentFirst:
    """A queue that gives the most urgent message first, and of equally urgent ones that which was added first."""

    def __init__(self, urgency: Callable[[Any], int]):
        self._urgency, self._added = urgency, count()
        self._heap: list[tuple[int, int, Entry | OrderingQueue]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Entry | OrderingQueue]:
        return (candidate for _, _, candidate in self._heap)

    def append(self, candidate: Entry | OrderingQueue) -> None:
        """Add a message that may be dispatched."""
        first = candidate if isinstance(candidate, Entry) else next(iter(candidate.ready_at_head(1)), None)
        message = None if first is None else first.message
        urgency = 0 if message is None else self._urgency(message.headers)
        heapq.heappush(self._heap, (-urgency, next(self._added), candidate))

    def popleft(self) -> Entry | OrderingQueue:
        """Take the first out."""
        return heapq.heappop(self._heap)[2]

    def first(self, most: int) -> list[int]:
        """Return the urgencies of the first ones, at most `most`, highest first."""
        return [-negative for negative, _, _ in heapq.nsmallest(most, self._heap)]
