"""What a user may give: checks of numbers and durations, and options of a setting. A dataclass's field says an option's
default and what it may be, and one reader reads all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from datetime import timedelta, timezone, tzinfo
from functools import partial
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from sqlqueue.core.keys import did_you_mean
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


def time_zone(name: Any) -> tzinfo:
    """Return a time zone by its name; raise ConfigurationError if it is not known."""
    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        raise ConfigurationError(
            f"time zone {name!r} is not known: use a name such as 'Europe/Berlin' (without the system's time zones, "
            "the package tzdata has them)"
        ) from None


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


T = TypeVar("T")


def option(default: Any, check: Callable[[Any, str, list[str]], Any], none: bool = False, secret: bool = False) -> Any:
    """Return a field.

    check: called with the value, the option's name as a user writes it, and a list; returns the value to use, or adds
        to the list what is wrong
    none: None is allowed, too
    secret: nothing shows the value
    """
    return field(default=default, repr=not secret, metadata={"check": check, "none": none})


def seconds(default: float | None, least: float = 0.0, most: float = CENTURY, none: bool = False) -> Any:
    """Return the field of a duration: a number of seconds, or a timedelta."""
    return option(default, partial(duration, least=least, most=most), none)


def number(default: int | None, most: int, least: int = 1, none: bool = False) -> Any:
    """Return the field of a whole number."""
    return option(default, partial(whole, most=most, least=least), none)


def flag(default: bool) -> Any:
    """Return the field of a switch."""
    return option(default, _flag)


def one_of(default: str, choices: tuple[str, ...]) -> Any:
    """Return the field of one of some words."""
    return option(default, partial(_one_of, choices=choices))


def text(default: str | None, pattern: str, what: str, none: bool = False, secret: bool = False) -> Any:
    """Return the field of a string. pattern: a regular expression for all of it, what: the same in words."""
    return option(default, partial(_text, pattern=pattern, what=what, secret=secret), none, secret)


def mapping(what: str) -> Any:
    """Return the field of a dict whose entries another reader reads. what: its entries, in words."""
    return option(None, partial(checked_mapping, what=what))


def checked_mapping(value: Any, name: str, problems: list[str], what: str) -> Mapping[Any, Any]:
    """Return a dict, an empty one in place of anything else, which is noted."""
    if isinstance(value, Mapping):
        return value
    problems.append(f"{name} must be a dict{what}, not {value!r}")
    return {}


def read_options(kind: type[T], given: Any, name: str, problems: list[str], **defaults: Any) -> T:
    """Return an instance of a dataclass of options, with the default of what is not given or cannot be.

    name: of the dict that is given, as a user writes it; "" for the whole setting
    problems: gets a text for each option that is unknown or cannot be
    defaults: other defaults than the dataclass has
    """
    known = {one.name: one.metadata for one in fields(kind)}  # type: ignore[arg-type]
    values = dict(defaults)
    for key, value in checked_mapping(given, name or "SQLQUEUE", problems, "").items():
        path = f"{name}[{key!r}]" if name else key
        if key not in known:
            problems.append(f"{name or 'SQLQUEUE'} has no option {key!r}.{did_you_mean(str(key), known)}")
        elif value is None and known[key]["none"]:
            values[key] = None
        else:
            wrong: list[str] = []
            checked = known[key]["check"](value, path, wrong)
            if not wrong:
                values[key] = checked
            problems += wrong
    return kind(**values)


def _flag(value: Any, name: str, problems: list[str]) -> Any:
    if not isinstance(value, bool):
        problems.append(f"{name} must be True or False, not {value!r}")
    return value


def _one_of(value: Any, name: str, problems: list[str], choices: tuple[str, ...]) -> Any:
    if not isinstance(value, str) or value not in choices:
        problems.append(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def _text(value: Any, name: str, problems: list[str], pattern: str, what: str, secret: bool) -> Any:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        problems.append(f"{name} must be a string{what}" + ("" if secret else f", not {value!r}"))
    return value
