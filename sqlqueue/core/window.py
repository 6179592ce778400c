"""How far a stream has been read, and what of it is final. P, F are the delivery protocol's letters.

Every message at or below F (`final`) was read after it was known that none can still appear there. Between F and the
cursor
late commits may turn up. A watch counts the log's visible messages over all streams in one statement; a stream whose
count
is what it has read need not be read again. One that does not agree reads onward from its cursor, and if that does not
explain the difference, once more from F.

The induction behind it: a watch's `low` is the horizon of the last final watch. At that watch, F was raised to it, or
the
stream was marked `more` (with F at its cursor) or `late`, and those marks are taken away only by a read that begins at
or
below F, comes to the log's end, and so raises F to a horizon at least as high.
"""

from __future__ import annotations

from bisect import bisect_right, insort


class Window:
    """The offsets read and not yet passed by the position, ascending, and the marks that say what to read next."""

    def __init__(self, position: int):
        self.position = self.final = self.cursor = position
        self.more = True  # the log may hold messages beyond the cursor
        self.late = False  # the log may hold messages between final and the cursor that were not read
        self.offsets: list[int] = []
        self._expected: tuple[int, int, int, bool] | None = None

    def add(self, offset: int) -> None:
        """Remember an offset; nearly always the highest."""
        if not self.offsets or self.offsets[-1] < offset:
            self.offsets.append(offset)
        else:
            insort(self.offsets, offset)

    def next_read(self, room: int, extra: int) -> tuple[int, int]:
        """Return (the offset to read beyond, how many at most). `extra`: how many new ones to expect among known
        ones."""
        if self.late:
            return self.final, len(self.offsets) - bisect_right(self.offsets, self.final) + extra
        return self.cursor, room

    def was_read(self, start: int, last: int | None, cut: bool, horizon: int) -> None:
        """Take note of a read beyond `start` whose last message was `last`; cut: there may be more; `horizon` was known
        before the read."""
        from_final = start <= self.final
        if from_final:
            self.final = max(self.final, min(horizon, last) if cut and last is not None else horizon)
        self.cursor = max(self.cursor, self.final, last or 0)
        if cut:
            return
        if from_final:
            self.more = self.late = False
            self._expected = None
            return
        self.more = False
        if self._expected is not None:
            low, high, count, final = self._expected
            self.cursor = max(self.cursor, high)
            self._expected = None
            if self._known(low, high) < count:
                self.late = True
            elif final and not self.late:
                self.final = max(self.final, high)

    def watched(self, low: int, high: int, count: int, final: bool) -> None:
        """Be told that the log holds `count` messages of this stream in (low, high]; final: no more can appear
        there."""
        if self.more or self.late:
            if self.cursor > self.final:
                self.late, self._expected = True, None
        elif self.position > low:
            # Some of the counted ones have been passed already, so the count cannot be compared.
            self.late = count > 0
            if final and not count:
                self.final = max(self.final, high)
        elif self._known(low, high) >= count:
            if final:
                self.final = max(self.final, high)
        elif self.cursor > self.final:
            self.more, self._expected = True, (low, high, count, final)
        else:
            self.more = True

    def alarm(self) -> None:
        """Be told that there may be anything: read onward, and once more what was not final."""
        self.more = True
        self.late = self.late or self.cursor > self.final
        self._expected = None

    def _known(self, low: int, high: int) -> int:
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
