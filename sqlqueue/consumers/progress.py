"""Progress that handlers report: gathered in memory, and stored by the control thread."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import Error

from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.settle_plan import Attempt
from sqlqueue.database.log import Log
from sqlqueue.log.progress import Reported, store

EVERY = 1.0  # seconds between two writes


class ProgressWriter:
    """Stores what handlers have reported, at most once a second, in one statement on the control thread's own
    connection: it is seen before an atomic handler commits, and no handler waits for it."""

    def __init__(self, log: Log):
        self._log, self._next = log, 0.0
        self._one_writer = log.dialect.one_writer

    def write(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> None:
        """Store the last report of each delivery since the last write, if it is time."""
        if now < self._next:
            return
        reported: dict[Attempt, Reported] = {}
        for assigned in assigned_partitions:
            waiting = assigned.lease.progress
            for _ in range(len(waiting)):  # not while there are any: handlers may report faster
                attempt, said = waiting.popitem()
                # What is settled has no progress. An atomic handler's transaction is the only one that can write on
                # SQLite: to wait for it would hold up the whole process.
                if attempt.outcome is None and not (self._one_writer and assigned.options.atomic):
                    reported[attempt] = said
        if not reported:
            return
        self._next = now + EVERY
        try:
            store(self._log, list(reported.items()))
        except Error:
            for attempt, said in reported.items():
                attempt.lease.progress.setdefault(attempt, said)
            raise
        for attempt in reported:
            attempt.lease.stored_progress.add(attempt.offset)
