"""Slices: how the messages of one partition are shared among the leases of a group without ordering.

With sharing = k a partition has k leases, and slice r takes the messages whose hash is in the r-th of k equal parts.
The hash must mix: keyless messages of publish_many() go to the partitions in turn, so the offsets in one partition may
all be equal modulo 8. It multiplies by 2^16 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MOST_SLICES: Final = 64
HASHES: Final = 65_536
FACTOR: Final = 40_503


def slice_of(offset: int, slices: int) -> int:
    """Return the slice, from 0, that a message belongs to; SQL says the same in database.slices."""
    return (offset % HASHES * FACTOR % HASHES) * slices // HASHES


def hashes_of(slice: int, slices: int) -> tuple[int, int]:
    """Return the lowest and the highest hash of a slice."""
    return -(-slice * HASHES // slices), -(-(slice + 1) * HASHES // slices) - 1


def lease_number(partition: int, slice: int, slices: int) -> int:
    """Return the number of a lease among those of a group and topic: that of the partition, if nothing is shared."""
    return partition * slices + slice


def leased_by(number: int, slices: int) -> tuple[int, int]:
    """Return the partition and the slice of a lease's number."""
    return divmod(number, slices)


def asked(sharing: Collection[int]) -> int | None:
    """Return how many slices the subscribers of a group ask for together: the highest number, but 1 while there is one
    that needs whole partitions (0). None without a subscriber: then nothing changes."""
    return None if not sharing else 1 if min(sharing) == 0 else max(sharing)
