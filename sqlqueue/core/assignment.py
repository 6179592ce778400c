"""How many partitions each subscriber of a group may hold. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def fair_share(partitions: int, subscribers: Sequence[str], me: str, salt: str) -> int:
    """Return how many partitions `me` may hold: every one at least the quotient, the remainder one more each.

    12 on 5 is 3, 3, 2, 2, 2. The salt (group and topic) rotates which subscribers get the remainder, so that no
    subscriber has the larger share everywhere.
    """
    if me not in subscribers:
        subscribers = [*subscribers, me]
    ordered = sorted(set(subscribers))
    quotient, remainder = divmod(partitions, len(ordered))
    rank = (ordered.index(me) + zlib.crc32(salt.encode())) % len(ordered)
    return quotient + (rank < remainder)


def excess(held: Sequence[int], share: int) -> list[int]:
    """Return which partitions to give up, in a fixed order: the highest first, so that every run picks the same."""
    return sorted(held, reverse=True)[: max(0, len(held) - share)]
