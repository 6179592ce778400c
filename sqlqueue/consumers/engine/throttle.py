"""How much is dispatched, how long its settle may wait, and in which order of priorities."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from sqlqueue.core.partition import writes
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.settle_plan import Execution

AHEAD = 0.1  # seconds of work that may be in flight, at the rate that was measured last
MOST = 5_000
MEASURED = 0.05  # seconds over which the rate is measured
EARLY = 256  # so much may be in flight as soon as as much as might has finished


class Throttle:
    """Measures the rate at which attempts finish, and dispatches enough that no thread waits for the next claim, and
    little enough that a crash, a stop or a slow handler does not hold messages that other processes could handle.

    It brings, to handlers of 5 ms in four threads, 1.8 times the rate that eight in flight have. So does a fixed number
    of 512, with 512 messages in doubt after a crash where there are 55 (MariaDB). low: when so many outcomes were
    reported, the control thread should dispatch more; handlers' threads read it.
    """

    def __init__(self, threads: int):
        self.fewest = 2 * threads  # executions, so that no thread waits for the next one
        self.target = self.fewest
        self._count = 0
        self._since = 0.0
        self.low = 0.0
        self._rotation = 0

    def finished(self, count: int, now: float) -> None:
        """Count `count` finished attempts."""
        self._count += count
        passed = now - self._since
        # Few need not wait for the measure's end; more would take a burst of instant outcomes for a rate.
        early = self.target < EARLY and self._count >= self.target and passed > 0
        if passed >= MEASURED or early:
            rate = self._count / passed
            wanted = max(self.fewest, min(MOST, int(rate * AHEAD)))
            # At most doubled, for the same reason; lowered at once.
            self.target = min(wanted, 2 * self.target) if wanted > self.target else (wanted + self.target) // 2
            self._count, self._since = 0, now

    def room(self, deliveries: int, executions: int) -> int:
        """Return how many more attempts may be dispatched beside so many: what the rate allows, or what keeps every
        thread busy, even while some of them run long or slow executions."""
        return max(self.target - deliveries, self.fewest - executions)

    def rotated(self, assigned_partitions: Sequence[AssignedPartition]) -> list[AssignedPartition]:
        """Return the partitions, beginning with another one each time; urgent priorities stay first, as they are."""
        self._rotation += 1
        by_priority: dict[int, list[AssignedPartition]] = {}
        for assigned in assigned_partitions:
            by_priority.setdefault(assigned.ref.priority, []).append(assigned)
        turned: list[AssignedPartition] = []
        for equals in by_priority.values():
            first = self._rotation % len(equals)
            turned += [*equals[first:], *equals[:first]]
        return turned


OFTEN = 50  # settles a second
LINGER = 0.05  # seconds; positions wait up to half as long again, to be written together
COUNTED = 0.5  # seconds over which settles are counted


class Pace:
    """While a process settles often, a position that has moved waits a little, for the next claim of its partition to
    take it along, and so does the question up to where the log is final. And claims reach ahead, as far as the log
    grows meanwhile. A crash brings back what a position has not passed yet, as it does with acks that wait in memory.

    It brings, in a steady stream of 500 single messages a second for three groups, 2.2 rows changed a message instead
    of 4.0, and 954 bytes of binary log instead of 1,268; without claims ahead, 4.0 instead of 7.0 and 1,276 instead of
    1,783 (MySQL; tests/benchmarks/statements). linger: for how many seconds a position may wait now; ahead: how many
    offsets above the log's end claims may reach; settles: how many iterations have written or started something, or
    applied outcomes, since the last measure.
    """

    def __init__(self) -> None:
        self.linger = 0.0
        self.ahead = 0
        self.settles = 0
        self._since = 0.0
        self._highest = 0  # of the log, then

    def measure(self, now: float, highest: int = 0) -> None:
        """Find out whether it settles often, and how fast the log grows. To be called at every iteration; now:
        monotonic seconds; highest: the highest offset of the log, 0 if it is not known."""
        passed = now - self._since
        if passed >= COUNTED:
            often = self.settles >= OFTEN * passed
            self.linger = LINGER if often else 0.0
            grown = max(0, highest - self._highest) if often and self._highest else 0
            self.ahead = min(writes.MOST_AHEAD, math.ceil(grown / passed * writes.AHEAD))
            self.settles, self._since, self._highest = 0, now, highest


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
    """What is owed to each lower priority, in deliveries, while more urgent messages wait as well: without that a topic
    that always has urgent messages would never deliver the others. For the control thread.

    A share is of all that the process dispatches, and is earned only while something of the priority waits; what no
    share takes goes to the most urgent first. owed: by lower priority.
    """

    def __init__(self) -> None:
        self.owed: dict[Level, float] = {}

    def were_dispatched(
        self, waiting: Mapping[Level, float], given: Mapping[Level, int], taken: Mapping[Level, int]
    ) -> None:
        """Count how many messages of each priority were dispatched. waiting: the share of each lower one of which
        something waited; to the others nothing is owed any more. given: those of them that were owed to it; a batch
        may be more than that, and the rest counts towards what will be owed."""
        dispatched, before, self.owed = sum(taken.values()), self.owed, {}
        for level, share in waiting.items():
            earned = min(before.get(level, 0.0) + dispatched * share, MOST_OWED)
            least = min(0.0, earned - given.get(level, 0))
            self.owed[level] = max(least, earned - taken.get(level, 0))


class Capacity:
    """Where executions run: the handler threads, the event loop, or a thread that is reserved for a group."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle, self.shares = throttle, PriorityShares()


class UrgencyQuotas:
    """How many of the next messages of one priority each partition is to give: of all that a process has in memory, the
    most urgent ones of consumers that go by urgency come first, whatever partition they are in."""

    def __init__(self, assigned_partitions: Sequence[AssignedPartition]):
        self._assigned_partitions = assigned_partitions
        self._priority = -1
        self._quotas: Counter[AssignedPartition] = Counter()

    def of(self, assigned: AssignedPartition, room: int) -> int:
        """Return the quota of a partition, all of the room unless its consumer goes by urgency. The partitions are
        asked for in the order of their priorities, with the room that is left."""
        if assigned.options.urgency is None:
            return room
        if assigned.ref.priority != self._priority:
            self._priority = assigned.ref.priority
            self._quotas = self._shared(room)
        return self._quotas[assigned]

    def _shared(self, room: int) -> Counter[AssignedPartition]:
        first = [
            [(-urgency, number, assigned) for number, urgency in enumerate(assigned.queues.urgencies(room))]
            for assigned in self._assigned_partitions
            if assigned.ref.priority == self._priority
        ]
        merged = heapq.merge(*first, key=lambda one: one[:2])
        return Counter(assigned for _, _, assigned in islice(merged, room))


def by_urgency(executions: Sequence[Execution]) -> Sequence[Execution]:
    """Return executions in the order in which they start: by priority, and by urgency where a consumer goes by that."""
    urgencies = [execution.lease.subscription.consumer.options.urgency for execution in executions]
    keys = [
        (execution.lease.ref.priority, -urgency(execution.attempts[0].message.headers) if urgency else 0, number)
        for number, (execution, urgency) in enumerate(zip(executions, urgencies))
    ]
    return [executions[number] for _, _, number in sorted(keys)]
