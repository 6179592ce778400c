"""Which failures are retried, and the wait before a retry as a function of the project's own."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlqueue.core.backoff import Backoff
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.not_run import is_async, is_generator
from sqlqueue.exceptions import LONGEST_DELAY, BrokenTransaction, Settlement

logger = logging.getLogger("sqlqueue")

FALLBACK: Final = Backoff()  # the wait where a function gives none

Classes = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class RetryFilter:
    """Which exceptions of a handler are retried. reject_for: those that are not; retry_for: the only ones that are
    (None: all). Subclasses count, and reject_for wins."""

    retry_for: Classes | None = None
    reject_for: Classes = ()

    def rejects(self, error: BaseException) -> bool:
        """Tell whether the message of a handler that raised this is not to be delivered again.

        retry_for is about a handler's failures: neither about what ends a process or a task (SystemExit,
        CancelledError) nor about a transaction that was broken under the handler.
        """
        if isinstance(error, self.reject_for):
            return True
        if self.retry_for is None or not isinstance(error, Exception) or isinstance(error, BrokenTransaction):
            return False
        return not isinstance(error, self.retry_for)


ALL: Final = RetryFilter()  # every exception is retried


@dataclass(frozen=True, slots=True)
class BackoffFunction:
    """A project's `backoff(attempt, error)`: it returns seconds or a timedelta."""

    function: Callable[[int, BaseException], Any]

    def delay(self, attempt: int, error: BaseException) -> float:
        """Return the seconds to wait after the given attempt (1 is the first), at most LONGEST_DELAY. Where the
        function raises, or returns no duration, they are the default backoff's, and the problem is logged."""
        try:
            value = self.function(attempt, error)
            number = value.total_seconds() if isinstance(value, timedelta) else value
            if not isinstance(number, bool) and isinstance(number, (int, float)) and 0 <= number <= LONGEST_DELAY:
                return float(number)
            problem = f"it must return seconds (a number or a timedelta) from 0 to ten years, not {_described(value)}"
            too_long = isinstance(number, (int, float)) and number > LONGEST_DELAY
        except BaseException as failure:  # SystemExit, too, must neither leave the attempt open nor end the process
            problem, too_long = f"it raised {_described(failure)}", False
        wait = LONGEST_DELAY if too_long else FALLBACK.delay(attempt)
        logger.error(logfmt("backoff_failed", function=_name(self.function), attempt=attempt, problem=problem))
        return wait


def _described(value: object) -> str:
    try:
        text = repr(value)
    except BaseException:  # a project's object
        return f"a {type(value).__qualname__}, which cannot be described"
    return text if len(text) <= 200 else text[:200] + "…"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def wait_before_retry(backoff: Backoff | BackoffFunction, attempt: int, error: BaseException) -> float:
    """Return the seconds to wait after a failed attempt."""
    return backoff.delay(attempt, error) if isinstance(backoff, BackoffFunction) else backoff.delay(attempt)


# -- as `@consumer` takes them ----------------------------------------------------------------------------------------


def checked_filter(retry_for: Any, reject_for: Any, problems: list[str]) -> RetryFilter:
    """Return the filter of two options: None, an exception class, or several; note what is wrong with them."""
    retried, rejected = _classes(retry_for, "retry_for", problems), _classes(reject_for, "reject_for", problems)
    if retried == ():
        problems.append(
            "retry_for is empty, so that no failure would be retried: name exception classes, or use max_attempts=1"
        )
    for one in retried or ():
        if above := next((each for each in rejected or () if issubclass(one, each)), None):
            problems.append(
                f"retry_for names {one.__qualname__}, which reject_for={above.__qualname__} rejects: reject_for wins, "
                "so name it in one of them only"
            )
    return RetryFilter(retried, rejected or ())


def _classes(value: Any, name: str, problems: list[str]) -> Classes | None:
    if value is None:
        return None
    classes = tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            hint = f": name its class, {type(one).__qualname__}" if isinstance(one, BaseException) else ""
            problems.append(f"{name} must be exception classes, not {_described(one)}{hint}")
            return None
        if issubclass(one, Settlement):
            problems.append(f"{name} cannot name {one.__qualname__}: it says itself what becomes of its delivery")
            return None
    return classes


def checked_function(function: Callable[..., Any], problems: list[str]) -> BackoffFunction:
    """Return a function that is the option `backoff`; note what is wrong with it."""
    try:
        inspect.signature(function).bind(1, None)
    except TypeError:
        problems.append(
            f"backoff {_name(function)} cannot be called with two arguments: write def wait(attempt, error), which "
            "returns seconds or a timedelta"
        )
    except ValueError:  # written in C, it has no signature
        pass
    if is_async(function) or is_generator(function):
        problems.append(f"backoff {_name(function)} must be a plain function, which returns seconds or a timedelta")
    return BackoffFunction(function)
