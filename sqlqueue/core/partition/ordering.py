"""Messages in memory, the ordering queues that keep them in order, and what of them goes into a batch, of which a
partition has one at a time. An ordering queue holds the messages of one key, or of a whole partition; a message without
one is free."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any, Final

from sqlqueue.core.partition.blocked import KeyRange
from sqlqueue.core.settle_plan import Attempt, FetchedMessage

READY: Final = 0  # read, in memory, may be dispatched once its ordering queue allows it
IN_FLIGHT: Final = 1  # with a handler, or queued for one
HELD: Final = 2  # has a row, and waits: until it is due, behind its key, or (in doubt) to be dispatched alone
SETTLED: Final = 3  # settled; stays in memory until the position passes it
BEHIND: Final = 4  # an earlier message of its key waits: only its offset is remembered


class Entry:
    """What is remembered of one message."""

    __slots__ = (
        "attempt",
        "count",
        "due",
        "key",
        "limited",
        "mark",
        "message",
        "offset",
        "queue",
        "refused",
        "row",
        "size",
        "state",
    )

    def __init__(
        self, offset: int, queue: OrderingQueue | None, state: int, message: FetchedMessage | None, key: str = ""
    ):
        self.offset, self.queue, self.state, self.message, self.key = offset, queue, state, message, key
        self.size = 0  # of its message, while that is in memory
        self.row = False  # there is a delivery-state row
        self.count = 0  # its retry_count
        self.mark = 0  # in flight by a former owner (together or alone): in doubt
        self.due = 0.0  # monotonic
        self.refused = False  # it was claimed ahead, and did not start in time: its next claim is written
        self.limited = False  # it is held until its key's rate allows it
        self.attempt: Attempt | None = None

    def __lt__(self, other: Entry) -> bool:
        return self.offset < other.offset


class OrderingQueue:
    """The unsettled messages of one ordering queue that are in memory, by offset, and how many of them are in flight.
    `range`: its messages that are not in memory, and come before all in the window."""

    __slots__ = ("busy", "entries", "listed", "name", "range", "rows")

    def __init__(self, name: str):
        self.name = name
        self.entries: deque[Entry] = deque()
        self.busy = 0  # how many are in flight
        self.listed = False  # it is among the candidates
        self.range: KeyRange | None = None
        self.rows = 0  # how many have an unsettled row

    def add(self, entry: Entry) -> None:
        """Insert an entry by its offset; nearly always at the end, since offsets grow."""
        if not self.entries or self.entries[-1].offset < entry.offset:
            self.entries.append(entry)
        else:
            insort(self.entries, entry)

    def remove(self, entry: Entry) -> None:
        """Take a settled entry out; nearly always the first."""
        if self.entries[0] is entry:
            self.entries.popleft()
        else:
            self.entries.remove(entry)

    def reaches(self, entry: Entry) -> bool:
        """Tell whether everything before an entry is in memory, or settled."""
        return self.range is None or entry.offset <= self.range.loaded

    @property
    def head(self) -> Entry | None:
        """The first unsettled message, if it is in memory."""
        return self.entries[0] if self.entries and self.reaches(self.entries[0]) else None

    def has_before(self, offset: int) -> bool:
        """Tell whether a message at this offset waits behind an earlier one: one with a row, a range, or one that
        itself is behind another."""
        if self.range is not None:
            return True
        if not self.entries or self.entries[0].offset >= offset:
            return False
        if self.entries[0].row:
            return True
        last = self.entries[-1]
        if last.offset > offset:  # rarely: it has come late
            last = next(entry for entry in reversed(self.entries) if entry.offset < offset)
        return last.state == BEHIND

    def blocked_by_row(self, entry: Entry) -> bool:
        """Tell whether an earlier message of the queue is unsettled and has a row, or lies in the range."""
        return self.range is not None or (self.entries[0] is not entry and self.entries[0].row)

    def ready_at_head(self, most: int) -> list[Entry]:
        """Return the first entries that are ready, one behind another, at most `most`."""
        found: list[Entry] = []
        end = math.inf if self.range is None else self.range.loaded
        for entry in islice(self.entries, most):
            if entry.state != READY or entry.offset > end:
                break
            found.append(entry)
        return found

    def comes_first(self, entry: Entry) -> bool:
        """Tell whether a message waits for no other one."""
        return self.head is entry and not self.busy

    def due_with(self, entry: Entry, now: float) -> Iterator[Entry]:
        """Yield a message that is due, if it comes first, and those behind it that are due as well."""
        if self.comes_first(entry):
            for each in self.entries:
                if each.state != HELD or each.mark or each.due > now or not self.reaches(each):
                    return
                yield each

    def absent(self) -> list[int]:
        """Return the offsets of the first messages, as far as they are known and not in memory."""
        if self.range is not None:
            return list(self.range.found)
        offsets: list[int] = []
        for entry in self.entries:
            if entry.state != BEHIND:
                break
            offsets.append(entry.offset)
        return offsets


def choose_batch(entries: Iterable[Entry], most: int) -> list[Entry]:
    """Return what goes into a batch: the first ready ones of these messages, at most `most`, of queues whose earlier
    ones are chosen, too."""
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
