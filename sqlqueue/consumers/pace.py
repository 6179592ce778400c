"""The pace of a process: while it settles often, a position that has moved waits a little, for the next claim of its
partition to take it along, and so does the question up to where the log is final. And claims reach ahead, as far as the
log grows meanwhile.

Positions are most of what a steady stream of single messages has a database write, and on MySQL that question, where it
is asked, most of what it reads. A crash brings back what a position has not passed yet, as it does with acks that wait
in memory.

It brings, in a steady stream of 500 single messages a second for three groups, 2.2 rows changed a message instead of
4.0, and 954 bytes of binary log instead of 1,268; without claims ahead, 4.0 instead of 7.0 and 1,276 instead of 1,783
(MySQL; tests/benchmarks/statements).
"""

from __future__ import annotations

import math

from sqlqueue.core.partition.claim_ahead import AHEAD, MOST_AHEAD

OFTEN = 50  # settles a second
LINGER = 0.05  # seconds; positions wait up to half as long again, to be written together
MEASURED = 0.5  # seconds over which settles are counted


class Pace:
    """Counts settles, and those that claims ahead have made needless or that wait. linger: for how many seconds a
    position may wait now; ahead: how many offsets above the log's end claims may reach."""

    def __init__(self) -> None:
        self.linger = 0.0
        self.ahead = 0
        self._settles = 0
        self._since = 0.0
        self._highest = 0  # of the log, then

    def settled(self) -> None:
        """Count a settle: an iteration that has written or started something, or applied outcomes."""
        self._settles += 1

    def measure(self, now: float, highest: int = 0) -> None:
        """Find out whether it settles often, and how fast the log grows. To be called at every iteration; now:
        monotonic seconds; highest: the highest offset of the log, 0 if it is not known."""
        passed = now - self._since
        if passed >= MEASURED:
            often = self._settles >= OFTEN * passed
            self.linger = LINGER if often else 0.0
            grown = max(0, highest - self._highest) if often and self._highest else 0
            self.ahead = min(MOST_AHEAD, math.ceil(grown / passed * AHEAD))
            self._settles, self._since, self._highest = 0, now, highest
