"""Options of a setting: a dataclass's field says an option's default and what it may be, and one reader reads all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from typing import Any, TypeVar

from sqlqueue.core import bounds
from sqlqueue.core.bounds import CENTURY
from sqlqueue.core.keys import did_you_mean

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
    return option(default, partial(bounds.duration, least=least, most=most), none)


def whole(default: int | None, most: int, least: int = 1, none: bool = False) -> Any:
    """Return the field of a whole number."""
    return option(default, partial(bounds.whole, most=most, least=least), none)


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
