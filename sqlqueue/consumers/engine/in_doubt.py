"""Phases of messages in doubt, which a former owner had in flight when it ended.

Each is dispatched alone: nothing else is in flight in the whole process meanwhile, so that the message that ends
processes is found. There may be hundreds of them, so their phase alternates with a phase of everything else, which
waits for not much longer than a phase lasts. Within their phase, partitions alternate.

A message in doubt waits until nothing is in flight. A handler that outlasts a phase of this waiting is long work: the
others go on, phase by phase, and groups with long work get nothing new until nothing of theirs is in flight, and then
for as long again as the messages in doubt had to wait. So neither waits much longer than the longest handler runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import PartitionRef

PHASE: Final = 1.0  # seconds in which messages in doubt follow one another; the phase of everything else lasts as long


class InDoubtPhases:
    """Decides which phase it is. Times are monotonic seconds; a group-topic is a subscription's (group, topic)."""

    def __init__(self) -> None:
        self._waits_since: float | None = None  # since when nothing else has been dispatched
        self._began: float | None = None  # when the first message in doubt of this phase was dispatched
        self._others_until = 0.0
        self._served: dict[PartitionRef, int] = {}  # the number of each partition's last dispatch in doubt
        # The group-topics whose handlers have outlasted a wait: they get nothing new, since messages in doubt wait.
        self.held_back: set[tuple[str, str]] = set()
        self._in_vain_since: float | None = None  # since when messages in doubt wait, over all phases of the others
        self._long_until = 0.0  # when the group-topics with long work may go on

    def of_others(self, now: float) -> bool:
        """Return whether it is the phase of everything else."""
        return now < self._others_until

    def waits(self, now: float, in_flight: Iterable[tuple[str, str]] = ()) -> bool:
        """Return whether a message in doubt goes on waiting until nothing is in flight; nothing else is dispatched
        meanwhile. False once it has waited for a phase: then the phase of everything else begins, except for the
        group-topics that are still in flight."""
        if self._waits_since is None:
            self._waits_since = now
        if self._in_vain_since is None:
            self._in_vain_since = now
        if now - self._waits_since < PHASE:
            return True
        self.held_back.update(in_flight)
        self._yield_to_others(now)
        return False

    def lasts(self, now: float) -> bool:
        """Return whether a message in doubt may be dispatched now. If not, the phase of everything else has begun: it
        lasts as long as this phase with the wait before it."""
        if self._waits_since is None:
            self._waits_since = now
        if self._began is None:
            self._began = now
            self._end_wait(now)
        if now - self._began < PHASE:
            return True
        self._yield_to_others(now)
        return False

    def _end_wait(self, now: float) -> None:
        if self._in_vain_since is not None:
            self._long_until = max(self._long_until, now + (now - self._in_vain_since))
            self._in_vain_since = None

    def _yield_to_others(self, now: float) -> None:
        assert self._waits_since is not None
        if self._in_vain_since is None and now >= self._long_until:
            self.held_back.clear()
        self._others_until = now + (now - self._waits_since)
        self._waits_since = self._began = None

    def by_last_dispatch(self, assigned_partitions: Iterable[AssignedPartition]) -> list[AssignedPartition]:
        """Return partitions with messages in doubt, first the one that has not had one dispatched for longest."""
        return sorted(assigned_partitions, key=lambda assigned: self._served.get(assigned.ref, 0))

    def was_dispatched(self, assigned: AssignedPartition) -> None:
        """Record that a message in doubt of a partition was dispatched."""
        self._served.pop(assigned.ref, None)
        self._served[assigned.ref] = 1 + next(reversed(self._served.values()), 0)
