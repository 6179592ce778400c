"""Following a topic: reads only, as nobody's group."""

from __future__ import annotations

from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.log.fetch import STREAMS_OF_ONE_FETCH, WATCH_SPAN, watch
from sqlqueue.models import Message, Topic

AT_ONCE = 1_000
# Where do a stream's next messages stand? Index: (topic, partition, priority, offset), and nothing else.
NEXT = 'SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place} LIMIT %s'


class Tail:
    """Reads a topic's messages above an offset in the order of their offsets, none twice and none left out.

    It reads up to the horizon only, so that a transaction which commits late is not passed over. It registers nothing
    and holds nobody up. Not for two threads at once, nor inside a transaction.
    """

    def __init__(self, alias: str, topic: Topic, after: int, partition: int | None = None):
        self.alias, self.topic, self.after = alias, topic.name, after
        partitions = range(topic.partitions) if partition is None else [partition]
        self._streams = [(number, priority) for number in partitions for priority in range(topic.priorities)]
        self.forget()

    def forget(self) -> None:
        """Trust nothing that was read before about who publishes: the database was away."""
        self._horizon = Horizon(self.alias)
        self._highest = 0

    @property
    def held_back(self) -> bool:
        """Whether there may be messages that wait for a transaction which publishes, and is still open."""
        return self._horizon.value < self._highest

    def read(self) -> list[Message]:
        """Return the next messages, at most 1,000; none if there is nothing new up to the horizon."""
        self._highest = highest_offset(self.alias)
        horizon = self._horizon.probe(self._highest)
        if horizon <= self.after:
            return []
        offsets = self._next(horizon)
        self.after = offsets[-1] if len(offsets) == AT_ONCE else horizon
        return list(Message.objects.using(self.alias).filter(offset__in=offsets).order_by("offset"))

    def _next(self, horizon: int) -> list[int]:
        streams = self._streams
        if horizon - self.after <= WATCH_SPAN:
            counts = watch(self.alias, self.after, horizon)
            streams = [stream for stream in streams if (self.topic, *stream) in counts]
        words = dialect(self.alias)
        offsets: list[int] = []
        for start in range(0, len(streams), STREAMS_OF_ONE_FETCH):
            some = streams[start : start + STREAMS_OF_ONE_FETCH]
            values: list[object] = []
            for stream in some:
                values += (*words.place(self.topic, *stream, self.after, horizon), AT_ONCE)
            text = " UNION ALL ".join([words.branch.format(NEXT)] * len(some))
            offsets += [offset for (offset,) in execute(self.alias, text, values).fetchall()]
        return sorted(offsets)[:AT_ONCE]
