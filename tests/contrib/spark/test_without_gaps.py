"""Which segments a range of offsets takes: what is asked for and is in none is an error, and never left out."""

import pytest

from sqlqueue.contrib.spark.manifest import DamagedArchive, Manifest, without_gaps

pytestmark = pytest.mark.once


def segment(first: int, last: int) -> Manifest:
    return Manifest(f"{first}-{last}", "messages", "t", first, last, 1, "", "log", "archive", 1, {})


def test_a_range_that_the_archive_holds_takes_its_segments() -> None:
    found = [segment(11, 20), segment(1, 10)]
    assert [each.first for each in without_gaps(found, 1, 20)] == [1, 11]
    assert [each.first for each in without_gaps(found, 12, 15)] == [11]
    assert [each.first for each in without_gaps(found, 1, None)] == [1, 11]


@pytest.mark.parametrize(("first", "missing"), [(1, "21-25"), (12, "21-25"), (23, "23-25")])
def test_a_range_past_the_end_of_the_archive_is_an_error(first: int, missing: str) -> None:
    with pytest.raises(DamagedArchive, match=f"ends at offset 20: it has no segment with the offsets {missing}: "):
        without_gaps([segment(1, 10), segment(11, 20)], first, 25)
