"""Lanes: what must stay in order. A lane is a key, or a whole partition; a message without one is free."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import Final

from sqlqueue.core.blocked import Range
from sqlqueue.core.plan import Hand, Message

READY: Final = 0  # read, in memory, may be handed out when its turn comes
HANDED: Final = 1  # with a handler, or queued for one
HELD: Final = 2  # has a row, and waits: for its time, its key, or (a suspect) to be handed out alone
ACKED: Final = 3  # settled; stays in memory until the position passes it
BEHIND: Final = 4  # an earlier message of its key waits: only its offset is remembered


class Entry:
    """What a stream remembers of one message."""

    __slots__ = (
        "ack",
        "count",
        "due",
        "hand",
        "key",
        "lane",
        "mark",
        "message",
        "offset",
        "row",
        "state",
    )

    def __init__(self, offset: int, lane: Lane | None, state: int, message: Message | None, key: str = ""):
        self.offset, self.lane, self.state, self.message, self.key = offset, lane, state, message, key
        self.row = False  # there is a delivery-state row
        self.count = 0  # its retry_count
        self.mark = 0  # in flight by a former owner (together or alone): a suspect
        self.due = 0.0  # monotonic
        self.hand: Hand | None = None
        self.ack: Hand | None = None  # acked in memory only: whom to tell once the position or a row says so

    def __lt__(self, other: Entry) -> bool:
        return self.offset < other.offset

    @property
    def untried(self) -> bool:
        """It has never been charged an attempt."""
        return not self.count


class Lane:
    """The unsettled messages of one lane that are in memory, by offset, and how many of them are handed out. `range`:
    its messages that are not, and come before all in the window."""

    __slots__ = ("busy", "items", "listed", "name", "range", "rows")

    def __init__(self, name: str):
        self.name = name
        self.items: deque[Entry] = deque()
        self.busy = 0
        self.listed = False  # it stands in the stream's list of lanes that may have something to hand out
        self.range: Range | None = None
        self.rows = 0  # of the items: how many have an unsettled row

    def add(self, entry: Entry) -> None:
        """Put an entry in its place; nearly always at the end, for offsets grow."""
        if not self.items or self.items[-1].offset < entry.offset:
            self.items.append(entry)
        else:
            insort(self.items, entry)

    def remove(self, entry: Entry) -> None:
        """Take a settled entry out; nearly always the first."""
        if self.items[0] is entry:
            self.items.popleft()
        else:
            self.items.remove(entry)

    def reaches(self, entry: Entry) -> bool:
        """Tell whether everything before an entry is in memory, or settled."""
        return self.range is None or entry.offset <= self.range.loaded

    @property
    def head(self) -> Entry | None:
        """The first unsettled message, if it is in memory."""
        return self.items[0] if self.items and self.reaches(self.items[0]) else None

    def has_before(self, offset: int) -> bool:
        """Tell whether a message at this offset waits behind an earlier one: one with a row, a range, or one that
        itself is behind another."""
        if self.range is not None:
            return True
        if not self.items or self.items[0].offset >= offset:
            return False
        if self.items[0].row:
            return True
        last = self.items[-1]
        if last.offset > offset:  # rarely: it has come late
            last = next(entry for entry in reversed(self.items) if entry.offset < offset)
        return last.state == BEHIND

    def blocked_by_row(self, entry: Entry) -> bool:
        """Tell whether an earlier message of the lane is unsettled and has a row, or lies in the range."""
        return self.range is not None or (self.items[0] is not entry and self.items[0].row)

    def head_run(self, most: int) -> list[Entry]:
        """Return the first entries that are ready, one behind another, at most `most`."""
        run: list[Entry] = []
        for entry in self.items:
            if entry.state != READY or len(run) >= most or not self.reaches(entry):
                break
            run.append(entry)
        return run

    def absent(self) -> list[int]:
        """Return the offsets of the first messages, as far as they are known and not in memory."""
        if self.range is not None:
            return list(self.range.found)
        offsets: list[int] = []
        for entry in self.items:
            if entry.state != BEHIND:
                break
            offsets.append(entry.offset)
        return offsets
