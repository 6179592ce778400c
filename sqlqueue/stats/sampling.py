"""Bounds what the statements of a survey read, and puts many of them into one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlqueue.database.log import Log

T = TypeVar("T")

SAMPLE = 200  # messages counted at the beginning of a backlog, or of a window over it
EXACT = 100_000  # messages that are counted of each group; beyond that a survey estimates
EXACT_OF_ALL = 1_000_000  # messages that are counted of all groups together: each has the same share
WINDOWS, LEAST_WINDOWS = 400, 20  # over all that is estimated, and over each of many groups
PARTS, ROUNDS = 4, 5  # into which a window of which too much was not seen is divided, and how often that is done
PROBED, MOST_PROBED = 2, 10  # times SAMPLE: how many messages a probe of the rest is to have, and may have
CLOSE = 0.05  # of what was seen: how much may be unseen
MOST_ROWS = 10_000  # to which delivery states and ranges of a group, dead letters of a topic, scheduled messages count
AT_ONCE = 240  # SELECTs in one statement; SQLite takes 500


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items, at most AT_ONCE of them at a time."""
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]


def each(log: Log, text: str, items: Mapping[T, Sequence[object]]) -> Iterator[tuple[T, Sequence[Any]]]:
    """Run a SELECT for each item, up to AT_ONCE of them in one statement; yield an item with each row.

    text: selects a number of its own first, which is not yielded. items: the other values of each item's SELECT.
    """
    branch = log.dialect.branch.format(text.strip())
    for some in chunks(list(items)):
        values = [value for number, item in enumerate(some) for value in (number, *items[item])]
        for number, *row in log.execute(" UNION ALL ".join([branch] * len(some)), values).fetchall():
            yield some[number], row
