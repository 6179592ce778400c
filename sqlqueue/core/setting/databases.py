"""The databases that a topic is on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlqueue.core.databases import SEPARATOR
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX

MOST_DATABASES = 64
ALIAS_LENGTH = 30


def topic_databases(topic: object, given: Any, problems: list[str]) -> tuple[str, ...]:
    """Return the aliases of the databases that a topic names, in order; () if it names none."""
    name = f"TOPICS[{topic!r}]['databases']"
    if given is None:
        return ()
    if (
        not isinstance(given, (list, tuple))
        or not given
        or not all(isinstance(alias, str) and alias for alias in given)
    ):
        problems.append(f"{name} must be a list with aliases of DATABASES, not {given!r}")
        return ()
    if str(topic).endswith(DEAD_LETTER_SUFFIX):
        problems.append(f"{name} cannot be: dead letters are where their topic's messages are")
    for alias in given:
        if len(alias) > ALIAS_LENGTH or SEPARATOR in alias:
            problems.append(f"{name} names {alias!r}: an alias has up to {ALIAS_LENGTH} characters, and no commas")
    if len(set(given)) != len(given):
        problems.append(f"{name} names a database twice: {given!r}")
    return tuple(sorted(given))


def all_databases(database: object, named: Iterable[str], problems: list[str]) -> tuple[str, ...]:
    """Return the aliases of all databases that have a log: DATABASE's first, then those that topics name."""
    others = sorted({*named} - {database})
    if len(others) >= MOST_DATABASES:
        problems.append(f"TOPICS names {len(others)} databases beside DATABASE; {MOST_DATABASES} are the most in all")
    return (str(database), *others)
