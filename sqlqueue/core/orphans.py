"""Partitions that nobody takes, though somebody should: when to take them beyond one's share, and when to give them up
again. Of one group of one topic, and without a database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

LONGEST = 64  # times the patience: the longest pause between two trials


class Orphans:
    """What a subscriber has seen of a group's free partitions.

    One that stays free for `patience` seconds is an orphan: its rightful owner shows a heartbeat and takes nothing.
    Whoever notices takes it, whatever its share. It keeps what is too much then, until another subscriber appears, or
    a trial succeeds: now and then it gives up a single partition. Somebody takes that one: everybody balances as usual
    again. Nobody does: it is an orphan once more, and the next trial comes after twice the time.
    """

    def __init__(self, patience: float):
        self.patience = patience
        self._free: dict[int, tuple[int, float]] = {}  # partition: its token, and since when it has been seen free
        self._crowd: frozenset[str] | None = None  # who was there when more than the share was taken
        self._pause = patience
        self._trial: int | None = None
        self._trial_at = 0.0

    def find(self, free: Mapping[int, int], now: float) -> list[int]:
        """Take note of the free partitions and their tokens; return those that have been free for too long."""
        seen = self._free
        self._free = {
            partition: seen[partition] if seen.get(partition, (None, 0.0))[0] == token else (token, now)
            for partition, token in free.items()
        }
        return [partition for partition, (_, since) in self._free.items() if now - since >= self.patience]

    def sweep(self, partitions: Collection[int], subscribers: Iterable[str], now: float) -> None:
        """Take note that these are about to be taken, beyond the share."""
        failed = self._trial in partitions
        if self._crowd is None or failed:
            self._pause = min(2 * self._pause, LONGEST * self.patience) if failed else self.patience
            self._trial, self._trial_at = None, now + self._pause
        self._crowd = frozenset(subscribers)

    def spare(
        self, excess: Sequence[int], holding: Collection[int], subscribers: Collection[str], now: float
    ) -> list[int]:
        """Return what of the excess is to be given up now; find() has been told what is free."""
        if self._trial in holding and self._trial not in excess:
            self._trial = None
        taken = self._trial is not None and self._trial not in holding and self._trial not in self._free
        if self._crowd is None or taken or not self._crowd.issuperset(subscribers):
            self._crowd = self._trial = None
            return list(excess)
        if self._trial is None and excess and now >= self._trial_at:
            self._trial = excess[0]
        return [partition for partition in excess if partition == self._trial]
