"""Exponential backoff: doubling, bounded, spread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.core.retry_policy import Backoff

pytestmark = pytest.mark.once

SECONDS = st.floats(0.001, 10_000)


def test_the_defaults_double_from_a_second_to_an_hour() -> None:
    delays = [Backoff().delay(attempt, lambda: 0.5) for attempt in (1, 2, 3, 12, 13, 100)]
    assert delays == [1.0, 2.0, 4.0, 2048.0, 3600 / 1.33, 3600 / 1.33]
    assert Backoff().delay(100, lambda: 1.0) == pytest.approx(3600)


@given(st.integers(-5, 10_000), SECONDS, SECONDS, st.floats(0, 1), st.floats(0, 1))
def test_a_delay_lies_within_its_jitter_and_never_above_the_longest(
    attempt: int, first: float, longest: float, jitter: float, chance: float
) -> None:
    delay = Backoff(first, longest, jitter).delay(attempt, lambda: chance)
    plain = Backoff(first, longest / (1 + jitter), 0.0).delay(attempt)
    assert plain * (1 - jitter) - 1e-9 <= delay <= plain * (1 + jitter) + 1e-9
    assert delay <= longest + 1e-9


@given(st.integers(1, 100), SECONDS, SECONDS)
def test_without_jitter_a_delay_never_falls(attempt: int, first: float, longest: float) -> None:
    backoff = Backoff(first, longest, 0.0)
    assert backoff.delay(attempt) <= backoff.delay(attempt + 1)
