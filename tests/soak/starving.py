"""Whether groups wait for the handlers of others, which take all threads, for longer than docs/guide.md states.

A group of which nothing runs in a process gets a thread there after 1 s. Where none is left, another process takes its
partition over, at most BALANCE_INTERVAL after 1.5 s, and from then on it counts anew. What began beside that explains a
delay, as it does for everything else (progress.py); and what was in flight at a fault is in doubt, and is begun alone:
others wait until it is settled. On a machine with more to do the bound is as much longer (Record.crowded).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.soak.progress import GroupPartition, Progress, Span, Wait
from tests.soak.records import NEVER
from tests.soak.spans import longest_gap, pauses
from tests.soak.workload import BALANCE_INTERVAL, BRIEF, LABOR

VIOLATIONS = {
    "starved": "waited for the handlers of another group for longer than the guide states, and nothing tells why",
}
LATE = 2.0  # seconds: what a machine that is busy with a run may take longer for looks, balances and beginnings
BOUND = BALANCE_INTERVAL + 1.5 + LATE
LEAST = 0.5  # seconds: shorter waits are not worth a look


class Starving:
    """Finds who waited for the handlers of others."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.record = progress, progress.record
        self.bound = BOUND * self.record.crowded
        self._acquired: dict[GroupPartition, list[float]] = defaultdict(list)
        for at, _, topic, group, partition in self.record.acquired:
            self._acquired[topic, group, partition].append(at)
        self._long = [
            (handlings[0].began, progress.settled.get(key, NEVER))
            for key, handlings in progress.handled.items()
            if key[0] == LABOR
        ]

    def waits(self, bound: float) -> Iterator[Wait]:
        """Yield every time longer than the bound in which a message waited, and neither was one before it begun nor had
        its partition another owner."""
        for group_partition, id, since, until, begun in self.progress.of_first_ones():
            if group_partition[0] != BRIEF:
                continue
            line = sorted([*begun, *self._acquired[group_partition]])
            for low, high in pauses(line, since, until, bound):
                spans = [self._in_doubt(span) for span in self.progress.explained(group_partition, id, low, high)]
                yield Wait(group_partition, id, low, high, longest_gap(low, high, spans))

    def _in_doubt(self, span: Span) -> Span:
        """Return the time that a fault explains: until what was in flight meanwhile is settled."""
        began, ended = span
        if began > self.record.since:
            ended = max([ended, *(settled for at, settled in self._long if at <= ended and settled >= began)])
        return began, ended

    def found(self) -> Iterator[str]:
        """Yield who waited for longer than the bound."""
        for wait in self.waits(self.bound):
            if wait.unexplained > self.bound:
                topic, group, partition = wait.group_partition
                yield f"{wait.id} of {topic}[{partition}] for {group}: {wait.unexplained:.1f} s, until {wait.until:.1f}"

    def longest(self) -> float:
        """Return the longest wait that nothing explains, in seconds."""
        return max((wait.unexplained for wait in self.waits(LEAST)), default=0.0)
