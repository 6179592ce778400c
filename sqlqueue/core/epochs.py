"""Epochs: the blocks of partition numbers that a topic has had one after another."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import gcd

from sqlqueue.core.keys import partition_of


@dataclass(frozen=True, slots=True)
class Epoch:
    """One layout of a topic's partitions. It owns the numbers base … base + partitions - 1, which no other epoch ever
    has. end: the offset at or below which all of its messages are, once it is closed; None while it is open, or being
    closed."""

    number: int
    base: int
    partitions: int
    end: int | None = None

    @property
    def numbers(self) -> range:
        """The partition numbers."""
        return range(self.base, self.base + self.partitions)

    def partition_of(self, key: str) -> int:
        """Return the partition of a key, or of a keyless message's id."""
        return self.base + partition_of(key, self.partitions)


def feeders(partition: int, later: Epoch, earlier: Epoch) -> list[int]:
    """Return the partitions of an earlier epoch, on the same server, that can hold keys of a partition of a later one:
    partitions p of n and q of m share keys only if p = q modulo gcd(n, m), both numbered within their epochs."""
    common = gcd(earlier.partitions, later.partitions)
    rest = (partition - later.base) % common
    return [number for number in earlier.numbers if (number - earlier.base) % common == rest]


def numbers_of(epochs: Sequence[Epoch]) -> list[int]:
    """Return the partition numbers of all these epochs."""
    return [number for epoch in epochs for number in epoch.numbers]


def startable(epochs: Sequence[Epoch], unfinished: Collection[int]) -> set[int]:
    """Return the partitions that a group may start, if it has something left to settle in the `unfinished` ones.

    Those of the oldest epoch; a later one's once every earlier epoch has ended, and the group has settled all of each
    partition there that can hold keys of it.
    """
    found: set[int] = set()
    for index, later in enumerate(epochs):
        numbers = set(later.numbers)
        for earlier in epochs[:index]:
            if earlier.end is None:
                return found
            common = gcd(earlier.partitions, later.partitions)
            behind = {(number - earlier.base) % common for number in earlier.numbers if number in unfinished}
            numbers = {number for number in numbers if (number - later.base) % common not in behind}
        found |= numbers
    return found
