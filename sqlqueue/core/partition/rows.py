"""Which delivery-state rows a partition has in the database, or will have once the next plan is written."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort

from sqlqueue.core.partition.blocked import STALE, KeyRanges
from sqlqueue.core.partition.key_limit import LimitedQueue
from sqlqueue.core.partition.ordering import Entry


class Rows:
    """The unsettled rows (`unsettled`: their offsets), which hold the watermark, and the acked ones, which are deleted
    once the position has passed them. `heads`: ordering queues, and messages without one, of which a message has an
    unsettled row."""

    def __init__(self, ranges: KeyRanges):
        self.heads = 0
        self._ranges = ranges
        self.unsettled: set[int] = set()
        self._lowest: list[int] = []  # heap of the same offsets, cleaned lazily
        self._acked: list[int] = []  # ascending

    @property
    def has_acked(self) -> bool:
        """Whether acked rows wait to be deleted."""
        return bool(self._acked)

    def has_passed(self, position: int) -> bool:
        """Whether the position has passed acked rows that are to be deleted."""
        return bool(self._acked) and self._acked[0] <= position

    def add(self, entry: Entry) -> None:
        """Add the row of a message: it has one, or the next plan writes it."""
        entry.row = True
        self.unsettled.add(entry.offset)
        heapq.heappush(self._lowest, entry.offset)
        queue = entry.queue
        if queue is None:
            self.heads += 1
        else:
            self.heads += not queue.rows or isinstance(queue, LimitedQueue)
            queue.rows += 1

    def settle(self, entry: Entry) -> None:
        """Record that a message with an unsettled row is settled: that no longer holds the watermark."""
        self.unsettled.remove(entry.offset)
        queue = entry.queue
        if queue is None:
            self.heads -= 1
        else:
            queue.rows -= 1
            self.heads -= not queue.rows or isinstance(queue, LimitedQueue)

    def add_acked(self, offset: int) -> None:
        """Add an acked row, to be deleted once the position has passed it."""
        insort(self._acked, offset)

    def add_acked_unless_kept(self, offset: int, key: str, position: int) -> None:
        """Add an acked row, to be deleted once the position has passed it, unless its key's range may come to cover
        it."""
        if offset > position or not self._ranges.keep(offset, key):
            insort(self._acked, offset)

    def keep_acked(self, offset: int) -> None:
        """Do not delete an acked row."""
        del self._acked[bisect_left(self._acked, offset)]

    def take_passed(self, position: int) -> list[int]:
        """Return the acked rows that the position has passed: they are to be deleted."""
        count = bisect_right(self._acked, position)
        passed = self._acked[:count]
        del self._acked[:count]
        return passed

    def watermark(self, position: int) -> int:
        """Return W for a position: nothing at or below it is unsettled."""
        if len(self._lowest) > 2 * len(self.unsettled) + STALE:
            self._lowest = sorted(self.unsettled)
        while self._lowest and self._lowest[0] not in self.unsettled:
            heapq.heappop(self._lowest)
        if self._lowest:
            position = min(position, self._lowest[0] - 1)
        lowest = self._ranges.lowest()
        return position if lowest is None else min(position, lowest)
