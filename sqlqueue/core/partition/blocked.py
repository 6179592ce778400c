"""Blocked ranges: the messages of a key that wait behind an earlier one of it. One row for each key, however many wait.

Every visible message of the key with low < offset <= high that has no row of its own is unsettled, and was never
dispatched. A range lies at or below the position, so nothing can appear inside it any more. It is used up from below: a
bounded scan finds the next messages of the key, they are loaded, and `low` rises over those that get a row in the same
transaction, and over what a scan has found to be empty; it never falls.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class StoredRange(NamedTuple):
    """A range as it is stored; one whose low has reached its high is to be deleted. messages: about how many it holds,
    for display only."""

    key: str
    low: int
    high: int
    messages: int


class KeyRange:
    """What an owner knows of the blocked messages of one key."""

    __slots__ = ("found", "high", "kept", "key", "loaded", "low", "messages", "scanned")

    def __init__(self, stored: StoredRange):
        self.key, self.low, self.high, self.messages = stored
        self.loaded = self.low  # up to here all of the key is in memory, or settled
        self.scanned = self.low  # up to here it is known what there is of the key:
        self.found: deque[int] = deque()  # the offsets of these, beyond `loaded`
        self.kept: list[int] = []  # acked rows above low: it may come to cover them

    @property
    def unscanned(self) -> bool:
        """Whether a scan has to find the next messages."""
        return not self.found and self.scanned < self.high

    def begin_again(self, loaded: int) -> None:
        """Forget what was found, and what was loaded beyond an offset."""
        self.loaded = self.scanned = max(self.low, min(self.loaded, loaded))
        self.found.clear()

    def was_loaded(self, count: int) -> None:
        """Record that the first `count` found messages are in memory, or settled."""
        for _ in range(count):
            self.found.popleft()
        self.loaded = self.found[0] - 1 if self.found else self.scanned

    def raise_low(self, low: int) -> list[int]:
        """Raise `low`; return the offsets of acked rows that the range no longer needs."""
        self.low = max(self.low, low)
        done = self.low >= self.high
        released = [offset for offset in self.kept if done or offset <= self.low]
        self.kept = self.kept[len(released) :]
        return released

    def stored(self) -> StoredRange:
        """Return the range as it is to be stored."""
        return StoredRange(self.key, self.low, self.high, max(0, self.messages))


class KeyRanges:
    """The blocked ranges of one assigned partition, by key, and which of them have changed (`touched`): the next plan
    stores these."""

    def __init__(self, stored: Iterable[StoredRange] = ()):
        self.by_key = {one.key: KeyRange(one) for one in stored}
        self._lows = sorted((one.low, key) for key, one in self.by_key.items())
        self.touched: dict[str, KeyRange] = {}

    def extend(self, key: str, offset: int) -> KeyRange:
        """Extend a key's range to this message, which the position is about to pass; begin one if there is none."""
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = KeyRange(StoredRange(key, offset - 1, offset, 0))
            insort(self._lows, (found.low, key))
        found.high = offset
        found.messages += 1
        self.touched[key] = found
        return found

    def keep(self, offset: int, key: str) -> bool:
        """Tell whether an acked row must stay because its key's range may come to cover it; remember it then."""
        found = self.by_key.get(key) if key else None
        if found is None or offset <= found.low:
            return False
        insort(found.kept, offset)
        return True

    def was_raised(self, one: KeyRange, before: int) -> None:
        """Record a range's new low, which was another one before; forget one that is used up."""
        del self._lows[bisect_left(self._lows, (before, one.key))]
        if one.low >= one.high:
            del self.by_key[one.key]
        else:
            insort(self._lows, (one.low, one.key))

    @property
    def lowest(self) -> int:
        """The lowest low, if there are ranges: the watermark is not above it."""
        return self._lows[0][0]
