"""What becomes of a delivery."""

import pytest

from sqlqueue import Postpone, Reject, Retry
from sqlqueue.core.outcomes import (
    ACKED,
    DEAD,
    ERROR_LENGTH,
    POSTPONED,
    RETRIED,
    VisibilityTimeout,
    decide,
)
from sqlqueue.core.retry_policy import Backoff
from sqlqueue.exceptions import LeaseLost

pytestmark = pytest.mark.once

BACKOFF = Backoff(jitter=0.0)


@pytest.mark.parametrize(
    ("error", "attempt", "kind", "delay"),
    [
        (None, 1, ACKED, 0.0),
        (None, 99, ACKED, 0.0),
        (Retry(), 1, RETRIED, 1.0),
        (Retry(delay=7), 2, RETRIED, 7.0),
        (Retry(delay=0), 2, RETRIED, 0.0),
        (Retry(delay=7), 3, DEAD, 0.0),
        (ValueError("x"), 2, RETRIED, 2.0),
        (ValueError("x"), 3, DEAD, 0.0),
        (VisibilityTimeout("late"), 1, RETRIED, 1.0),
        (VisibilityTimeout("late"), 4, DEAD, 0.0),
        (Postpone(delay=9), 99, POSTPONED, 9.0),
        (Reject("no"), 1, DEAD, 0.0),
        (SystemExit(1), 1, RETRIED, 1.0),
        (LeaseLost(), 2, RETRIED, 2.0),
        (LeaseLost(), 3, DEAD, 0.0),
    ],
)
def test_decisions(error: BaseException | None, attempt: int, kind: str, delay: float) -> None:
    outcome = decide(error, attempt, 3, BACKOFF)
    assert (outcome.kind, outcome.delay) == (kind, delay)


def test_the_reason_is_told() -> None:
    assert decide(Reject("unknown aircraft"), 1, 3, BACKOFF).error == "unknown aircraft"
    assert decide(Reject(), 1, 3, BACKOFF).error == "rejected"
    assert decide(Retry("busy"), 1, 3, BACKOFF).error == "busy"
    assert "ValueError: x" in decide(ValueError("x"), 3, 3, BACKOFF).error


def test_the_end_of_a_long_traceback_is_kept() -> None:
    text = decide(ValueError("y" * 2 * ERROR_LENGTH + "the end"), 1, 3, BACKOFF).error
    assert len(text) <= ERROR_LENGTH + 2
    assert text.endswith("the end")
