"""Bounds what the statements of a survey read, and estimates what lies beyond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

SAMPLE = 200  # messages counted at either end of a backlog
MOST_ROWS = 10_000  # to which delivery states and ranges of a group, dead letters of a topic, scheduled messages count
PARTITIONS_AT_ONCE = 240
TABLES_AT_ONCE = 120


def estimate(head: tuple[int, int, int], tail: tuple[int, int, int], sample: int = SAMPLE) -> tuple[int, bool]:
    """Return how many messages there are, and whether that is an estimate. head, tail: of the first and of the last
    `sample` messages, how many there are, and the first and the last offset."""
    count, head_first, head_last = head
    tail_count, tail_first, last = tail
    if count < sample:
        return count, False
    density = (count + tail_count) / ((head_last - head_first + 1) + (last - tail_first + 1))
    between = round(density * (tail_first - head_last - 1))  # less than 0 if they overlap: those are counted twice
    return max(count, count + tail_count + between), True


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items, at most `size` of them at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
