"""How much to hand out: enough that no thread waits for the next claim, and little enough that a crash, a stop or a
slow handler does not hold what others could do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from sqlqueue.core.stream import Stream

AHEAD = 0.1  # seconds of work that may be in hand
MOST = 5_000


class Throttle:
    """Watches the rate at which hands are finished. room() is for the control thread; low() is called by the
    handlers'."""

    def __init__(self, threads: int):
        self._threads = threads
        self._target = 2 * threads
        self._count = 0
        self._since = 0.0
        self._left = 0
        self._turn = 0

    def finished(self, count: int, now: float) -> None:
        """Take note of `count` finished hands."""
        self._count += count
        passed = now - self._since
        if passed >= 0.05:
            rate = self._count / passed
            wanted = max(2 * self._threads, min(MOST, int(rate * AHEAD)))
            # Up by doubling at most, so that a burst of instant outcomes does not let a flood in; down at once.
            self._target = min(wanted, 2 * self._target) if wanted > self._target else (wanted + self._target) // 2
            self._count, self._since = 0, now

    def room(self, outstanding: int, runs: int) -> int:
        """Return how many more hands may be given out: what the rate allows, or what keeps every thread busy, even
        while some of them hold long or slow runs."""
        return max(self._target - outstanding, self.runs(runs))

    def runs(self, runs: int) -> int:
        """Return how many more runs may be started."""
        return 2 * self._threads - runs

    def of_a_lane(self, room: int, turns: int) -> int:
        """Return how many hands of one lane may be given out together, which are one thread's work, if there are so
        many turns to take. A lane that is alone gets everything: one hand at a time would cost a transaction each."""
        return max(1, room // max(1, min(turns, 2 * self._threads)))

    def handed(self, outstanding: int) -> None:
        """Take note of how many are in hand now."""
        self._left = outstanding

    def low(self, reported: int) -> bool:
        """Tell whether so much has been reported that the control thread should give out more."""
        return reported * 2 >= self._left

    def in_turn(self, streams: Sequence[Stream]) -> Iterator[Stream]:
        """Yield the streams, beginning with another one each time; urgent priorities stay first."""
        self._turn += 1
        for _, equals in groupby(streams, key=lambda stream: stream.address.priority):
            equally_urgent = list(equals)
            first = self._turn % len(equally_urgent)
            yield from equally_urgent[first:]
            yield from equally_urgent[:first]
