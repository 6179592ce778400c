"""Which failures are retried, and how long a failed message waits."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from random import random
from typing import Any, Final, NamedTuple

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.not_run import is_async, is_generator
from sqlqueue.exceptions import LONGEST_DELAY, BrokenTransaction, Settlement

logger = logging.getLogger("sqlqueue")

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


class Wait(NamedTuple):
    """Seconds until the next attempt; problem: what was wrong with a function that should have said so, or ""."""

    seconds: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: `first` seconds, doubling, spread by ±`jitter` of itself, and never more than `longest`.

    What has doubled up to the bound is spread below it, so that not all of it comes due together.

    The defaults are those of Vitess messaging: doubling, bounded, 33 % of jitter against thundering herds.
    """

    first: float = 1.0
    longest: float = 3600.0
    jitter: float = 0.33

    def delay(self, attempt: int, chance: Callable[[], float] = random) -> float:
        """Return the seconds to wait after the given attempt (1 is the first)."""
        doublings = min(max(attempt, 1) - 1, 60)  # 2 ** 60 seconds is past every bound; more would only overflow
        plain = min(self.first * 2.0**doublings, self.longest / (1 + self.jitter))
        return plain * (1 + self.jitter * (2 * chance() - 1))

    def wait(self, attempt: int, error: BaseException) -> Wait:
        """Return the wait after the given attempt (1 is the first)."""
        return Wait(self.delay(attempt))


FALLBACK: Final = Backoff()  # the wait where a function gives none


@dataclass(frozen=True, slots=True)
class BackoffFunction:
    """A project's `backoff(attempt)` or `backoff(attempt, error)`: it returns seconds or a timedelta."""

    function: Callable[..., Any]
    takes_error: bool

    def wait(self, attempt: int, error: BaseException) -> Wait:
        """Return the wait after the given attempt (1 is the first), at most LONGEST_DELAY. Where the function raises,
        or returns no duration, it is the default backoff's, and the problem is logged."""
        try:
            value = self.function(attempt, error=error) if self.takes_error else self.function(attempt)
            number = value.total_seconds() if isinstance(value, timedelta) else value
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0:
                wanted = "seconds (a number or a timedelta) of at least 0"
                wait = Wait(FALLBACK.delay(attempt), f"it must return {wanted}, not {_described(value)}")
            elif number > LONGEST_DELAY:
                wait = Wait(LONGEST_DELAY, f"it returned {_described(value)}, which is longer than ten years")
            else:
                return Wait(float(number))
        except BaseException as failure:  # SystemExit, too, must neither leave the attempt open nor end the process
            wait = Wait(FALLBACK.delay(attempt), f"it raised {_described(failure)}")
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        problem = f"backoff {name}(attempt={attempt}): {wait.problem}; the wait is {wait.seconds:.1f} s"
        logger.error(logfmt("backoff_failed", function=name, attempt=attempt, problem=problem))
        return Wait(wait.seconds, problem)


def _described(value: object) -> str:
    try:
        text = repr(value)
    except BaseException:  # a project's object
        return f"a {type(value).__qualname__}, which cannot be described"
    return text if len(text) <= 200 else text[:200] + "…"


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
    takes_error = False
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C, it has no signature
        return BackoffFunction(function, False)
    parameter = signature.parameters.get("error")
    if parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        takes_error = next(iter(signature.parameters)) != "error"
    try:
        signature.bind(1, **({"error": None} if takes_error else {}))
    except TypeError:
        problems.append(
            f"backoff cannot be called as {_name(function)}(attempt): write def {_name(function)}(attempt) or "
            f"def {_name(function)}(attempt, error), which returns seconds or a timedelta"
        )
    if is_async(function) or is_generator(function):
        problems.append(f"backoff {_name(function)} must be a plain function, which returns seconds or a timedelta")
    return BackoffFunction(function, takes_error)


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return name if name.isidentifier() else "wait"
