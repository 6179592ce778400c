"""The working set: the assigned partitions that an iteration of the loop visits.

A process may own a thousand partitions, of which a message concerns one. One with nothing to do rests until a look at
the log's head finds something of it. All are visited after whatever else may have changed them: a balance, other
options, rows that an operator has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlqueue.core.partition.assigned import AssignedPartition

Stream = tuple[str, int, int]  # topic, partition and priority


class WorkingSet:
    """The partitions to visit, in the order of all. For the control thread."""

    def __init__(self) -> None:
        self.partitions: list[AssignedPartition] = []
        self._ranks: dict[AssignedPartition, int] = {}
        self._resting: dict[Stream, list[AssignedPartition]] = {}

    def wake_all(self, assigned_partitions: Sequence[AssignedPartition], watched_to: int) -> None:
        """Visit all. watched_to: the horizon at the last look that has found nothing of those that rest."""
        for resting in self._resting.values():
            for assigned in resting:
                assigned.window.quiet(watched_to)
        self._resting = {}
        self.partitions = list(assigned_partitions)
        self._ranks = {assigned: rank for rank, assigned in enumerate(assigned_partitions)}

    def wake(self, streams: Collection[Stream] | None, watched_to: int) -> None:
        """Visit those of these streams, too (None: all): the log has something of them. watched_to: as for
        `wake_all`."""
        found = list(self._resting) if streams is None else [one for one in streams if one in self._resting]
        if not found:
            return
        for stream in found:
            for assigned in self._resting.pop(stream):
                assigned.window.quiet(watched_to)
                self.partitions.append(assigned)
        self.partitions.sort(key=self._ranks.__getitem__)

    def alarm(self, seen: Collection[Stream] | None, watched_to: int, low: int, reached: int | None) -> bool:
        """Alarm the partitions of these streams (None: of all), also those that rest: the log has something of them
        above `low`; return whether there are any. reached: the horizon, if all offsets from `low` up to it were looked
        at; watched_to: as for `wake_all`."""
        self.wake(seen, watched_to)
        concerned = False
        for assigned in self.partitions:
            ref = assigned.ref
            if seen is None or (ref.topic, ref.partition, ref.priority) in seen:
                assigned.window.alarm()
                concerned = True
            elif reached is not None:
                assigned.window.unseen(low, reached)
        return concerned

    def behind(self, horizon: int) -> bool:
        """Tell whether all have messages up to this horizon to be read: what else the log may have concerns none."""
        return bool(self.partitions and not self._resting) and all(
            assigned.window.more and assigned.window.cursor < horizon for assigned in self.partitions
        )

    def rest(self, watched_to: int) -> None:
        """Let those rest that have nothing to do and are read up to this horizon."""
        visited, self.partitions = self.partitions, []
        for assigned in visited:
            if assigned.window.final < watched_to or not assigned.at_rest:
                self.partitions.append(assigned)
                continue
            ref = assigned.ref
            self._resting.setdefault((ref.topic, ref.partition, ref.priority), []).append(assigned)
