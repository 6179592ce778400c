"""The throttle: how much is dispatched. Enough that no thread waits for the next claim, and little enough that a crash,
a stop or a slow handler does not hold messages that other processes could handle.

It brings, to handlers of 5 ms in four threads, 1.8 times the rate that eight in flight have. So does a fixed number of
512, with 512 messages in doubt after a crash where there are 55 (MariaDB).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from sqlqueue.core.partition.assigned import AssignedPartition

AHEAD = 0.1  # seconds of work that may be in flight, at the rate that was measured last
MOST = 5_000
MEASURED = 0.05  # seconds over which the rate is measured
EARLY = 256  # so much may be in flight as soon as as much as might has finished


class Throttle:
    """Measures the rate at which attempts finish. low: when so many outcomes were reported, the control thread should
    dispatch more; handlers' threads read it."""

    def __init__(self, threads: int):
        self._threads = threads
        self._target = 2 * threads
        self._count = 0
        self._since = 0.0
        self.low = 0.0
        self._rotation = 0

    def finished(self, count: int, now: float) -> None:
        """Count `count` finished attempts."""
        self._count += count
        passed = now - self._since
        # Few need not wait for the measure's end; more would take a burst of instant outcomes for a rate.
        early = self._target < EARLY and self._count >= self._target and passed > 0
        if passed >= MEASURED or early:
            rate = self._count / passed
            wanted = max(2 * self._threads, min(MOST, int(rate * AHEAD)))
            # At most doubled, for the same reason; lowered at once.
            self._target = min(wanted, 2 * self._target) if wanted > self._target else (wanted + self._target) // 2
            self._count, self._since = 0, now

    def room(self, outstanding: int, executions: int) -> int:
        """Return how many more attempts may be dispatched: what the rate allows, or what keeps every thread busy, even
        while some of them run long or slow executions."""
        return max(self._target - outstanding, self.executions_left(executions))

    def executions_left(self, count: int) -> int:
        """Return how many more executions may be started."""
        return 2 * self._threads - count

    def of_ordering_queue(self, room: int, queues: int) -> int:
        """Return how many attempts of one ordering queue may be dispatched together, as one execution, if `queues`
        queues have something ready. A single queue gets all the room: one attempt at a time would cost a transaction
        each."""
        return max(1, room // max(1, min(queues, 2 * self._threads)))

    def dispatched(self, outstanding: int) -> None:
        """Record how many attempts are in flight now."""
        self.low = outstanding / 2

    def rotated(self, assigned_partitions: Sequence[AssignedPartition]) -> Iterator[AssignedPartition]:
        """Yield the partitions, beginning with another one each time; urgent priorities stay first."""
        self._rotation += 1
        for _, equals in groupby(assigned_partitions, key=lambda assigned: assigned.ref.priority):
            equally_urgent = list(equals)
            first = self._rotation % len(equally_urgent)
            yield from equally_urgent[first:]
            yield from equally_urgent[:first]
