"""Nothing at or below `final` is ever missed, whatever commits or is deleted when; and it rises from every state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.core.partition import window as window_module
from sqlqueue.core.partition.window import Read, ReadWindow

pytestmark = pytest.mark.once

STEP = st.tuples(st.sampled_from("oollwwrrrrmd"), st.integers(1, 4))
FULL, READ, HELD = 5, 2, 4  # offsets in the window, of a final read, and in (P, F] before one


class Log:
    """Messages of one stream among others: open, visible, or deleted; and a reader of it."""

    def __init__(self) -> None:
        self.visible: set[int] = set()
        self.open: set[int] = set()
        self.last = self.horizon = self.watched = 0
        self.window = ReadWindow(0)
        self.known: set[int] = set()
        self.rests = False  # it is passed over until there is something of it

    def probe(self) -> None:
        high = max(self.visible, default=0)
        self.horizon = max(self.horizon, min([high, *(offset - 1 for offset in self.open)]))

    def watch(self) -> None:
        self.probe()
        if any(offset > self.watched for offset in self.visible):
            self.wake()
            self.window.alarm()
        elif not self.rests:
            self.window.unseen(self.watched, self.horizon)
        self.watched = self.horizon

    def wake(self) -> None:
        if self.rests:
            self.rests = False
            self.window.quiet(self.watched)

    def rest(self) -> None:
        self.rests = self.rests or (self.window.rests and self.window.final >= self.watched)

    @property
    def room(self) -> int:
        return 2 if len(self.window.offsets) < FULL else 0

    def read(self) -> None:
        if self.rests:
            return
        window = self.window
        late = window.next_late(self.room, READ, HELD, self.horizon)
        if late:
            self.remember([offset for offset in late if offset in self.visible])
            window.took_late(len(late))
            return
        read = window.next_read(self.room, READ, HELD, self.horizon)
        if read is None:
            return
        there = sorted(self.visible)
        if read.looks:
            seen = [offset for offset in there if read.since < offset <= read.start][: read.looks]
            window.compare(read, seen, self.horizon)
            if window.late:
                return
        found = [offset for offset in there if offset > read.start and (read.end is None or offset <= read.end)]
        found = found[: read.limit]
        self.remember(found)
        window.was_read(read, found[-1] if found else None, len(found) >= read.limit, self.horizon)

    def remember(self, offsets: list[int]) -> None:
        for offset in offsets:
            if offset not in self.known:
                self.known.add(offset)
                self.window.add([offset])


@pytest.mark.parametrize("rests", [False, True], ids=["always visited", "resting"])
@given(steps=st.lists(STEP, max_size=80))
def test_what_is_final_has_been_read(rests: bool, steps: list[tuple[str, int]]) -> None:
    log = Log()
    window = log.window
    for kind, number in steps:
        if kind == "o":
            log.open |= set(range(log.last + 1, log.last + number + 1))
            log.last += number
        elif kind == "l" and log.open:
            offset = sorted(log.open)[number % len(log.open)]
            log.open.discard(offset)
            log.visible.add(offset)
        elif kind == "d" and log.visible:  # a person deletes one, read or not, and nothing tells the reader
            log.visible.discard(sorted(log.visible)[number % len(log.visible)])
        elif kind == "w":
            log.watch()
        elif kind == "r":
            log.read()
        elif kind == "m":
            window.move(min(window.final, window.position + number))
        if rests:
            log.rest()
        assert window.position <= window.final <= max(log.horizon, window.position)
        assert not [offset for offset in log.visible if offset <= window.final and offset not in log.known]
        assert len(window.offsets) <= FULL + HELD + 2 * READ
    # At rest everything is found and final, however full the window was.
    log.visible |= log.open
    log.open.clear()
    log.wake()
    for _ in range(200):
        log.watch()
        log.read()
        window.move(window.final)
    assert log.visible <= log.known
    assert window.final == log.horizon


def test_a_stream_in_which_nothing_is_seen_is_not_read_again() -> None:
    window = ReadWindow(0)
    window.was_read(Read(0, 10), None, False, 5)
    assert (window.more, window.final) == (False, 5)
    window.unseen(5, 9)
    assert (window.more, window.final) == (False, 9)
    assert window.next_read(10, 2, 6, 9) is None


def full_window(final: int) -> ReadWindow:
    """2 to 6 are remembered, and F is at `final`."""
    window = ReadWindow(0)
    for offset in range(2, 7):
        window.add([offset])
    window.was_read(Read(0, 5), 6, True, final)
    return window


def test_a_final_read_needs_no_room() -> None:
    window = full_window(0)
    assert window.next_read(0, 2, 6, 0) is None
    read = window.next_read(0, 2, 6, 6)
    assert read is not None
    window.compare(read, [2, 3, 4, 5, 6], 6)
    assert window.final == 6


def test_a_final_read_waits_while_much_of_what_is_final_is_to_be_settled_first() -> None:
    window = full_window(4)
    assert window.next_read(0, 2, 3, 6) is None
    assert window.next_read(0, 2, 4, 6) is not None


def test_a_deletion_hides_no_late_commit() -> None:
    window = full_window(0)
    read = window.next_read(5, 2, 6, 6)
    gone = window.compare(read, [1, 2, 3, 4, 5], 6)  # 1 has come late, 6 was deleted: there are five, as before
    assert (gone, list(window.late)) == ([6], [1])
    assert window.final == 0


def test_what_has_come_late_is_taken_in_first_and_a_bounded_number_at_once() -> None:
    window = full_window(0)
    for offset in (2, 3, 4, 5):
        window.offsets.remove(offset)
    window.compare(window.next_read(5, 2, 6, 6), [2, 3, 4, 5, 6], 6)
    assert window.next_read(5, 2, 6, 6) is None
    assert window.next_late(5, 2, 6, 6) == [2, 3]
    window.took_late(2)
    assert window.final == 3
    assert window.next_late(5, 2, 6, 6) == [4, 5]
    window.took_late(2)
    assert (window.final, window.more) == (6, True)


def test_more_late_commits_than_one_look_finds_are_found_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "LATE_LIMIT", 3)
    window = ReadWindow(0)
    window.add([20])
    window.was_read(Read(0, 5), 20, True, 0)
    there = list(range(1, 21))
    for _ in range(20):
        if late := window.next_late(5, 2, 60, 20):
            for offset in late:
                window.add([offset])
            window.took_late(len(late))
        elif (read := window.next_read(5, 2, 60, 20)) is not None and read.looks:
            window.compare(read, [o for o in there if read.since < o <= read.start][: read.looks], 20)
            assert len(window.late) <= 3 + len(window.offsets)
    assert window.offsets == there
    assert window.final == 20


def test_late_commits_above_the_horizon_wait_for_room_and_do_not_hold_what_is_final() -> None:
    window = full_window(0)
    window.offsets.remove(5)
    window.compare(window.next_read(5, 2, 6, 2), [2, 3, 4, 5, 6], 2)
    assert window.final == 2
    assert window.next_late(0, 2, 6, 2) == []
    assert window.next_late(0, 2, 6, 4) == []  # the horizon has risen: it is looked again
    window.compare(window.next_read(0, 2, 6, 4), [3, 4, 5, 6], 4)
    assert window.final == 4


def test_after_an_alarm_everything_is_looked_at() -> None:
    window = ReadWindow(0)
    window.was_read(Read(0, 10), None, False, 5)
    window.alarm()
    assert window.next_read(10, 2, 6, 5) == Read(5, 10)


def test_what_may_still_get_a_late_commit_does_not_rest() -> None:
    window = ReadWindow(0)
    assert not window.rests
    window.was_read(Read(0, 10), 7, False, 5)
    assert (window.final, window.cursor, window.rests) == (5, 7, False)
    window.was_read(Read(7, 10), None, False, 9)
    assert window.rests
