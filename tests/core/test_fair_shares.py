"""Shares of a group's limits: fair, never more than the limit together, and not lost to who cannot use them."""

import random

import pytest

from sqlqueue.core.fair_shares import Sharer, TokenStock, bucket, draw, max_min, slots

pytestmark = pytest.mark.once


def test_who_asks_for_little_gets_it_and_the_others_share_the_rest() -> None:
    assert max_min(10, {"a": 1, "b": 100, "c": 100}) == {"a": 1, "b": 4.5, "c": 4.5}
    assert max_min(10, {"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert max_min(10, {}) == {}


def test_a_bucket_can_hold_a_token_and_what_its_time_yields() -> None:
    assert bucket(0, 1_000, 10, 3) == 31
    assert 1 <= bucket(0, 1_000_000, 1 / 86_400, 3) < 1.001
    assert bucket(5, -10, 10, 3) == 5  # the clock was set back


@pytest.mark.parametrize("rate", [0.05, 2.0, 100.0])
def test_draws_never_exceed_the_rate_and_use_all_of_it_where_the_demand_is_uneven(rate: float) -> None:
    """Twenty processes that draw at times of their own: one in four has more to do than it may, the others a little."""
    chance = random.Random(4)
    demands = {f"p{n}": rate if n % 4 == 0 else rate * 0.4 / 15 for n in range(20)}
    drew, drawn = dict.fromkeys(demands, 0.0), dict.fromkeys(demands, 0)
    next_draw = {name: chance.uniform(0, 1.5) for name in demands}
    tokens, at, end = 1.0, 0.0, max(150.0, 150 / rate)
    while (now := min(next_draw.values())) < end:
        name = min(next_draw, key=lambda one: next_draw[one])
        next_draw[name] = now + chance.uniform(1.5, 1.7)
        tokens, at = bucket(tokens, now - at, rate, 1.875), now
        sharers = {one: Sharer(one, demands[one], now - drew[one]) for one in demands}
        got = draw(sharers.pop(name), list(sharers.values()), tokens, rate, 1.5 * 1.25)
        assert 0 <= got <= tokens
        tokens -= got
        drawn[name] += got
        drew[name] = now if got else drew[name]
        assert sum(drawn.values()) <= 1 + rate * now
    assert sum(drawn.values()) > 0.97 * rate * end
    hungry = [count for name, count in drawn.items() if demands[name] == rate]
    assert max(hungry) < 1.5 * min(hungry) + 3


@pytest.mark.parametrize("limit", [1, 3, 20, 50])
def test_slots_are_never_more_than_the_limit_and_everybody_gets_one_in_turn(limit: int) -> None:
    chance, patience, total = random.Random(5), 60.0, 0
    held, waits, had = ({f"p{n}": 0 for n in range(20)} for _ in range(3))
    for _ in range(4_000):
        name = chance.choice(list(held))
        running = chance.randint(0, held[name])
        sharers = {
            one: Sharer(one, slots=held[one], wanted=10, waits=0.0 if held[one] else float(waits[one])) for one in held
        }
        held[name] = slots(sharers.pop(name), list(sharers.values()), limit, running, patience)
        assert held[name] >= running
        assert sum(held.values()) <= limit
        waits = {one: 0 if held[one] else waits[one] + 1 for one in held}
        had[name] += held[name]
        total += sum(held.values())
    assert min(had.values()) > 0
    assert total > 0.6 * limit * 4_000


def test_slots_that_one_process_does_not_want_go_to_the_others() -> None:
    idle = Sharer("idle", slots=0, wanted=0)
    assert slots(Sharer("busy", wanted=50), [idle], 10, 0, 3.0) == 10
    assert slots(Sharer("busy", slots=4, wanted=50), [Sharer("other", slots=6, wanted=50)], 10, 4, 3.0) == 4
    assert slots(Sharer("busy", slots=9, wanted=9), [Sharer("other", wanted=9)], 10, 7, 3.0) == 7  # these run


def test_a_lowered_limit_takes_no_slot_from_a_handler_that_runs() -> None:
    assert slots(Sharer("busy", slots=9, wanted=9), [], 2, 5, 3.0) == 5


def test_tokens_are_released_evenly_and_void_after_their_time() -> None:
    stock = TokenStock()
    assert stock.available(0.0) == 0
    stock.draw(10, 100.0, 2.0, 3.0)
    assert stock.available(100.0) == 1
    stock.use(1)
    assert stock.available(100.0) == 0
    at, used = stock.next_release(100.0), 1
    while used < 10:
        if got := stock.available(at):
            stock.use(got)
            used += got
        assert used <= 1 + 10 * (at - 100) / 2.0 + 1e-9
        before, at = at, min(stock.next_release(at), 102.0)
        assert used == 10 or at > before
    assert at <= 102.0
    stock.draw(5, 200.0, 0.0, 3.0)
    assert stock.available(200.0) == 5
    assert (stock.available(203.0), stock.left) == (0, 5)
