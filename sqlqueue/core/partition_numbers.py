"""Sets of partition numbers, as text such as `0-15,20`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from sqlqueue.core.settings import MOST_PARTITIONS

TEXT_LENGTH = 200  # characters
RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

Numbers = frozenset[int]


def read_numbers(text: str) -> Numbers:
    """Return the numbers that a text names. Raises ValueError, with what is wrong."""
    found: set[int] = set()
    for part in text.split(","):
        match = RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text[:40]!r} names no partitions: write numbers and ranges, such as 0-15 or 0-3,8")
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high:
            raise ValueError(f"{part.strip()!r} is no range: the first number is the lower one")
        if high >= MOST_PARTITIONS:
            raise ValueError(f"{high} is no partition: a topic has at most {MOST_PARTITIONS:,}")
        found.update(range(low, high + 1))
    if len(numbers_text(found)) > TEXT_LENGTH:
        raise ValueError(f"{text[:40]!r} has too many ranges: as text they have more than {TEXT_LENGTH} characters")
    return frozenset(found)


def numbers_text(numbers: Collection[int] | None) -> str:
    """Return numbers as text, "" for None: all."""
    parts: list[str] = []
    first = last = -2
    for number in sorted(numbers or ()):
        if number == last + 1:
            parts[-1] = f"{first}-{number}"
        else:
            first = number
            parts.append(str(number))
        last = number
    return ",".join(parts)


def stored_numbers(text: str) -> Numbers | None:
    """Return the numbers of a stored text; None for all of them, also for a text that a later version has written."""
    try:
        return read_numbers(text) if text else None
    except ValueError:
        return None


def parts_by_subscribers(
    partitions: int, subscribers: Mapping[str, Numbers | None], numbered: Mapping[int, int] | None = None
) -> list[tuple[Numbers | None, Sequence[str]]]:
    """Return which partitions are shared by which subscribers, in their order: those that serve them. A part None is
    all partitions, if every subscriber serves all of them. numbered: the partitions, with the numbers by which
    subscribers name them; None: 0 … partitions - 1."""
    names = sorted(subscribers)
    if all(numbers is None for numbers in subscribers.values()):
        return [(None, names)]
    parts: dict[tuple[str, ...], set[int]] = {}
    for number, within in zip(range(partitions), range(partitions)) if numbered is None else numbered.items():
        serving = tuple(name for name in names if (numbers := subscribers[name]) is None or within in numbers)
        parts.setdefault(serving, set()).add(number)
    return [(frozenset(numbers), serving) for serving, numbers in parts.items()]
