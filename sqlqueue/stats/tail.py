"""Follows a topic's messages without a consumer group."""

from __future__ import annotations

from sqlqueue.core.epochs import numbers_of
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.log.fetch import WATCH_SPAN, watch
from sqlqueue.models import Message, Topic
from sqlqueue.stats import sampling

AT_ONCE = 1_000
# The next offsets of a partition and priority. Index: (topic, partition, priority, offset), and nothing else.
NEXT = 'SELECT %s, "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {ascending} LIMIT %s'


class Tail:
    """Reads a topic's messages above an offset in the order of their offsets, each exactly once.

    It reads up to the horizon only, so that no message of a transaction that commits late is missed. It registers
    nothing and locks nothing. partition: only of this one; key: only of the partitions that it belongs to, in each
    epoch. Not thread-safe; not for use inside a transaction.
    """

    def __init__(
        self, log: Log, topic: Topic, after: int, partition: int | None = None, key: str | None = None
    ) -> None:
        self.log, self.topic, self.after = log, topic.name, after
        self._partition, self._key, self._priorities = partition, key, topic.priorities
        self.forget()

    def forget(self) -> None:
        """Drop what is known of open publishing transactions: the connection to the database was lost."""
        self._horizon = Horizon(self.log)
        self._highest = 0

    @property
    def held_back(self) -> bool:
        """Whether messages may be withheld until an open publishing transaction ends."""
        return self._horizon.value < self._highest

    def read(self) -> list[Message]:
        """Return the next messages, at most 1,000; none if there is nothing new up to the horizon."""
        self._highest = highest_offset(self.log)
        horizon = self._horizon.probe(self._highest)
        if horizon <= self.after:
            return []
        # After the probe: an epoch that begins later has nothing at or below the horizon.
        streams = [(number, priority) for number in self._partitions() for priority in range(self._priorities)]
        offsets = self._next(streams, horizon)
        self.after = offsets[-1] if len(offsets) == AT_ONCE else horizon
        return list(Message.objects.using(self.log.alias).filter(offset__in=offsets).order_by("offset"))

    def _partitions(self) -> list[int]:
        if self._partition is not None:
            return [self._partition]
        epochs = layouts.epochs(self.log, self.topic)
        return numbers_of(epochs) if self._key is None else [epoch.partition_of(self._key) for epoch in epochs]

    def _next(self, streams: list[tuple[int, int]], horizon: int) -> list[int]:
        if horizon - self.after <= WATCH_SPAN:
            counts = watch(self.log, self.after, horizon)
            streams = [stream for stream in streams if (self.topic, *stream) in counts]
        bounds = self.log.dialect.range_values
        items = {stream: (*bounds(self.topic, *stream, self.after, horizon), AT_ONCE) for stream in streams}
        found = sampling.each(self.log, NEXT, items)
        return sorted(offset for _, (offset,) in found)[:AT_ONCE]
