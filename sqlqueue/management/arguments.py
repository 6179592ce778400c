"""Numbers and texts on the command line, checked where they are read."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from math import nan
from typing import Any, Literal

from django.core.management.base import CommandError

from sqlqueue.core.bounds import CENTURY
from sqlqueue.core.new_message import KEY
from sqlqueue.core.settings import MOST_PARTITIONS
from sqlqueue.exceptions import LONGEST_DELAY, SHORTEST_LIFE

HIGHEST_OFFSET = 2**63 - 1  # what the columns hold
MOST_PROCESSES = 1_000
FOREVER = "forever"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SHOWN = 40  # characters of what is refused
SURROGATE = re.compile("[\ud800-\udfff]")
FILES = frozenset(("archive", "folder", "messages", "output", "paths"))  # their names are bytes


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a function for argparse that reads a whole number from `least` to `most`; it raises ArgumentTypeError."""
    return partial(_number, int, f"a whole number from {least} to {most}", least, most)


def decimal(least: float, most: float) -> Callable[[str], float]:
    """Return a function for argparse that reads a number from `least` to `most`; it raises ArgumentTypeError."""
    return partial(_number, float, f"a number from {least:g} to {most:,.0f}", least, most)


def _number(kind: Callable[[str], Any], what: str, least: float, most: float, text: str) -> Any:
    try:
        number = kind(text[:SHOWN])  # more digits are no number in bounds, and take long to read
    except ValueError:
        number = nan
    if not least <= number <= most:
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not {what}")
    return number


def retention(text: str) -> float | str:
    """Read a length of time with its unit (90s, 15m, 2h, 3d), in seconds, or FOREVER; raises ArgumentTypeError."""
    if text == FOREVER:
        return FOREVER
    try:
        seconds = float(text[:-1]) * UNITS[text[-1:]]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0 <= seconds <= CENTURY:
        raise ArgumentTypeError(
            f"{text[:SHOWN]!r} is not a number from 0 with a unit (90s, 15m, 2h, 3d), nor {FOREVER!r}"
        )
    return seconds


def unique_for(text: str) -> float | Literal["key", False]:
    """Read `key`, seconds, or `no` for not at all; raises ArgumentTypeError."""
    if text == KEY:
        return KEY
    return False if text == "no" else decimal(SHORTEST_LIFE, LONGEST_DELAY)(text)


def moment(text: str) -> datetime:
    """Read a time of ISO 8601 with its zone; raises ArgumentTypeError."""
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 knows no Z
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None:
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not a time with a zone, such as 2030-12-24T18:00:00+01:00")
    return at


def refuse_broken_texts(options: Mapping[str, object]) -> None:
    """Raise CommandError if an argument is not text in the terminal's encoding.

    Python keeps the bytes of such an argument as lone surrogates, which no database stores.
    """
    for name, value in options.items():
        for text in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(text, str) and name not in FILES and SURROGATE.search(text):
                raise CommandError(f"{text[:SHOWN]!r} is not text in UTF-8")


offset = whole(0, HIGHEST_OFFSET)
partition = whole(0, MOST_PARTITIONS - 1)
