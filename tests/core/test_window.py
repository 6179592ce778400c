"""Nothing below `final` is ever missed, whatever commits when; and nothing is read without need."""

from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.core.window import Window

STEP = st.tuples(st.sampled_from("olwwrrm"), st.integers(1, 4))


class Log:
    """Messages of one stream among others: open, or visible."""

    def __init__(self) -> None:
        self.visible: set[int] = set()
        self.open: set[int] = set()
        self.last = 0

    def horizon(self, candidate: int) -> int:
        return min([candidate, *(offset - 1 for offset in self.open)])


@given(st.lists(STEP, max_size=60))
def test_what_is_final_has_been_read(steps: list[tuple[str, int]]) -> None:
    log, window = Log(), Window(0)
    known: set[int] = set()
    watched, horizon = 0, 0
    for kind, number in steps:
        if kind == "o":
            log.open |= set(range(log.last + 1, log.last + number + 1))
            log.last += number
        elif kind == "l" and log.open:
            offset = sorted(log.open)[number % len(log.open)]
            log.open.discard(offset)
            log.visible.add(offset)
        elif kind == "w":
            high = max(log.visible, default=0)
            horizon = max(horizon, log.horizon(high))
            if high > watched:
                count = sum(watched < offset <= high for offset in log.visible)
                window.watched(watched, high, count, horizon >= high)
                watched = horizon
        elif kind == "r" and (window.more or window.late):
            start, limit = window.next_read(number, 2, horizon)
            found = sorted(offset for offset in log.visible if offset > start)[:limit]
            between = sum(window.final < offset <= start for offset in log.visible) if found else -1
            if limit == 0:
                continue
            if not window.is_complete(start, between):
                window.late = True
                continue
            for offset in set(found) - known:
                known.add(offset)
                window.add(offset)
            window.was_read(found[-1] if found else None, len(found) == limit, horizon)
        elif kind == "m":
            window.move(min(window.final, window.position + number))
        assert window.position <= window.final <= horizon
        assert not [offset for offset in log.visible if offset <= window.final and offset not in known]
        assert window.offsets == sorted(offset for offset in known if offset > window.position)
    # At rest everything is found and final.
    log.visible |= log.open
    log.open.clear()
    for _ in range(200):
        high = max(log.visible, default=0)
        horizon = max(horizon, high)
        count = sum(watched < offset <= high for offset in log.visible)
        window.watched(watched, high, count, True)
        watched = horizon
        if window.more or window.late:
            start, limit = window.next_read(2, 2, horizon)
            found = sorted(offset for offset in log.visible if offset > start)[:limit]
            between = sum(window.final < offset <= start for offset in log.visible) if found else -1
            if not window.is_complete(start, between):
                window.late = True
                continue
            for offset in set(found) - known:
                known.add(offset)
                window.add(offset)
            window.was_read(found[-1] if found else None, len(found) == limit, horizon)
    assert known == log.visible
    assert window.final == horizon


def test_a_stream_whose_count_agrees_is_not_read_again() -> None:
    window = Window(0)
    window.was_read(None, False, 5)
    assert (window.more, window.late, window.final) == (False, False, 5)
    window.watched(5, 9, 0, True)
    assert (window.more, window.final) == (False, 9)


def test_what_came_late_is_read_again_from_where_it_is_final() -> None:
    window = Window(0)
    window.add(3)
    window.was_read(3, False, 1)
    window.watched(1, 4, 2, False)
    assert window.next_read(10, 2, 1) == (3, 10)
    assert not window.is_complete(3, 2)  # 2 is visible now, too
    window.late = True
    assert window.next_read(10, 2, 1) == (1, 3)
    assert window.next_read(0, 2, 1) == (1, 0)
    assert window.next_read(0, 2, 4) == (1, 2)


def test_after_an_alarm_everything_is_looked_at() -> None:
    window = Window(0)
    window.was_read(None, False, 5)
    window.alarm()
    assert window.more
