"""Sets of partitions: read, told, and shared among those that serve them."""

from __future__ import annotations

import pytest

from sqlqueue.core.assignment import fair_share
from sqlqueue.core.partition_numbers import (
    TEXT_LENGTH,
    Numbers,
    numbers_text,
    parts_by_subscribers,
    read_numbers,
    stored_numbers,
)
from sqlqueue.core.settings import MOST_PARTITIONS

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("text", "numbers", "told"),
    [
        ("0-15", set(range(16)), "0-15"),
        ("3", {3}, "3"),
        ("8, 0-2 ,3,2", {0, 1, 2, 3, 8}, "0-3,8"),
        ("5-5,7", {5, 7}, "5,7"),
        ("9999", {9999}, "9999"),
    ],
)
def test_what_a_text_names(text: str, numbers: set[int], told: str) -> None:
    assert read_numbers(text) == numbers
    assert numbers_text(numbers) == told
    assert stored_numbers(told) == numbers


def test_all_of_them() -> None:
    assert numbers_text(None) == ""
    assert stored_numbers("") is None
    assert stored_numbers("of a later version") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no partitions"),
        ("0-", "names no partitions"),
        ("-1", "names no partitions"),
        ("a", "names no partitions"),
        ("1,,2", "names no partitions"),
        ("1.5", "names no partitions"),
        ("٣", "names no partitions"),
        ("5-3", "'5-3' is no range"),
        (f"0-{MOST_PARTITIONS}", "is no partition: a topic has at most 10,000"),
        ("9" * 500, "names no partitions"),
        (",".join(map(str, range(0, 2 * TEXT_LENGTH, 2))), "has too many ranges"),
    ],
)
def test_what_names_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_numbers(text)


@pytest.mark.parametrize(
    ("count", "subscribers", "shares"),
    [
        (32, {"a": None, "b": None, "c": None}, [11, 11, 10]),
        (32, {"a": range(16), "b": range(16, 32)}, [16, 16]),
        (32, {"a": range(16), "b": range(16), "c": range(16, 32)}, [8, 8, 16]),
        (32, {"a": None, "b": range(16)}, [24, 8]),
        (8, {"a": range(16), "b": range(16, 32)}, [8, 0]),
        (10, {"a": range(6), "b": range(4, 10)}, [5, 5]),
    ],
)
def test_shares(count: int, subscribers: dict[str, range | None], shares: list[int]) -> None:
    sets: dict[str, Numbers | None] = {
        name: None if numbers is None else frozenset(numbers) for name, numbers in subscribers.items()
    }
    found = dict.fromkeys(subscribers, 0)
    for numbers, names in parts_by_subscribers(count, sets):
        for name in names:
            found[name] += fair_share(count if numbers is None else len(numbers), names, name, "g/t")
    assert sorted(found.values()) == sorted(shares)
    assert sum(found.values()) == count
