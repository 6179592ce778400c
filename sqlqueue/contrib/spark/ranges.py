"""Division of a range of offsets among tasks by the number of rows, whatever the gaps between them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

ROWS_OF_ONE_QUERY = 50_000
ROWS_WORTH_PARTING = 500
BUCKETS = 1_024

# Counts the rows of [low, high] by (offset - low) // width.
Count = Callable[[int, int, int], Mapping[int, int]]


class CountedRange(NamedTuple):
    """Offsets from `low` to `high`, both included, and how many rows have them."""

    low: int
    high: int
    rows: int


def measure(count: Count, low: int, high: int, tasks: int = 1, most: int | None = None) -> Iterator[CountedRange]:
    """Yield the ascending ranges that hold the rows with offsets from `low` to `high`, each with at most `most` rows
    (default: an eighth of a task's share).

    It counts once if the rows are spread somewhat evenly, and once more for each bucket that holds too many.
    """
    if high < low:
        return
    span = high - low + 1
    width = -(-span // max(BUCKETS, min(span // ROWS_OF_ONE_QUERY, 100_000)))
    buckets = count(low, high, width)
    if most is None:
        most = min(ROWS_OF_ONE_QUERY, max(ROWS_WORTH_PARTING, sum(buckets.values()) // (8 * tasks)))
    for bucket, rows in sorted(buckets.items()):
        first = low + bucket * width
        last = min(high, first + width - 1)
        if rows > most and width > 1:
            yield from measure(count, first, last, tasks, most)
        elif rows:
            yield CountedRange(first, last, rows)


def share(ranges: Sequence[CountedRange], parts: int, most: int = ROWS_OF_ONE_QUERY) -> list[list[CountedRange]]:
    """Divide ranges among at most `parts` tasks, in order, with about the same number of rows for each.

    Successive ranges of a task are joined, whatever the gap between them, up to `most` rows.
    """
    total = sum(found.rows for found in ranges)
    shares: list[list[CountedRange]] = [[]]
    given = 0
    for found in ranges:
        if shares[-1] and given + found.rows / 2 > total * len(shares) / parts:
            shares.append([])
        given += found.rows
        before = shares[-1][-1] if shares[-1] else None
        if before and before.rows + found.rows <= most:
            shares[-1][-1] = CountedRange(before.low, found.high, before.rows + found.rows)
        else:
            shares[-1].append(found)
    return [some for some in shares if some]


def end_of(count: Count, low: int, high: int, rows: int) -> int:
    """Return an offset such that about `rows` rows, not more but at least one, lie from `low` up to it; `high` if there
    are fewer. It counts no further than that."""
    span = max(rows, 1)
    while True:
        last, taken = min(high, low + span - 1), 0
        for found in measure(count, low, last, most=max(1, rows // 8)):
            if taken + found.rows > rows:
                return found.low - 1
            taken += found.rows
        if last == high or taken == rows:
            return last
        span *= 4
