"""How many partitions each subscriber of a group may hold. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

MULTIPLIER: Final = 0x9E3779B97F4A7C15  # odd: 2^64 divided by the golden ratio (Knuth, TAOCP, 6.4)
MODULUS: Final = 2**64


def fair_share(partitions: int, subscribers: Collection[str], me: str, salt: str) -> int:
    """Return how many partitions `me` may hold: every one at least the quotient, the remainder one more each.

    12 on 5 is 3, 3, 2, 2, 2. The salt (group and topic) decides which subscribers get the remainder, so that no
    subscriber has the larger share everywhere. Each has a rank that no other one changes (rendezvous hashing: Thaler
    and Ravishankar, 1998): if one comes or goes, the others' shares change by what it gets or leaves.
    """
    others = set(subscribers) - {me}
    quotient, remainder = divmod(partitions, len(others) + 1)
    if not remainder:
        return quotient
    mine = _rank(me, salt)
    ahead = sum(_rank(other, salt) < mine for other in others)
    return quotient + (ahead < remainder)


def _rank(subscriber: str, salt: str) -> tuple[int, str]:
    """Return what orders the subscribers where the salt is used, unlike their order where another one is."""
    mixed = (_hash(subscriber) ^ _hash(salt)) * MULTIPLIER % MODULUS
    return (mixed ^ mixed >> 32) * MULTIPLIER % MODULUS, subscriber


@lru_cache(maxsize=4096)
def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def excess(held: Sequence[int], share: int) -> list[int]:
    """Return which partitions to give up, in a fixed order: the highest first, so that every run picks the same."""
    return sorted(held, reverse=True)[: max(0, len(held) - share)]
