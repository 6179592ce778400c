"""How many messages of one key may be in flight, with ordering "none" (the rest of the key waits in line), and how many
may start in a time. Pure; times are monotonic seconds.

All messages of a key are in one partition, and that has one owner; so the owner counts alone, over the priorities.
What waits keeps its payload for the next few messages only; of the others the offset is remembered until the key's
blocked range covers them. Of each key it is remembered when its bucket is full again (GCRA, ITU-T I.371): until then
less may start than a bucket holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlqueue.core.flow import Rate
from sqlqueue.core.partition.ordering import BEHIND, HELD, READY, Entry, OrderingQueue

if TYPE_CHECKING:
    from sqlqueue.core.partition.queues import OrderingQueues

AHEAD: Final = 16  # messages of a key that wait in memory, or are loaded, beyond those that may start
NO_LIMIT: Final = 1 << 30
MOST_KEYS: Final = 100_000  # that are remembered; beyond it the one that is remembered longest is forgotten
ROUNDING: Final = 0.01  # seconds: a message whose row was due is not made to wait again for less


class KeyLimit:
    """How many messages of a key may be in flight (`most`; it may change), and how many are. For one partition; its
    priorities listen."""

    def __init__(self, most: int | None = None):
        self.most = NO_LIMIT if most is None else most
        self.listeners: list[OrderingQueues] = []
        self._in_flight: dict[str, int] = {}

    @property
    def limits(self) -> bool:
        """Whether there is a limit."""
        return self.most < NO_LIMIT

    def free(self, key: str) -> int:
        """Return how many more messages of a key may start; below 0 after the limit was lowered."""
        return self.most - self._in_flight.get(key, 0)

    def started(self, key: str, count: int = 1) -> None:
        """Count messages of a key that are dispatched."""
        self._in_flight[key] = self._in_flight.get(key, 0) + count

    def ended(self, key: str, count: int = 1, teller: OrderingQueues | None = None) -> None:
        """Count messages of a key as no longer in flight; tell all but the one that says so."""
        if left := self._in_flight[key] - count:
            self._in_flight[key] = left
        else:
            del self._in_flight[key]
        for listener in self.listeners:
            if listener is not teller:
                listener.key_freed(key)


class LimitedQueue(OrderingQueue):
    """The messages of one key that wait for their turn under its limit: `entries` is the line, those without a row, by
    offset. Messages with rows wait for themselves, and go first once they are due: `again` are loaded, `due` are not.
    """

    __slots__ = ("again", "due", "limit")

    def __init__(self, name: str, limit: KeyLimit):
        super().__init__(name)
        self.limit = limit
        self.again: deque[Entry] = deque()
        self.due: deque[Entry] = deque()

    @property
    def free(self) -> int:
        """How many more may start; below 0 after the limit was lowered."""
        return self.limit.free(self.name)

    @property
    def used(self) -> bool:
        """Whether something refers to it."""
        return bool(self.entries or self.again or self.due or self.busy or self.rows or self.listed or self.range)

    @property
    def startable(self) -> int:
        """About how many messages of it may start now; 1 at least."""
        return max(1, min(self.free, len(self.entries) + len(self.again)))

    def add(self, entry: Entry) -> None:
        """Let a message wait: in line, or before it, if it is ready and has a row."""
        if entry.row:
            if entry.state == READY:
                self.again.append(entry)
        elif entry.state in (READY, BEHIND):
            super().add(entry)

    def remove(self, entry: Entry) -> None:
        """Take an entry out, if it waits here."""
        entries = self.entries
        if entries and entries[0] is entry:
            entries.popleft()
        elif entries and entries[0].offset < entry.offset <= entries[-1].offset and entry in entries:
            entries.remove(entry)
        elif entry in self.again:
            self.again.remove(entry)

    def start(self, entry: Entry) -> None:
        """Record that a message is in flight."""
        self.remove(entry)
        self.limit.started(self.name)

    def ready(self) -> Iterator[Entry]:
        """Yield the messages that may be dispatched, first those that were tried before."""
        yield from self.again
        for entry in self.entries:
            if entry.state != READY or not self.reaches(entry):
                return
            yield entry

    def ready_at_head(self, most: int) -> list[Entry]:
        """Return the first messages that may start now, at most `most`."""
        return list(islice(self.ready(), max(0, min(most, self.free))))

    def has_before(self, offset: int) -> bool:
        """Tell whether a message at this offset is to wait without its payload."""
        entries = self.entries
        if self.range is not None:
            return True
        if not entries or entries[0].offset >= offset:
            return False
        last = entries[-1]
        if last.offset > offset:  # rarely: it has come late
            last = next(entry for entry in reversed(entries) if entry.offset < offset)
        return last.state == BEHIND or len(entries) >= max(0, self.free) + AHEAD

    def blocked_by_row(self, entry: Entry) -> bool:
        """Tell whether a message in line is to be covered by the key's range."""
        return self.range is not None or (entry.state == BEHIND and self.free <= 0)

    def absent(self) -> list[int]:
        """Return the offsets of the next messages that are not in memory, as far as they are known and wanted."""
        wanted = self.free + AHEAD
        wanted -= sum(1 for _ in islice(self.ready(), max(0, wanted)))
        if wanted <= 0:
            return []
        if self.range is not None:
            return list(islice(self.range.found, wanted))
        return list(islice((entry.offset for entry in self.entries if entry.state == BEHIND), wanted))

    @property
    def lacks(self) -> bool:
        """Whether more of it is to be loaded: little is ready, and there is more in the log."""
        if self.range is not None:
            more = bool(self.range.found) or self.range.unscanned
        else:
            # Not the last one alone: a late message may have come in before others that are in memory.
            more = any(entry.state == BEHIND for entry in islice(self.entries, AHEAD // 2))
        if not more:
            return False
        return sum(1 for _ in islice(self.ready(), AHEAD // 2)) < AHEAD // 2

    def admits_due(self, entry: Entry) -> bool:
        """Tell whether a message whose row is due is to be loaded, or begins to wait until another has ended."""
        if self.free > len(self.again):
            return True
        self.due.append(entry)
        return False

    def due_with(self, entry: Entry, now: float) -> Iterator[Entry]:
        """Yield the message, if it may be loaded."""
        if self.admits_due(entry):
            yield entry

    def comes_first(self, entry: Entry) -> bool:
        """Tell whether a message waits for no other one."""
        return True

    def take_due(self) -> list[Entry]:
        """Return those that are due and may be loaded now; they no longer wait here."""
        count = min(len(self.due), max(0, self.free - len(self.again)))
        taken = [self.due.popleft() for _ in range(count)]
        return [entry for entry in taken if entry.state == HELD]


class KeyRate:
    """Counts what starts. A bucket holds what the rate allows in a second, one message at least."""

    def __init__(self, rate: Rate):
        self.rate = rate
        self._interval = 1 / rate.per_second
        self._burst = max(1, int(rate.per_second))
        self._full_at: dict[str, float] = {}  # of the keys of which something started, in the order of their last start

    def take(self, key: str, most: int, now: float) -> int:
        """Return how many messages of a key start now, at most `most`; they are counted."""
        full_at = max(self._full_at.get(key, now), now)
        count = min(most, self._burst, int((now + ROUNDING - full_at) / self._interval + self._burst))
        if count > 0:
            self._count(key, full_at + count * self._interval, now)
        return max(0, count)

    def start(self, key: str, now: float) -> None:
        """Count a message of a key that starts whatever the rate says."""
        if key:
            self._count(key, max(self._full_at.get(key, now), now) + self._interval, now)

    def give_back(self, key: str) -> None:
        """Count a message of a key no more: it turned out to be too late for its handler."""
        if key in self._full_at:
            self._full_at[key] -= self._interval

    def wait(self, key: str, now: float) -> float:
        """Return in how many seconds the next message of a key may start."""
        return max(0.0, self._full_at.get(key, now) - now - (self._burst - 1) * self._interval)

    def _count(self, key: str, full_at: float, now: float) -> None:
        remembered = self._full_at
        remembered.pop(key, None)
        remembered[key] = full_at
        oldest = next(iter(remembered))
        while remembered[oldest] <= now or len(remembered) > MOST_KEYS:
            del remembered[oldest]
            oldest = next(iter(remembered))
