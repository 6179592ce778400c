"""Checks of numbers and durations that a user gives: finite, and within bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlqueue.exceptions import ConfigurationError

SHORTEST = 0.001  # seconds; what repeats at a shorter interval would do nothing else
DAY = 86_400.0
WEEK = 7 * DAY
CENTURY = 100 * 365 * DAY  # within the range of every database's times
MOST_ATTEMPTS = 1_000_000  # that an operator may set for a delivery
LEAST_RATE, MOST_RATE = 0.01, 1_000_000  # a second, of an operator request


def duration(value: Any, name: str, problems: list[str], least: float, most: float) -> float | None:
    """Return seconds; note a problem, and return None, if it is no duration between the two."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not least <= number <= most:
        problems.append(f"{name} must be seconds (a number or a timedelta) from {least:g} to {most:.0f}, not {value!r}")
        return None
    return float(number)


def whole(value: Any, name: str, problems: list[str], most: int, least: int = 1) -> Any:
    """Return the value; note a problem if it is no whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        problems.append(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def checked_whole(value: Any, name: str, most: int, least: int = 0) -> int:
    """Return a whole number; raise ConfigurationError if it is none from `least` to `most`."""
    problems: list[str] = []
    whole(value, name, problems, most, least)
    if problems:
        raise ConfigurationError(problems[0])
    return int(value)


def checked_rate(rate: float | None) -> float | None:
    """Return the rate in messages a second; raise ConfigurationError if it is out of bounds."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not LEAST_RATE <= rate <= MOST_RATE:
        raise ConfigurationError(
            f"the rate must be messages a second, from {LEAST_RATE:g} to {MOST_RATE:,}, not {rate!r};"
            " without one they go as fast as they can"
        )
    return float(rate)
