"""Warnings about partitions of which nothing new is read, because they have reached a limit of what is kept in
memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.assigned import FULL, HELD_BACK, AssignedPartition
from sqlqueue.monitoring.logs import partitions_text

logger = logging.getLogger("sqlqueue")

EVERY = 60.0  # seconds
MEANING = {
    FULL: "so many messages fail that nothing new is read: mend the handler, or what it needs",
    HELD_BACK: "so many were delivered beyond an open transaction that nothing new is read: find and end it",
}


class ReadingLimits:
    """Checks the limits when it is called, and logs at most once a minute."""

    def __init__(self) -> None:
        self._warn_at = 0.0

    def check(self, assigned_partitions: Iterable[AssignedPartition], horizon: int, now: float) -> None:
        """Log which partitions of each group have reached a limit, and which one."""
        if now < self._warn_at:
            return
        found: dict[tuple[str, str, str], set[int]] = {}
        for assigned in assigned_partitions:
            if limit := assigned.limit_reached(horizon):
                ref = assigned.ref
                found.setdefault((ref.group, ref.topic, limit), set()).add(ref.partition)
        for (group, topic, limit), partitions in found.items():
            some = partitions_text(sorted(partitions))
            logger.warning(
                logfmt(
                    "reading_stopped", group=group, topic=topic, partitions=some, limit=limit, meaning=MEANING[limit]
                )
            )
        if found:
            self._warn_at = now + EVERY
