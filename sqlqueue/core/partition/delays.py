"""Messages that have a row and wait until they are due: for a retry, or because they were postponed."""

from __future__ import annotations

import heapq
from collections.abc import Container
from itertools import islice

from sqlqueue.core.partition.budget import ReadBudget
from sqlqueue.core.partition.key_limit import LimitedQueue
from sqlqueue.core.partition.ordering import HELD, Entry


class Delays:
    """When waiting messages are due, and which of them are due and to be loaded. Times are monotonic seconds."""

    def __init__(self, budget: ReadBudget):
        self._budget = budget
        self._waiting: list[tuple[float, int, Entry]] = []  # heap of (due, offset, entry), cleaned lazily
        self._due: dict[int, Entry] = {}

    def __bool__(self) -> bool:
        """Whether something is due."""
        return bool(self._due)

    def add(self, entry: Entry) -> None:
        """Let a message wait until it is due."""
        heapq.heappush(self._waiting, (entry.due, entry.offset, entry))

    def next_due(self) -> float | None:
        """Return when the next waiting message is due."""
        return self._waiting[0][0] if self._waiting else None

    def offsets(self, now: float) -> list[int]:
        """Return the offsets of the messages that wait for a time after now."""
        return list({one.offset for _, _, one in self._waiting if one.state == HELD and not one.mark and one.due > now})

    def came_first(self, head: Entry, now: float) -> None:
        """Record that a waiting message is now the first of its ordering queue."""
        if head.due <= now:
            self._mark_due(head, now)
        else:
            self.add(head)

    def elapse(self, now: float) -> None:
        """Find the messages that are due now."""
        while self._waiting and self._waiting[0][0] <= now:
            entry = heapq.heappop(self._waiting)[2]
            if entry.state == HELD and not entry.mark and entry.due <= now:
                self._mark_due(entry, now)

    def mark_due(self, entry: Entry) -> None:
        """Let a message be loaded that has waited until its key may start another."""
        self._due[entry.offset] = entry

    def _mark_due(self, entry: Entry, now: float) -> None:
        queue = entry.queue
        if queue is None or (isinstance(queue, LimitedQueue) and queue.admits_due(entry)):
            self._due[entry.offset] = entry
        elif isinstance(queue, LimitedQueue):
            return
        elif queue.head is entry and not queue.busy:
            most = self._budget.most_ready
            for follower in queue.entries:  # messages behind it that are due as well
                if follower.state != HELD or follower.mark or follower.due > now or not queue.reaches(follower):
                    break
                if len(self._due) >= most and follower is not entry:
                    break
                self._due[follower.offset] = follower

    def to_load(self, most: int, unwritten: Container[int]) -> list[int]:
        """Return the offsets of at most `most` messages that are due, without those whose rows are yet to be written:
        these cannot be read back before."""
        return list(islice((offset for offset in self._due if offset not in unwritten), most))

    def was_loaded(self, offset: int) -> None:
        """Record that a row was read: it is no longer due, whatever was found."""
        self._due.pop(offset, None)
