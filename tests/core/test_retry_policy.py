"""Which failures are retried, and a project's own wait before a retry."""

import asyncio
import functools
import logging
import re
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue import Postpone, Reject, Retry
from sqlqueue.core.outcomes import DEAD, POSTPONED, RETRIED, VisibilityTimeout, decide
from sqlqueue.core.retry_policy import Backoff, RetryFilter, checked_filter, checked_function
from sqlqueue.exceptions import LONGEST_DELAY, BrokenTransaction, LeaseLost
from tests.core.test_logfmt import facts

pytestmark = pytest.mark.once

BACKOFF = Backoff(jitter=0.0)
ONLY = RetryFilter(retry_for=(OSError,))
NONE_OF = RetryFilter(reject_for=(ValueError,))
BOTH = RetryFilter(retry_for=(OSError,), reject_for=(ConnectionError,))


@pytest.mark.parametrize(
    ("retried", "error", "kind"),
    [
        (ONLY, OSError(), RETRIED),
        (ONLY, TimeoutError(), RETRIED),
        (ONLY, ValueError(), DEAD),
        (ONLY, LeaseLost(), DEAD),
        (NONE_OF, ValueError(), DEAD),
        (NONE_OF, UnicodeError(), DEAD),
        (NONE_OF, OSError(), RETRIED),
        (BOTH, ConnectionResetError(), DEAD),
        (BOTH, FileNotFoundError(), RETRIED),
        (BOTH, ValueError(), DEAD),
        (RetryFilter(reject_for=(BaseException,)), SystemExit(), DEAD),
        (RetryFilter(reject_for=(Exception,)), BrokenTransaction("swallowed"), DEAD),
        # What says itself what becomes of it, and what is no failure of the handler's.
        (ONLY, Retry(), RETRIED),
        (ONLY, Postpone(delay=1), POSTPONED),
        (ONLY, Reject("no"), DEAD),
        (ONLY, VisibilityTimeout(), RETRIED),
        (ONLY, BrokenTransaction("swallowed"), RETRIED),
        (ONLY, SystemExit(), RETRIED),
        (ONLY, asyncio.CancelledError(), RETRIED),
        (RetryFilter(reject_for=(Exception,)), Retry(), RETRIED),
        (RetryFilter(reject_for=(Exception,)), Postpone(delay=1), POSTPONED),
        (RetryFilter(reject_for=(Exception,)), VisibilityTimeout(), RETRIED),
    ],
)
def test_which_are_retried(retried: RetryFilter, error: BaseException, kind: str) -> None:
    assert decide(error, 1, 3, BACKOFF, retried).kind == kind


def test_without_a_bound_every_failure_is_retried() -> None:
    for error in (ValueError("no"), Retry(), VisibilityTimeout()):
        assert decide(error, 10**6, None, BACKOFF).kind == RETRIED
    assert decide(Reject("no"), 1, None, BACKOFF).kind == DEAD
    assert decide(ValueError("no"), 1, None, BACKOFF, NONE_OF).kind == DEAD


def function(wait: Any) -> Any:
    problems: list[str] = []
    made = checked_function(wait, problems)
    assert not problems
    return made


class Called:
    def __call__(self, attempt: int, error: BaseException) -> float:
        return 7.0 if isinstance(error, OSError) else 8.0


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        (lambda attempt: attempt * 10, 20.0),
        (lambda attempt: timedelta(minutes=attempt), 120.0),
        (lambda attempt: 0, 0.0),
        (lambda attempt, error: 5.0 if isinstance(error, OSError) else 6.0, 5.0),
        (lambda attempt, *, error=None: 5.0 if isinstance(error, OSError) else 6.0, 5.0),
        (lambda attempt, base=3: base**attempt, 9.0),
        (lambda *attempts: sum(attempts), 2.0),
        (lambda attempt, **others: len(others), 0.0),
        (lambda error: error * 4, 8.0),  # the first is the attempt, whatever its name is
        (functools.partial(lambda base, attempt: base * attempt, 50), 100.0),
        (Called(), 7.0),
        (lambda attempt: LONGEST_DELAY, LONGEST_DELAY),
    ],
)
def test_a_function_says_how_long(wait: Any, seconds: float) -> None:
    assert function(wait).wait(2, TimeoutError()) == (seconds, "")


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def broken(attempt: int) -> float:
    raise LookupError("no such attempt")


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (lambda attempt: None, "at least 0, not None"),
        (lambda attempt: -1, "at least 0, not -1"),
        (lambda attempt: timedelta(-1), "at least 0, not datetime.timedelta"),
        (lambda attempt: float("nan"), "at least 0, not nan"),
        (lambda attempt: True, "at least 0, not True"),
        (lambda attempt: "60", "at least 0, not '60'"),
        (lambda attempt: Mute(), "a Mute, which cannot be described"),
        (lambda attempt: "x" * 1000, "xxx…"),
        (broken, r"it raised LookupError\('no such attempt'\)"),
    ],
)
def test_what_is_no_wait_is_told_and_the_default_backoff_goes_on(
    wait: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = decide(ValueError("the failure"), 3, None, function(wait))
    assert outcome.kind == RETRIED
    assert 4 * 0.67 <= outcome.delay <= 4 * 1.33
    assert outcome.error.endswith("ValueError: the failure")
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    told = facts(record.getMessage())
    assert (told["event"], told["attempt"]) == ("backoff_failed", "3")
    for text in (told["problem"], outcome.error):
        assert re.search(said, text), text


@pytest.mark.parametrize("value", [LONGEST_DELAY + 1, float("inf"), timedelta.max, 10**400])
def test_no_wait_is_longer_than_the_longest_delay(value: Any) -> None:
    wait = function(lambda attempt: value).wait(1, ValueError())
    assert wait.seconds == LONGEST_DELAY
    assert "longer than ten years" in wait.problem


def test_a_retry_with_a_delay_of_its_own_asks_no_function() -> None:
    assert decide(Retry(delay=9), 1, None, function(broken)).delay == 9.0
    of_a_retry = function(lambda attempt, error: 4 if isinstance(error, Retry) else 1)
    assert decide(Retry(), 1, None, of_a_retry).delay == 4.0


async def promised(attempt: int) -> float:
    return 1.0


def generated(attempt: int) -> Any:
    yield 1.0


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (lambda: 1, "backoff cannot be called as wait"),
        (lambda first, second: 1, r"write def wait\(attempt\) or def wait\(attempt, error\)"),
        (lambda *, attempt: 1, "backoff cannot be called"),
        (promised, "backoff promised must be a plain function"),
        (generated, "backoff generated must be a plain function"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(wait: Any, said: str) -> None:
    problems: list[str] = []
    checked_function(wait, problems)
    assert re.search(said, "; ".join(problems)), problems


def test_a_class_alone_and_several_are_taken() -> None:
    problems: list[str] = []
    assert checked_filter(OSError, [ValueError, KeyError], problems) == RetryFilter((OSError,), (ValueError, KeyError))
    assert checked_filter(None, (), problems) == checked_filter(None, None, problems) == RetryFilter()
    assert not problems


@pytest.mark.parametrize(
    ("retry_for", "reject_for", "said"),
    [
        ((), (), "retry_for is empty, so that no failure would be retried"),
        ("OSError", (), "retry_for must be exception classes, not 'OSError'"),
        (None, (int,), "reject_for must be exception classes, not <class 'int'>"),
        (None, (ValueError("x"),), "name its class, ValueError"),
        ((Retry,), (), "retry_for cannot name Retry: it says itself"),
        (None, (Postpone,), "reject_for cannot name Postpone"),
        ((TimeoutError,), (OSError,), "retry_for names TimeoutError, which reject_for=OSError rejects"),
        ((OSError,), (OSError,), "retry_for names OSError, which reject_for=OSError rejects"),
    ],
)
def test_classes_that_cannot_be_are_refused(retry_for: Any, reject_for: Any, said: str) -> None:
    problems: list[str] = []
    checked_filter(retry_for, reject_for, problems)
    assert any(said in problem for problem in problems), problems


class Unprintable:
    def __repr__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, None])
def test_a_function_that_would_end_the_process_gives_the_default_wait(ending: type[BaseException] | None) -> None:
    def wait(attempt: int) -> Any:
        if ending is not None:
            raise ending("out")
        return Unprintable()

    function = checked_function(wait, [])
    seconds, problem = function.wait(1, ValueError())
    assert 0 < seconds < 2
    assert "wait" in problem
