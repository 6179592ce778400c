"""How many partitions each subscriber of a group may hold, and who takes those that stay free. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

MULTIPLIER: Final = 0x9E3779B97F4A7C15  # odd: 2^64 divided by the golden ratio (Knuth, TAOCP, 6.4)
MODULUS: Final = 2**64
LONGEST = 64  # the longest pause between two trials, in timeouts


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


class Orphans:
    """What a subscriber has seen of a group's free partitions.

    A partition that stays free for `timeout` seconds is an orphan: the subscriber whose share it is shows a heartbeat
    and does not take it. The subscriber that notices takes it, whatever its own share is. It keeps its excess until
    another subscriber appears, or until a trial succeeds: from time to time it gives up one partition. If another
    subscriber takes that one, balancing goes on as usual. If not, the partition is an orphan again, and the next trial
    follows after twice the time.
    """

    def __init__(self, timeout: float):
        self.timeout = timeout
        self._free: dict[int, tuple[int, float]] = {}  # partition: its token, and since when it has been seen free
        self._subscribers: frozenset[str] | None = None  # who had a heartbeat when more than the share was taken
        self._pause = timeout
        self._trial: int | None = None
        self._trial_at = 0.0

    def find(self, free: Mapping[int, int], now: float) -> list[int]:
        """Record the free partitions and their tokens; return those that have been free for `timeout` seconds."""
        seen = self._free
        self._free = {
            partition: seen[partition] if seen.get(partition, (None, 0.0))[0] == token else (token, now)
            for partition, token in free.items()
        }
        return [partition for partition, (_, since) in self._free.items() if now - since >= self.timeout]

    def take(self, partitions: Collection[int], subscribers: Iterable[str], now: float) -> None:
        """Record that these are about to be taken beyond the share."""
        failed = self._trial in partitions
        if self._subscribers is None or failed:
            self._pause = min(2 * self._pause, LONGEST * self.timeout) if failed else self.timeout
            self._trial, self._trial_at = None, now + self._pause
        self._subscribers = frozenset(subscribers)

    def spare(
        self, excess: Sequence[int], holding: Collection[int], subscribers: Collection[str], now: float
    ) -> list[int]:
        """Return which of the excess partitions to give up now. To be called after find()."""
        if self._trial in holding and self._trial not in excess:
            self._trial = None
        taken = self._trial is not None and self._trial not in holding and self._trial not in self._free
        if self._subscribers is None or taken or not self._subscribers.issuperset(subscribers):
            self._subscribers = self._trial = None
            return list(excess)
        if self._trial is None and excess and now >= self._trial_at:
            self._trial = excess[0]
        return [partition for partition in excess if partition == self._trial]
