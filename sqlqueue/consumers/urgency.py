"""The order among the partitions of consumers that go by urgency: of all that a process has in memory, the most urgent
messages of one priority are dispatched first, whatever partition they are in."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from sqlqueue.consumers.ownership import Ownership
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.settle_plan import Execution


class UrgencyQuotas:
    """How many of the next messages of one priority each partition is to give."""

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


def by_urgency(executions: Sequence[Execution], ownership: Ownership) -> Sequence[Execution]:
    """Return executions in the order in which they start: by priority, and by urgency where a consumer goes by that."""
    urgencies = [ownership.of(execution.lease).consumer.options.urgency for execution in executions]
    keys = [
        (execution.lease.ref.priority, -urgency(execution.attempts[0].message.headers) if urgency else 0, number)
        for number, (execution, urgency) in enumerate(zip(executions, urgencies))
    ]
    return [executions[number] for _, _, number in sorted(keys)]
