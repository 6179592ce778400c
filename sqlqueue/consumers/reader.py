"""Reading for all of a process's streams: the pulse, the horizon, the watch, fetches and due rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sqlqueue.core.stream import Address, Stream
from sqlqueue.core.window import Read
from sqlqueue.database.horizon import Horizon
from sqlqueue.log.fetch import FIRST, WATCH_SPAN, Found, due, fetch, gather, load, pulse, scan, watch

RESCAN_SHARE = 20  # while the horizon is held back, looking for late commits may take one part in so many of the time
RESCAN_AT_LEAST = 0.05  # seconds
FIRST_READ = 32  # messages, while it is not known how heavy a stream's are
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
        self.due_in: float | None = None  # seconds until a scheduled message is due, as of the last look
        self._noticed: dict[tuple[str, str], tuple[int, int, int]] = {}  # by (group, topic): how far the look has come
        self._watched_to = 0  # the horizon at the last watch from there on
        self._watched_high = 0
        self._rescan_at = 0.0
        self._rescanning = False  # the next read is one for late commits, while the horizon is held back

    def look(self, streams: Sequence[Stream], now: float) -> bool:
        """Look for news, and tell the streams that have some; return whether there was any.

        One statement while the log is idle; a probe and a watch more when it is not. In that order: the candidate
        before the probe, and what is read in a newer snapshot than the probe. While the horizon is held back, only what
        is new is watched, and the rest now and then, for late commits.
        """
        self.highest, self.due_in = pulse(self.alias)
        before = self.horizon.value
        reached = self.horizon.probe(self.highest)
        rose = reached > self._watched_to
        new = self.highest > self._watched_high
        rescan = reached < self.highest and now >= self._rescan_at
        if not (rose or new or rescan):
            return reached > before
        whole = rose or rescan
        if whole:
            self._rescanning = not rose and not new
            self._rescan_at = now + RESCAN_AT_LEAST
        low = self._watched_to if whole else self._watched_high
        seen = watch(self.alias, low, self.highest) if self.highest - low <= WATCH_SPAN else None
        for stream in streams:
            address = stream.address
            if seen is None or (address.topic, address.partition, address.priority) in seen:
                stream.window.alarm()
            elif whole:
                stream.window.unseen(low, reached)
        if whole:
            self._watched_to = reached
        self._watched_high = self.highest
        return rose or new

    def wants(self, stream: Stream) -> bool:
        """Tell whether something of a stream is to be read or loaded now."""
        reached = self.horizon.value
        return bool(stream.missing(reached) or stream.to_scan() or stream.next_read(reached))

    def read(self, streams: Sequence[Stream], now: float) -> int:
        """Read for every stream that wants it; return how many messages came."""
        unweighed = [stream for stream in streams if not stream.weighed]
        count = self._read(streams, now)
        if again := [stream for stream in unweighed if stream.weighed]:
            count += self._read(again, now)  # as many as there is room for, now that they are known not to be too heavy
        return count

    def _read(self, streams: Sequence[Stream], now: float) -> int:
        began = time.perf_counter()
        count = sum(self._bring(stream, now) for stream in streams)
        reached = self.horizon.value
        wanting = [(stream, _light(stream, read)) for stream in streams if (read := stream.next_read(reached))]
        for (stream, read), found in zip(wanting, self._fetch(wanting)):
            count += stream.take_in(read, found.seen, found.messages, reached, now)
            if stream.window.late:
                count += self._bring(stream, now)
        if self._rescanning:
            self._rescanning = False
            self._rescan_at = max(self._rescan_at, now + RESCAN_SHARE * (time.perf_counter() - began))
        return count

    def unread(self, streams: Sequence[Stream]) -> bool:
        """Tell whether the log holds anything of these streams that is not remembered."""
        asked = [(stream, stream.window.reading(1)) for stream in streams]
        return any(
            found.messages or not stream.window.remembers(found.seen)
            for (stream, _), found in zip(asked, self._fetch(asked))
        )

    def _fetch(self, reads: Sequence[tuple[Stream, Read]]) -> list[Found]:
        return fetch(self.alias, [(stream.address, read) for stream, read in reads]) if reads else []

    def _bring(self, stream: Stream, now: float) -> int:
        """Load what a stream misses, and look for what comes next of keys that may go on; return how many came."""
        if (span := stream.to_scan()) is not None:
            stream.scanned(*span, scan(self.alias, stream.address, *span), now)
        asked = stream.missing(self.horizon.value)
        asked = asked if stream.weighed else asked[:FIRST_READ]
        if asked:
            stream.bring(asked, gather(self.alias, stream.address, [offset for offset, _ in asked]), now)
        return len(asked)

    def notice_changes(self, group: str, topic: str, streams: Mapping[Address, Stream], now: float) -> bool:
        """Look for rows that are due in the database but not in memory: a person has rescheduled them there. Some at a
        time; return whether there are more to be looked at."""
        partitions = {address.partition for address in streams}
        beyond = self._noticed.pop((group, topic), FIRST)
        found = due(self.alias, group, topic, partitions, beyond, CHANGES_AT_ONCE)
        for partition, priority, offset in found:
            if (stream := streams.get(Address(group, topic, partition, priority))) is not None:
                stream.reschedule(offset, now)
        if len(found) < CHANGES_AT_ONCE:
            return False
        self._noticed[group, topic] = found[-1]
        return True

    def load(self, stream: Stream, offsets: Sequence[int], now: float) -> None:
        """Load due rows of a stream, with their messages."""
        offsets = offsets if stream.weighed else offsets[:FIRST_READ]
        found = load(self.alias, stream.address, offsets)
        for offset in offsets:
            row, message = found.get(offset, (None, None))
            stream.load(offset, row, message, now)


def _light(stream: Stream, read: Read) -> Read:
    """Return a read that asks for few messages while any of them may be as heavy as messages may be."""
    return read if stream.weighed else read._replace(limit=min(read.limit, FIRST_READ))
