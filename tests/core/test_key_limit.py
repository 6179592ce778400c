"""How many messages of one key are in flight: the limit, and how little is kept of what waits for it."""

import pytest

from sqlqueue.core.outcomes import RETRIED, Outcome
from sqlqueue.core.partition import window
from sqlqueue.core.partition.key_limit import AHEAD, KeyLimit
from tests.core.test_assigned_partition import Hosted

pytestmark = pytest.mark.once


def limited(keys: str, most: int, batch_size: int = 5) -> Hosted:
    hosted = Hosted(keys, batch_size=batch_size, ordering="none")
    hosted.stream.queues.limit.most = most
    return hosted


def finish_all_but(hosted: Hosted, key: str) -> list[int]:
    offsets = [offset for offset, attempt in hosted.attempts.items() if attempt.message.key != key]
    for offset in offsets:
        hosted.finish(offset)
        del hosted.attempts[offset]
    return offsets


def test_twenty_thousand_messages_of_a_held_key_are_two_rows_and_a_range() -> None:
    many = 20_000
    hosted = limited("a" * many + "bcd", 2, batch_size=1_000)
    done: list[int] = []
    for _ in range(100):
        hosted.read()
        hosted.settle(flush=True)
        done += finish_all_but(hosted, "a")
        assert len(hosted.stream.entries) <= window.WINDOW_LIMIT + 2
        hosted.now += 1.0
        if hosted.stream.window.position == many + 3:
            break
    assert done == [many + 1, many + 2, many + 3]
    assert hosted.marks == (many + 3, 0)
    assert len(hosted.stream.entries) == 2
    [one] = hosted.stream.ranges.by_key.values()
    assert (one.low, one.high) == (2, many)
    hosted.finish(1)
    hosted.settle()
    for _ in range(3):
        hosted.iterate()
    assert sorted(hosted.attempts) == [1, 2, 3], "the next one begins, and no other"
    assert len(hosted.stream.entries) <= 3 + AHEAD


def test_a_message_that_waits_for_its_retry_takes_no_place() -> None:
    hosted = limited("aaa", 1)
    hosted.iterate()
    hosted.finish(1, Outcome(RETRIED, 10.0, "no"))
    hosted.settle()
    assert sorted(hosted.attempts) == [1, 2]
    hosted.now = 10.0
    hosted.load()
    hosted.settle()
    hosted.finish(2)
    hosted.load()
    plan = hosted.planned()
    assert [attempt.offset for each in plan.executions for attempt in each.attempts] == [1], "it goes first"


def test_a_limit_counts_over_priorities_and_forgets_a_lost_lease() -> None:
    limit = KeyLimit(1)
    urgent, other = Hosted("a", ordering="none", key_limit=limit), Hosted("a", ordering="none", key_limit=limit)
    for hosted in (urgent, other):
        hosted.iterate()
    assert (len(urgent.attempts), len(other.attempts)) == (1, 0)
    urgent.stream.queues.leave()
    other.settle()
    assert len(other.attempts) == 1


def test_a_late_message_behind_a_full_memory_is_delivered_in_its_turn() -> None:
    hosted = limited("a" * (AHEAD + 2), 1, batch_size=50)
    late = hosted.log.pop(9)
    hosted.read(horizon=9)
    hosted.settle()
    hosted.log.insert(9, late)
    hosted.stream.window.alarm()
    hosted.read()
    done = []
    for _ in range(2 * AHEAD):
        hosted.iterate()
        done += finish_all_but(hosted, "")
    assert sorted(done) == list(range(1, AHEAD + 3))
    hosted.settle()
    assert hosted.marks == (AHEAD + 2, AHEAD + 2)
