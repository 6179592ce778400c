"""Publishing on several nodes of a cluster, in a model: the rules suffice, and none of them can be left out."""

import pytest

from tests.protocol.writable_nodes import RULES, World, explore

pytestmark = pytest.mark.once

AT_LEAST = 20_000  # states that are looked at, the nearest ones first
UNTIL_FOUND = 150_000
ONE_KEY, TWO_KEYS = "aa", "ab"
WORLDS = [
    pytest.param({"publishers": ONE_KEY}, id="one-key"),
    pytest.param({"publishers": ONE_KEY, "takeovers": 0}, id="one-key-and-no-change-but-by-a-kill"),
    pytest.param({"publishers": TWO_KEYS, "skips": True}, id="two-keys"),
]


@pytest.mark.parametrize("options", WORLDS)
def test_nothing_is_lost_or_out_of_order_and_nothing_stands_still(options: dict[str, object]) -> None:
    found = explore(World(**options), AT_LEAST)
    assert not found.violation, found.trace
    assert found.whole or found.states >= AT_LEAST


@pytest.mark.parametrize(
    ("rule", "publishers", "said"),
    [
        ("named", TWO_KEYS, "lost: "),
        ("probed", TWO_KEYS, "lost: "),
        ("barrier", TWO_KEYS, "lost: "),
        ("closed", TWO_KEYS, "lost: "),
        ("drained", ONE_KEY, "out of order: "),
        ("after", ONE_KEY, "out of order: "),
        ("causal", ONE_KEY, "out of order: "),
    ],
)
def test_it_finds_that_a_rule_is_missing(rule: str, publishers: str, said: str) -> None:
    world = World(rule, publishers=publishers, skips=rule == "named", kills=0)
    assert rule in RULES
    assert said in explore(world, UNTIL_FOUND).violation
