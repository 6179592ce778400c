"""Ranges of offsets follow the rows that are there."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.contrib.spark.plan import end_of, measure, share

# Clusters of offsets with gaps of any size between them.
OFFSETS = st.lists(
    st.tuples(st.integers(1, 10**9), st.integers(1, 300)), min_size=1, max_size=6
).map(lambda clusters: sorted({low + step for low, rows in clusters for step in range(rows)}))  # fmt: skip


def counting(offsets: list[int]) -> Callable[[int, int, int], Mapping[int, int]]:
    return lambda low, high, width: Counter((offset - low) // width for offset in offsets if low <= offset <= high)


@given(OFFSETS, st.integers(1, 200))
def test_ranges_hold_every_row_once_and_not_too_many(offsets: list[int], most: int) -> None:
    found = list(measure(counting(offsets), 1, 2 * 10**9, most=most))
    assert sum(one.rows for one in found) == len(offsets)
    for one in found:
        assert one.rows == sum(one.low <= offset <= one.high for offset in offsets)
        assert one.rows <= most
    assert all(before.high < after.low for before, after in itertools.pairwise(found))


@given(OFFSETS, st.integers(1, 8))
def test_tasks_get_about_the_same_number_of_rows_whatever_the_gaps(offsets: list[int], parts: int) -> None:
    found = list(measure(counting(offsets), 1, 2 * 10**9, most=5))
    shares = share(found, parts, 50)
    assert 1 <= len(shares) <= parts
    assert sum(one.rows for some in shares for one in some) == len(offsets)
    fair = len(offsets) / parts
    assert max(sum(one.rows for one in some) for some in shares) <= fair + 5
    assert all(one.rows <= 50 for some in shares for one in some)


def test_what_is_crowded_behind_a_wide_gap_is_parted_too() -> None:
    offsets = [*range(1, 12_001), *range(10**12, 10**12 + 12_000)]
    shares = share(list(measure(counting(offsets), 1, offsets[-1], 4)), 4)
    assert [sum(one.rows for one in some) for some in shares] == pytest.approx([6_000] * 4, rel=0.15)


def test_nothing_is_no_tasks() -> None:
    assert share(list(measure(counting([]), 1, 0)), 4) == []
    assert share(list(measure(counting([]), 1, 100)), 4) == []


@given(OFFSETS, st.integers(1, 400))
def test_a_bounded_batch_ends_where_its_rows_do(offsets: list[int], rows: int) -> None:
    low, high = 1, offsets[-1]
    reached = []
    while low <= high:
        end = end_of(counting(offsets), low, high, rows)
        assert low <= end <= high
        reached.append(sum(low <= offset <= end for offset in offsets))
        low = end + 1
    assert sum(reached) == len(offsets)
    assert max(reached) <= rows
    assert len(reached) <= 4 * len(offsets)
