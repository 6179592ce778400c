"""The pace of a process: while it settles often, a position that has moved waits a little, for the next claim of its
partition to take it along, and so does the question up to where the log is final.

Positions are most of what a steady stream of single messages has a database write, and on MySQL that question most of
what it reads. A crash brings back what a position has not passed yet, as it does with acks that wait in memory.
"""

from __future__ import annotations

OFTEN = 50  # settles a second
LINGER = 0.05  # seconds
MEASURED = 0.5  # seconds over which settles are counted


class Pace:
    """Counts settles. linger: for how many seconds a position may wait now."""

    def __init__(self) -> None:
        self.linger = 0.0
        self._settles = 0
        self._since = 0.0

    def settled(self) -> None:
        """Count a settle."""
        self._settles += 1

    def measure(self, now: float) -> None:
        """Find out whether it settles often. To be called at every iteration; now: monotonic seconds."""
        passed = now - self._since
        if passed >= MEASURED:
            self.linger = LINGER if self._settles >= OFTEN * passed else 0.0
            self._settles, self._since = 0, now
