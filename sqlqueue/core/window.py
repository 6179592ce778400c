"""How far a stream has been read, and what of it is final. P, F are the delivery protocol's letters.

Every message at or below F (`final`) was read after it was known that none can still appear there. Between F and the
cursor late commits may turn up. A watch counts the log's visible messages over all streams in one statement; a stream
whose count is what it has read need not be read again. One that does not agree reads onward from its cursor, and the
same statement counts what is visible between F and the cursor: if that is not what is known, something there has come late,
and what was read is put aside until it has been read again from F. So a message is never taken in before an earlier one
that was visible with it, and a read that was complete in this sense makes everything final up to the horizon that was
known before it.

The induction behind it: a watch's `low` is the horizon of the last final watch. At that watch, F was raised to it, or the
stream was marked `more` or `late`, and those marks are taken away only by a complete read that comes to the log's end,
and so raises F to a horizon at least as high.
"""

from __future__ import annotations

from bisect import bisect_right, insort


class Window:
    """The offsets read and not yet passed by the position, ascending, and the marks that say what to read next."""

    def __init__(self, position: int):
        self.position = self.final = self.cursor = position
        self.more = True  # the log may hold messages beyond the cursor
        self.late = False  # the log holds messages between final and the cursor that were not read
        self.offsets: list[int] = []

    def add(self, offset: int) -> None:
        """Remember an offset; nearly always the highest."""
        if not self.offsets or self.offsets[-1] < offset:
            self.offsets.append(offset)
        else:
            insort(self.offsets, offset)

    def next_read(self, room: int, extra: int, horizon: int) -> tuple[int, int]:
        """Return (the offset to read beyond, how many at most). `extra`: how many new ones to expect among known ones."""
        if not self.late:
            return self.cursor, room
        if room > 0:
            return self.final, self.known(self.final, self.cursor) + min(extra, room)
        # Without room for more, only what lets the position move on is worth reading again.
        return self.final, extra if horizon > self.final else 0

    def is_complete(self, start: int, between: int) -> bool:
        """Tell whether a read beyond `start` has missed nothing: `between` messages were visible with it from F to there
        (-1: not counted)."""
        return start <= self.final or between == self.known(self.final, start)

    def was_read(self, last: int | None, cut: bool, horizon: int) -> None:
        """Take note of a complete read whose last message was `last`; cut: there may be more; `horizon` was known
        before the read."""
        self.final = max(self.final, min(horizon, last) if cut and last is not None else horizon)
        self.cursor = max(self.cursor, self.final, last or 0)
        if not cut:
            self.more = self.late = False

    def watched(self, low: int, high: int, count: int, final: bool) -> None:
        """Be told that the log holds `count` messages of this stream in (low, high]; final: no more can appear there."""
        if self.more or self.late:
            return
        if self.position > low:
            # Some of the counted ones have been passed already, so the count cannot be compared.
            self.more = count > 0
        else:
            self.more = self.known(low, high) < count
        if final and not self.more:
            self.final = max(self.final, high)
            self.cursor = max(self.cursor, self.final)

    def alarm(self) -> None:
        """Be told that there may be anything."""
        self.more = True

    def known(self, low: int, high: int) -> int:
        """Return how many messages in (low, high] are remembered."""
        return bisect_right(self.offsets, high) - bisect_right(self.offsets, low)

    def move(self, position: int) -> list[int]:
        """Move the position; return the offsets that it has passed."""
        count = bisect_right(self.offsets, position)
        passed = self.offsets[:count]
        del self.offsets[:count]
        self.position = position
        self.final = max(self.final, position)
        self.cursor = max(self.cursor, position)
        return passed
