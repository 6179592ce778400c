"""The fair share: arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.core.assignment import excess, fair_share

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("partitions", "subscribers", "shares"),
    [(12, 5, [3, 3, 2, 2, 2]), (5, 2, [3, 2]), (2, 4, [1, 1, 0, 0]), (32, 1, [32]), (0, 3, [0, 0, 0])],
)
def test_examples(partitions: int, subscribers: int, shares: list[int]) -> None:
    names = [f"s{n}" for n in range(subscribers)]
    found = [fair_share(partitions, names, name, "g/t") for name in names]
    assert sorted(found, reverse=True) == shares


@given(st.integers(0, 500), st.sets(st.text(max_size=5), min_size=1, max_size=20), st.text(max_size=10))
def test_the_shares_cover_everything_once_and_differ_by_one_at_most(
    partitions: int, names: set[str], salt: str
) -> None:
    shares = [fair_share(partitions, sorted(names), name, salt) for name in names]
    assert sum(shares) == partitions
    assert max(shares) - min(shares) <= 1


@given(st.integers(0, 500), st.sets(st.text(max_size=5), min_size=2, max_size=20), st.text(max_size=10))
def test_when_one_goes_no_other_has_to_give_anything_up(partitions: int, names: set[str], salt: str) -> None:
    _gone, *others = sorted(names)
    for name in others:
        assert fair_share(partitions, others, name, salt) >= fair_share(partitions, sorted(names), name, salt)


def test_one_who_has_no_heartbeat_yet_counts_itself() -> None:
    assert fair_share(4, ["other"], "me", "") == 2


def test_who_has_one_more_is_not_the_same_everywhere() -> None:
    fuller = {next(n for n in "abc" if fair_share(4, list("abc"), n, f"g{salt}/t") == 2) for salt in range(30)}
    assert fuller == set("abc")


@given(st.sets(st.integers(0, 100)), st.integers(0, 50))
def test_the_excess_is_what_is_too_much_and_always_the_same(held: set[int], share: int) -> None:
    given_up = excess(list(held), share)
    assert len(held) - len(given_up) == min(len(held), share)
    assert given_up == sorted(held, reverse=True)[: len(given_up)]
