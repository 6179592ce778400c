"""How many messages of one key may start in a time. Pure; times are monotonic seconds.

All messages of a key are with one process, so its limit needs nothing from the others. Of each key it is remembered
when its bucket is full again (GCRA, ITU-T I.371): until then less may start than a bucket holds.
"""

from __future__ import annotations

from typing import Final

from sqlqueue.core.flow import Rate

MOST_KEYS: Final = 100_000  # that are remembered; beyond it the one that is remembered longest is forgotten
ROUNDING: Final = 0.01  # seconds: a message whose row was due is not made to wait again for less


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
