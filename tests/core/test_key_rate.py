"""How many messages of one key may start in a time: never more than its bucket and the rate, in bounded memory."""

import random

import pytest

from sqlqueue.core.flow import Rate
from sqlqueue.core.partition import key_limit, settling
from sqlqueue.core.partition.key_limit import KeyRate
from tests.core.test_assigned_partition import Hosted

pytestmark = pytest.mark.once


def test_a_key_waits_for_its_interval_and_others_do_not() -> None:
    rates = KeyRate(Rate("6/m"))
    assert rates.take("a", 5, 100.0) == 1
    assert rates.take("a", 5, 109.0) == 0
    assert rates.wait("a", 109.0) == pytest.approx(1.0)
    assert rates.take("b", 5, 109.0) == 1
    assert rates.take("a", 5, 110.0) == 1
    assert rates.wait("new", 110.0) == 0


@pytest.mark.parametrize(("text", "burst"), [("10/s", 10), ("100/m", 1), ("1/d", 1), ("1000/s", 1_000)])
def test_in_no_stretch_of_time_more_than_a_bucket_and_the_rate(text: str, burst: int) -> None:
    rates, rate = KeyRate(Rate(text)), Rate(text).per_second
    now, started = 0.0, 0
    assert rates.take("a", 10**6, now) == burst
    for _ in range(200):
        wait = rates.wait("a", now)
        now += random.choice([wait, wait / 2, 0.0])
        started += rates.take("a", random.randint(1, 5), now)
        assert started <= rate * (now + key_limit.ROUNDING) + 1e-6
    now += 10 * burst / rate
    assert rates.take("a", 10**6, now) == burst


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = KeyRate(Rate("1/s"))
    for number in range(1_000):
        rates.take(f"k{number}", 1, number * 0.1)
    assert len(rates._full_at) <= 11  # those of the last second
    monkeypatch.setattr(key_limit, "MOST_KEYS", 5)
    rates = KeyRate(Rate("1/d"))
    for number in range(10):
        rates.start(f"k{number}", 0.0)
    assert len(rates._full_at) == 5
    assert rates.take("k9", 1, 1.0) == 0


def test_any_number_of_messages_waits_in_one_row_and_a_range_and_the_others_go_on() -> None:
    hosted, rates = Hosted("a" * 300 + "bbc", batch_size=5), KeyRate(Rate("1/m"))
    started: list[int] = []
    written: set[int] = set()

    def work() -> None:
        hosted.load()
        hosted.read()
        executions = hosted.stream.choose(100, None, key_rate=rates, now=hosted.now)
        attempts = [attempt for each in executions for attempt in each.attempts]
        position = hosted.stream.window.position
        plan = settling.plan(hosted.stream, hosted.now, 0.0, executions)
        for row in plan.rows if plan else ():
            assert row.acked or row.in_flight or row.retry_count == 0, "waiting is no attempt"
            assert row.offset > position or row.offset in written | plan.taken_up, "it would count as settled"
            written.add(row.offset)
        for attempt in attempts:
            started.append(attempt.offset)
            hosted.attempts[attempt.offset] = attempt
            hosted.finish(attempt.offset)

    for _ in range(400):
        work()
    assert started == [1, 301, 303]
    assert hosted.stream.window.position == 303
    assert len(hosted.stream.entries) == 2, "the first ones of a and b"
    for _ in range(3):
        hosted.now += 60.0
        for _ in range(3):
            work()
    assert started == [1, 301, 303, 2, 302, 3, 4]


def test_what_is_given_back_may_start_again() -> None:
    rates = KeyRate(Rate("1/d"))
    rates.give_back("never started")
    for now in range(3):
        assert rates.take("a", 1, float(now)) == 1
        rates.give_back("a")
    assert rates.take("a", 1, 4.0) == 1
    assert rates.take("a", 1, 5.0) == 0
