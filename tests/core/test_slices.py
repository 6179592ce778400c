"""Slices: every message belongs to one, and they are alike in size."""

from collections import Counter

import pytest

from sqlqueue.core.slices import MOST_SLICES, asked, hashes_of, lease_number, leased_by, slice_of

pytestmark = pytest.mark.once


@pytest.mark.parametrize("slices", range(1, MOST_SLICES + 1))
def test_the_hashes_of_the_slices_are_all_there_are(slices: int) -> None:
    ranges = [hashes_of(slice, slices) for slice in range(slices)]
    assert [low for low, _ in ranges] == [0, *(high + 1 for _, high in ranges[:-1])]
    assert ranges[-1][1] == 65_535


@pytest.mark.parametrize("step", [1, 2, 3, 7, 8, 16, 60, 64])
@pytest.mark.parametrize("slices", [2, 3, 8])
def test_slices_are_alike_in_size_however_regular_the_offsets_are(step: int, slices: int) -> None:
    sizes = Counter(slice_of(offset, slices) for offset in range(1_000_000, 1_000_000 + 4_000 * step, step))
    assert set(sizes) == set(range(slices))
    assert max(sizes.values()) < 1.1 * min(sizes.values())


def test_a_lease_that_is_not_shared_has_the_number_of_its_partition() -> None:
    assert [lease_number(partition, 0, 1) for partition in range(5)] == list(range(5))
    assert [leased_by(lease_number(partition, slice, 3), 3) for partition in range(2) for slice in range(3)] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)
    ]  # fmt: skip


def test_the_most_is_asked_for_unless_one_needs_whole_partitions() -> None:
    assert asked({1, 8, 3}) == 8
    assert asked({8, 0}) == 1
    assert asked(set()) is None
