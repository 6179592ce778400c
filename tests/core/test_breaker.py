"""The circuit breaker of a group: what opens it, when a message is tried, and what closes it."""

from datetime import datetime, timedelta, timezone

import pytest

from sqlqueue.core.fair_shares import Breaker

pytestmark = pytest.mark.once
START = datetime(2026, 11, 23, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_more_failures_than_the_budget_within_its_time_open_it() -> None:
    breaker = Breaker().counted(3, 5, 60, 3, at(0)).counted(2, 5, 60, 3, at(59))
    assert breaker.opened_at is None
    breaker = breaker.counted(1, 5, 60, 3, at(59))
    assert breaker.opened_at == at(59)
    assert not breaker.admits(60, 3, at(68))
    assert breaker.admits(60, 3, at(69))
    assert breaker.admits(60, 3, at(-86_400))  # the clock was set back


def test_failures_of_another_time_do_not_count() -> None:
    breaker = Breaker().counted(5, 5, 60, 3, at(0)).counted(5, 5, 60, 3, at(60))
    assert breaker == Breaker(5, at(60))
    assert breaker.counted(5, 5, 60, 3, at(-10)).opened_at is None  # the clock was set back


@pytest.mark.parametrize(
    ("seconds", "least", "wait"), [(60, 3, 10), (1, 3, 3), (3_600, 3, 60), (86_400, 3, 60), (60, 30, 30)]
)
def test_a_trial_waits_for_a_part_of_the_time_within_bounds(seconds: float, least: float, wait: float) -> None:
    assert Breaker().counted(2, 1, seconds, least, at(0)).trial_at == at(wait)


def test_a_trial_that_fails_delays_the_next_and_one_that_succeeds_closes_it() -> None:
    opened = Breaker().counted(2, 1, 60, 3, at(0))
    failed = opened.tried(False, 60, 3, at(12))
    assert (failed.opened_at, failed.trial_at) == (at(0), at(22))
    assert failed.counted(9, 1, 60, 3, at(13)) == failed  # what was dispatched before
    assert failed.tried(True, 60, 3, at(23)) == Breaker()
