"""How a batch that fails is divided."""

import math
import random

import pytest

from sqlqueue.core.bisection import OUTAGE, Bisection


def divide(count: int, bad: set[int], bisection: Bisection) -> tuple[list[range], list[int]]:
    """Return the tries, and which messages failed alone, until everything has an outcome or there is an outage."""
    tries: list[range] = []
    alone: list[int] = []
    at = 0
    while at < count and not bisection.outage:
        tried = range(at, min(count, at + bisection.size))
        tries.append(tried)
        if not bad.intersection(tried):
            bisection.succeeded(len(tried))
        elif len(tried) > 1:
            bisection.failed(len(tried))
            continue
        else:
            bisection.failed_alone()
            alone.append(at)
        at = tried.stop
    return tries, alone


def test_one_bad_message_of_500_costs_at_most_twelve_more_tries() -> None:
    for bad in range(500):
        tries, alone = divide(500, {bad}, Bisection())
        assert alone == [bad]
        assert len(tries) <= 1 + 12


@pytest.mark.parametrize("count", [2, 3, 7, 64, 100, 501])
def test_one_costs_the_logarithm(count: int) -> None:
    worst = max(len(divide(count, {bad}, Bisection())[0]) for bad in range(count))
    assert worst <= 1 + math.log2(count) + 3


def test_each_bad_one_fails_alone_once_and_no_other() -> None:
    dice = random.Random(5)
    for _ in range(500):
        count = dice.randint(1, 60)
        bad = {number for number in range(count) if dice.random() < dice.random() / 2}
        bisection = Bisection()
        tries, alone = divide(count, bad, bisection)
        assert alone == (sorted(bad)[:OUTAGE] if bisection.outage else sorted(bad))
        assert len(tries) <= 1 + len(bad) * (math.log2(count) + 3)


def test_one_in_a_hundred_costs_a_tenth_of_the_tries_of_one_by_one() -> None:
    tries, alone = divide(500, {50, 150, 250, 350, 450}, Bisection())
    assert len(alone) == 5
    assert len(tries) <= 56


def test_where_everything_fails_few_are_tried() -> None:
    bisection = Bisection()
    tries, alone = divide(500, set(range(500)), bisection)
    assert bisection.outage
    assert alone == list(range(OUTAGE))
    assert len(tries) <= 2 * OUTAGE + 12


def test_what_the_handler_has_decided_is_no_outage() -> None:
    bisection = Bisection()
    for _ in range(3 * OUTAGE):
        bisection.failed_alone(by_its_own_word=True)
    assert not bisection.outage


def test_what_has_failed_before_is_tried_alone() -> None:
    bisection = Bisection(alone=True)
    tries, alone = divide(30, {3}, bisection)
    assert {len(tried) for tried in tries} == {1}
    assert alone == [3]
    for _ in range(2 * OUTAGE):
        bisection.failed_alone()
    assert not bisection.outage
