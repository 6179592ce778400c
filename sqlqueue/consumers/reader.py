"""Reading for all of a process's streams: the pulse, the horizon, the watch, fetches and due rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sqlqueue.core.stream import Address, Stream
from sqlqueue.database.horizon import Horizon
from sqlqueue.log.fetch import WATCH_SPAN, Read, due, fetch, load, pulse, watch

RESCAN_SHARE = 20  # while the horizon is held back, looking for late commits may take one part in so many of the time
RESCAN_AT_LEAST = 0.05  # seconds
CHANGES_AT_ONCE = 1_000  # rows


class Reader:
    """Knows how far the log has been looked at. One thread's."""

    def __init__(self, alias: str):
        self.alias = alias
        self.forget()

    def forget(self) -> None:
        """Begin anew: nothing is known of the log's end."""
        self.horizon = Horizon(self.alias)
        self.highest = 0
        self.scheduled = False  # a scheduled message is due
        self._watched_to = 0  # the horizon at the last final watch
        self._watched_high = 0
        self._rescan_at = 0.0

    def look(self, streams: Sequence[Stream], now: float) -> bool:
        """Look for news, and tell the streams that have some; return whether there was any.

        One statement while the log is idle; a probe and a watch more when it is not. In that order: the candidate
        before the probe, and what is read in a newer snapshot than the probe.
        """
        self.highest, self.scheduled = pulse(self.alias)
        before = self.horizon.value
        reached = self.horizon.probe(self.highest)
        news = self.highest > self._watched_high or reached > self._watched_to
        if not news and not (reached < self.highest and now >= self._rescan_at):
            return reached > before
        began = time.perf_counter()
        self._watch(streams, reached)
        self._rescan_at = now + max(RESCAN_AT_LEAST, RESCAN_SHARE * (time.perf_counter() - began))
        return news

    def _watch(self, streams: Sequence[Stream], reached: int) -> None:
        low, high = self._watched_to, self.highest
        final = reached >= high
        if high - low > WATCH_SPAN:
            for stream in streams:
                stream.window.alarm()
        else:
            if low < reached < high:  # what lies between is final although its end is not
                self._tell(streams, low, reached, True)
                low = reached
            self._tell(streams, low, high, final)
        self._watched_to, self._watched_high = reached, high

    def _tell(self, streams: Sequence[Stream], low: int, high: int, final: bool) -> None:
        counts = watch(self.alias, low, high)
        for stream in streams:
            address = stream.address
            count = counts.get((address.topic, address.partition, address.priority), 0)
            stream.window.watched(low, high, count, final)

    def read(self, streams: Sequence[Stream]) -> int:
        """Fetch for every stream that has something to read and room for it; return how many messages came."""
        count, incomplete = self._read(streams)
        return count + self._read(incomplete)[0] if incomplete else count

    def _read(self, streams: Sequence[Stream]) -> tuple[int, list[Stream]]:
        """Return how many messages came, and the streams that have to be read again from where they are final."""
        reached = self.horizon.value
        wanting: list[tuple[Stream, Read]] = []
        for stream in streams:
            window = stream.window
            if not (window.more or window.late):
                continue
            start, limit = stream.next_read(reached)
            if limit > 0:
                since = window.final if start > window.final else None
                wanting.append((stream, Read(stream.address, start, limit, since)))
        count = 0
        incomplete: list[Stream] = []
        found = fetch(self.alias, [read for _, read in wanting]) if wanting else []
        for (stream, read), (messages, between) in zip(wanting, found):
            if stream.take_in(messages, read.start, read.limit, reached, between):
                count += len(messages)
            else:
                incomplete.append(stream)
        return count, incomplete

    def notice_changes(self, group: str, topic: str, streams: Mapping[Address, Stream], now: float) -> None:
        """Look for rows that are due in the database but not in memory: a person has rescheduled them there."""
        for address, offsets in due(self.alias, group, topic, CHANGES_AT_ONCE).items():
            if (stream := streams.get(address)) is not None:
                for offset in offsets:
                    stream.reschedule(offset, now)

    def load(self, stream: Stream, offsets: Sequence[int], now: float) -> None:
        """Load due rows of a stream, with their messages."""
        found = load(self.alias, stream.address, offsets)
        for offset in offsets:
            row, message = found.get(offset, (None, None))
            stream.load(offset, row, message, now)
