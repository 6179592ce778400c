"""The shares of lower priorities: while more urgent messages wait as well, each still gets some of the deliveries.

Without them a topic that always has urgent messages would never deliver the others. A share is of all that the process
dispatches, and is owed only while something of the priority waits; what no share takes goes to the most urgent first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from sqlqueue.core.partition.assigned import AssignedPartition

LOWER_SHARE: Final = 0.05  # of all lower priorities together, without priority_weights
MOST_OWED: Final = 1_000.0  # deliveries

Level = tuple[str, str, int]  # group, topic, priority


def shares(priorities: int, weights: Sequence[int] | None) -> tuple[float, ...]:
    """Return the share of the deliveries that each priority gets at least, by its number."""
    if priorities == 1:
        return (1.0,)
    if weights is None or len(weights) != priorities:
        return (1.0 - LOWER_SHARE, *([LOWER_SHARE / (priorities - 1)] * (priorities - 1)))
    return tuple(weight / sum(weights) for weight in weights)


def level_of(assigned: AssignedPartition) -> Level:
    """Return the priority of a group's topic that a partition is of."""
    return assigned.ref.group, assigned.ref.topic, assigned.ref.priority


class PriorityShares:
    """What is owed to each lower priority, in deliveries. For the control thread."""

    def __init__(self) -> None:
        self._owed: dict[Level, float] = {}
        self._dispatched = sys.maxsize  # messages, the last time that there were any

    def expected(self, room: int) -> int:
        """Return how many of `room` deliveries are likely to be dispatched: as many as last time. Limits of a group,
        or batches of which few run at once, may leave room for many more; shares of all that would be all there is.
        What turns out otherwise is made up for the next time."""
        return max(0, min(room, self._dispatched))

    def due(self, waiting: Mapping[Level, float], room: int) -> dict[Level, int]:
        """Return how many of the next `room` deliveries each lower priority is to get first. waiting: the share of each
        of which something waits; to the others nothing is owed any more."""
        self._owed = {
            level: min(self._owed.get(level, 0.0) + room * share, MOST_OWED) for level, share in waiting.items()
        }
        return {level: int(owed) for level, owed in self._owed.items() if owed >= 1}

    def were_dispatched(
        self, waiting: Mapping[Level, float], room: int, given: Mapping[Level, int], taken: Mapping[Level, int]
    ) -> None:
        """Record how many messages of each priority were dispatched into that room. given: those of them that were owed
        to it; a batch may be more than that, and the rest counts towards what will be owed."""
        dispatched = sum(taken.values())
        self._dispatched = dispatched or self._dispatched
        unused = room - dispatched
        for level, share in waiting.items():
            earned = self._owed[level] - unused * share
            least = min(0.0, earned - given.get(level, 0))
            self._owed[level] = max(least, earned - taken.get(level, 0))
