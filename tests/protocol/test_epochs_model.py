"""Going over to a new epoch, explored in a model: every order of the steps of a small world, and random walks in larger
ones. Each rule is needed: without it the explorer finds what breaks."""

import pytest

from tests.protocol.epochs_model import RULES, Epochs, explore, walk

pytestmark = pytest.mark.once

FLAVOURS = ("mysql", "postgresql")
NEEDED = {
    "mysql": ("by_key", "hold", "announce", "end_after", "behind", "reset_revokes", "check"),
    "postgresql": ("lock_first", "fresh", "grace", "behind", "reset_revokes"),
}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_whatever_the_order_nothing_is_lost_or_overtaken_and_the_change_ends(flavour: str) -> None:
    states, whole, broken = explore(Epochs(flavour, messages=2, statements=1), limit=100_000, drain_every=50)
    assert (whole, broken) == (True, None)
    assert states > 5_000
    assert walk(Epochs(flavour, publishers=3, messages=6, resets=2), walks=100) is None


@pytest.mark.parametrize(("flavour", "rule"), [(flavour, rule) for flavour in FLAVOURS for rule in NEEDED[flavour]])
def test_every_rule_is_needed(flavour: str, rule: str) -> None:
    assert explore(Epochs(flavour, [rule], messages=2, statements=1), limit=30_000)[2] is not None


def test_no_rule_is_left_out() -> None:
    assert set(RULES) == {rule for rules in NEEDED.values() for rule in rules}
