"""The candidates of a consumer that handles the most urgent of its messages first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from sqlqueue.core.partition.ordering import Entry, OrderingQueue


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
