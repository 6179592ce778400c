"""How far a partition has been read, and up to where that is final. P, F, H: see docs/protocol.md.

F (`final`): every message at or below it was read after it was known that none can still appear there. The cursor: up
to there the log has been read, but late commits may turn up between F and the cursor. A read is one snapshot of two
parts: the offsets in (F, cursor], and whole messages beyond the cursor. The offsets are compared with what is
remembered, as sets: what is remembered and gone was deleted, what is there and not remembered is late. Late messages
are added first, and what was read beyond the cursor is dropped; so a message is never added before an earlier one that
was visible with it. Without late ones F rises to what was read, at most to the horizon H that was known before
the read. No number of messages is ever compared, so nothing that deletes from the log can hide a late commit.

Reading onward needs room. A final read, which is due when H > F, does not: it waits only while (P, F] itself holds many
messages, which a settle passes first. So F, and then P, move on from every state.

How much is kept in memory, or read with one statement, has a budget: messages, and the bytes of their payloads and
headers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlqueue.core.settle_plan import FetchedMessage, sizes_of

if TYPE_CHECKING:
    from sqlqueue.core.filters import Filter

LATE_LIMIT: Final = 10_000  # late messages that one read finds at most; the next read compares what is behind them
PREFETCH_BYTES: Final = 64 * 1024 * 1024  # of a process, unless the setting says otherwise
HEADS_LIMIT: Final = 100_000  # messages that wait by their own outcome; beyond it nothing new is read
WINDOW_LIMIT: Final = 10_000  # messages read onward and not yet passed by the position
SCAN_LIMIT: Final = 5_000  # messages of a partition that one scan for those of a waiting key passes
MARGIN: Final = 2  # so much heavier than the last ones a message may be without a statement of its own


class Read(NamedTuple):
    """What to read of a partition in one snapshot: at most `limit` messages beyond `start`, up to `end` if that is not
    None; and the lowest `looks` offsets in (since, start]. sift: of the messages, what does not match this filter is
    not read whole. size: how many bytes of payloads and headers it may bring, None for any; it brings a message at
    least."""

    start: int
    limit: int
    end: int | None = None
    since: int = 0
    looks: int = 0
    sift: Filter | None = None
    size: int | None = None


class Found(NamedTuple):
    """What a read has found, in one snapshot: the offsets between F and its start, and the messages beyond.

    Of a read that sifts, `messages` are those that match; left_out: rows of the others, with the columns of a message,
    which are None unless their filter looks at them. gone: offsets of those that were to be read by another statement,
    and were deleted just then; cut: there were more, for which its size left no room.
    """

    seen: list[int]
    messages: list[FetchedMessage]
    left_out: Sequence[tuple[Any, ...]] = ()
    gone: Sequence[int] = ()
    cut: bool = False

    @property
    def total(self) -> int:
        """How many messages it has found beyond the start."""
        return len(self.messages) + len(self.left_out) + len(self.gone)

    @property
    def last(self) -> int | None:
        """The offset of the last of them."""
        lasts = [one[-1][0] for one in (self.messages, self.left_out) if one]
        return max([*lasts, *self.gone[-1:]], default=None)


class ReadWindow:
    """The offsets read and not yet passed by the position, ascending, and the marks that say what to read next."""

    def __init__(self, position: int):
        self.position = self.final = self.cursor = position
        self.more = True  # the log may hold messages that are not remembered
        self.stride = 0  # how many offsets the last read passed
        self.waits = 0  # how often in a row a read waited for partitions behind this one
        self.offsets: list[int] = []
        self.late: deque[int] = deque()  # visible at or below the cursor, and not remembered: to be read first
        self._late_to = self._late_horizon = position  # up to where, and with which horizon, the late ones were found

    def add(self, offsets: Sequence[int]) -> None:
        """Remember ascending offsets; nearly always higher ones than all before."""
        late = offsets and self.offsets and offsets[0] < self.offsets[-1]
        self.offsets += offsets
        if late:
            self.offsets.sort()

    # -- reading ------------------------------------------------------------------------------------------------------

    def wants(self, horizon: int) -> bool:
        """Tell whether anything may be to be read now, if there is room."""
        return not self.late and (self.more or (horizon > self.final and self.cursor > self.final))

    def next_read(self, room: int, extra: int, held: int, horizon: int) -> Read | None:
        """Return what to read now, or None. room: how many messages may be read beyond the cursor; extra: how many a
        final read adds without room; held: how many remembered messages in (P, F] a final read waits for."""
        if self.late:
            return None
        final_due = horizon > self.final and (self.more or self.cursor > self.final)
        if room > 0 and (self.more or final_due):
            return self.reading(room)
        if not final_due or self.known(self.position, self.final) >= held:
            return None
        return self.reading(extra if self.cursor < horizon else 0, horizon)

    def reading(self, limit: int, end: int | None = None) -> Read:
        """Return the read of at most `limit` messages beyond the cursor, and of what lies between F and there."""
        if self.cursor == self.final:
            return Read(self.cursor, limit, end)
        looks = self.known(self.final, self.cursor) + LATE_LIMIT
        return Read(self.cursor, limit, end, self.final, looks)

    def compare(self, read: Read, seen: Sequence[int], horizon: int) -> list[int]:
        """Compare the offsets that a read has seen with what is remembered there; return what is gone.

        Afterwards `late` holds what is not remembered (always something, if there were more to see), and F has risen as
        far as that allows.
        """
        end = seen[-1] if len(seen) >= read.looks else read.start
        remembered = self.offsets[bisect_right(self.offsets, read.since) : bisect_right(self.offsets, end)]
        gone: list[int] = []
        if remembered != list(seen):
            known, visible = set(remembered), set(seen)
            gone = [offset for offset in remembered if offset not in visible]
            self.late.extend(offset for offset in seen if offset not in known)
        self._late_to, self._late_horizon = end, horizon
        self._late_final()
        if self.late:
            self.more = True
        return gone

    def was_read(self, read: Read, last: int | None, cut: bool, horizon: int) -> None:
        """Record a read without late messages. last: the offset of its last message; cut: there may be more."""
        if read.limit <= 0:
            return
        end = horizon if read.end is None else min(horizon, read.end)
        self.final = max(self.final, min(end, last) if cut and last is not None else end)
        self.cursor = max(self.cursor, self.final, last or 0)
        self.stride = self.cursor - read.start
        if not cut and read.end is None:
            self.more = False

    def next_late(self, room: int, extra: int, held: int, horizon: int) -> list[int]:
        """Return the late messages to read now, at most `extra`; without room only those that are final."""
        if not self.late:
            return []
        if room > 0:
            return [offset for offset, _ in zip(self.late, range(min(extra, room)))]
        if self.late[0] <= horizon:
            if self.known(self.position, self.final) >= held:
                return []
            return [offset for offset, _ in zip(self.late, range(extra)) if offset <= horizon]
        if horizon > self._late_horizon:
            self.late.clear()  # F can rise up to the first of them: a fresh read finds out
            self.more = True
        return []

    def took_late(self, count: int) -> None:
        """Record that the lowest `count` late messages are in memory now, or gone."""
        for _ in range(count):
            self.late.popleft()
        self._late_final()
        self.more = True  # what was read beyond the cursor has been dropped

    def _late_final(self) -> None:
        clear = self.late[0] - 1 if self.late else self._late_to
        self.final = max(self.final, min(self._late_horizon, clear))

    # -- what the log's head tells ------------------------------------------------------------------------------------

    def unseen(self, low: int, horizon: int) -> None:
        """Record that the log has nothing of the partition above `low`, in a snapshot newer than `horizon`."""
        if self.final < low:
            self.more = True
        elif not self.more and not self.late and self.cursor == self.final:
            self.final = self.cursor = max(self.final, horizon)

    def alarm(self) -> None:
        """Record that the log may have messages that were not read."""
        self.more = True

    @property
    def rests(self) -> bool:
        """Whether everything was read that there was, and no late commit can turn up in it."""
        return not (self.more or self.late or self.offsets) and self.cursor == self.final

    def quiet(self, horizon: int) -> None:
        """Record that the log had nothing of the partition since it began to rest, in snapshots that are together newer
        than `horizon`."""
        self.final = self.cursor = max(self.final, horizon)

    # -- memory -------------------------------------------------------------------------------------------------------

    def remembers(self, offsets: Iterable[int]) -> bool:
        """Tell whether all of these are remembered."""
        return set(self.offsets).issuperset(offsets)

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


class ReadBudget:
    """What may be loaded of one partition, by the weight of the last messages.

    share: bytes that its payloads and headers may have in memory: read, with handlers, or on their way there. Reading
    onward fills half of it; the other half is for messages whose turn has come. Whatever is to be read, one message may
    be, so the share can be overrun by a few.

    half: those bytes. most_ready: with how many ready messages reading stops: their payloads are in memory. at_once:
    how many messages to load with one statement at most. most_held: how many remembered messages in (P, F] a final read
    waits for, and how many ready ones any loading. weighed: whether the size of recent messages is known.
    """

    def __init__(self, batch_size: int):
        self._batch_size = batch_size
        self._heaviest = 0  # characters of the heaviest of the last messages
        self.weighed = False
        self.share = PREFETCH_BYTES

    @property
    def share(self) -> int:
        """See the class."""
        return self._share

    @share.setter
    def share(self, share: int) -> None:
        self._share, self.half = share, max(1, share // 2)
        self._reckon()

    def _reckon(self) -> None:
        self.most_ready = self.fitting(2 * self._batch_size, self.half)
        self.at_once = min(self._batch_size, self.most_ready)
        self.most_held = self.most_ready + self.at_once

    def weigh(self, messages: Iterable[FetchedMessage], left_out: Iterable[tuple[Any, ...]] = ()) -> None:
        """Expect the next messages to be as heavy as the heaviest of these; the effect of a single heavy one decays.
        left_out: of a read that sifts, whose payloads may not have been read: then they say nothing."""
        sizes = sizes_of(messages)
        sizes += [len(payload) for row in left_out if (payload := row[3])]
        if sizes:
            self._heaviest, self.weighed = max(*sizes, self._heaviest // 4), True
            self._reckon()

    def forget(self) -> None:
        """Forget the size of recent messages: the next ones may be heavier."""
        self._heaviest, self.weighed = 0, False
        self._reckon()

    def expected(self, messages: int) -> int:
        """Return how many bytes so many of the next messages have at most; 0 while that is not known."""
        return messages * self._heaviest

    def fitting(self, most: int, size: int) -> int:
        """Return how many messages have so many bytes, at most `most`, and at least one."""
        return max(1, min(most, size // (MARGIN * (self._heaviest or 1))))
