"""Say that nothing new is read of some partitions, since they have reached a limit of what may be remembered."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sqlqueue.core.lines import line
from sqlqueue.core.stream import FULL, HELD_BACK, Stream
from sqlqueue.observe.logs import partitions_text

logger = logging.getLogger("sqlqueue")

EVERY = 60.0  # seconds
MEANING = {
    FULL: "so many messages fail that nothing new is read: mend the handler, or what it needs",
    HELD_BACK: "so many were delivered beyond an open transaction that nothing new is read: find and end it",
}


class ReadingLimits:
    """Looks whenever it is told to; says something once a minute at most."""

    def __init__(self) -> None:
        self._say_at = 0.0

    def look(self, streams: Iterable[Stream], horizon: int, now: float) -> None:
        """Name the partitions of each group that have reached a limit, and which one."""
        if now < self._say_at:
            return
        found: dict[tuple[str, str, str], set[int]] = {}
        for stream in streams:
            if limit := stream.limit_reached(horizon):
                address = stream.address
                found.setdefault((address.group, address.topic, limit), set()).add(address.partition)
        for (group, topic, limit), partitions in found.items():
            some = partitions_text(sorted(partitions))
            logger.warning(
                line("reading_stopped", group=group, topic=topic, partitions=some, limit=limit, meaning=MEANING[limit])
            )
        if found:
            self._say_at = now + EVERY
