"""Messages that wait with a row: until they are due, for a retry or because they were postponed, or to be dispatched
alone, because they were in flight with a former owner when it ended (in doubt)."""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Final

from sqlqueue.core.partition.ordering import HELD, Entry
from sqlqueue.core.partition.window import ReadBudget

MOST_DEATHS: Final = 5  # in a row, after which a message without max_attempts is a dead letter


class Delays:
    """When waiting messages are due, and which of them are due and to be loaded (`due`, by offset). Times are monotonic
    seconds."""

    def __init__(self, budget: ReadBudget):
        self._budget = budget
        self.waiting: list[tuple[float, int, Entry]] = []  # heap of (due, offset, entry), cleaned lazily
        self.due: dict[int, Entry] = {}

    def add(self, entry: Entry, now: float = -math.inf) -> None:
        """Let a message wait until it is due; one that is due now is to be loaded."""
        if entry.due <= now:
            self._mark_due(entry, now)
        else:
            heapq.heappush(self.waiting, (entry.due, entry.offset, entry))

    def next_due(self) -> float | None:
        """Return when the next waiting message is due."""
        return self.waiting[0][0] if self.waiting else None

    def offsets(self, now: float) -> list[int]:
        """Return the offsets of the messages that wait for a time after now."""
        return list({one.offset for _, _, one in self.waiting if one.state == HELD and not one.mark and one.due > now})

    def elapse(self, now: float) -> None:
        """Find the messages that are due now."""
        while self.waiting and self.waiting[0][0] <= now:
            entry = heapq.heappop(self.waiting)[2]
            if entry.state == HELD and not entry.mark and entry.due <= now:
                self._mark_due(entry, now)

    def _mark_due(self, entry: Entry, now: float) -> None:
        for each in [entry] if entry.queue is None else entry.queue.due_with(entry, now):
            if each is not entry and len(self.due) >= self._budget.most_ready:
                break
            self.due[each.offset] = each


class InDoubt:
    """The messages in doubt (`entries`, by offset), ascending as they were recalled."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._unseen: deque[int] = deque()  # those that take_unseen() has not returned

    def add(self, entry: Entry) -> None:
        """Add a message whose row is in flight."""
        self.entries[entry.offset] = entry
        self._unseen.append(entry.offset)

    def take_unseen(self, most: int) -> list[int]:
        """Return the next messages, at most `most`, which it has not returned before."""
        return [self._unseen.popleft() for _ in range(min(most, len(self._unseen)))]

    def remove(self, entry: Entry) -> None:
        """Forget a message: it is settled, dispatched, or its row is in flight no more."""
        self.entries.pop(entry.offset, None)

    def first(self) -> int | None:
        """Return the offset of a message in doubt that is first in its ordering queue, if any."""
        for offset, entry in self.entries.items():
            if entry.queue is None or entry.queue.comes_first(entry):
                return offset
        return None
