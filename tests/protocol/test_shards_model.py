"""Going over to another server, explored in a model: nothing is lost, overtaken or there twice, no publisher needs
another server's or process's help, and the change ends. Each rule is needed: without it the explorer finds a fault."""

from typing import Any

import pytest

from tests.protocol.epochs_model import explore, walk
from tests.protocol.shards_model import RULES, Reshard

pytestmark = pytest.mark.once

FLAVOURS = ("mysql", "postgresql")
ENDED: dict[str, Any] = {"publishers": 0, "ended": True}
ONE: dict[str, Any] = {"publishers": 1, "statements": 2, "keys": "k"}
IDS: dict[str, Any] = {"keys": "k", "ids": True, "falls": 0}
NEEDED = [
    ("mysql", "seen_closed", {}),
    ("postgresql", "seen_closed", {}),
    ("mysql", "own_server", ONE),
    ("mysql", "every_server", ONE),
    ("mysql", "behind", ONE),
    ("mysql", "granted", ENDED),
    ("mysql", "revoke_first", ENDED),
    ("mysql", "verified", ENDED),
    ("mysql", "numbered", ENDED | {"falls": 3}),
    ("mysql", "look_back", IDS),
    ("postgresql", "final", IDS),
]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_whatever_the_order_nothing_is_lost_or_overtaken_and_the_change_ends(flavour: str) -> None:
    states, _, broken = explore(Reshard(flavour), limit=25_000, drain_every=50)
    assert broken is None
    assert states >= 25_000
    assert walk(Reshard(flavour, publishers=3, messages=6, statements=3, falls=2), walks=60) is None


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_id_is_there_once_on_all_servers(flavour: str) -> None:
    assert explore(Reshard(flavour, **IDS), limit=10_000, drain_every=10)[1:] == (True, None)


def test_groups_are_reset_below_an_end_by_processes_that_die() -> None:
    assert explore(Reshard("mysql", falls=2, **ENDED), limit=20_000, drain_every=50)[1:] == (True, None)


@pytest.mark.parametrize(("flavour", "rule", "world"), NEEDED)
def test_every_rule_is_needed(flavour: str, rule: str, world: dict[str, Any]) -> None:
    assert explore(Reshard(flavour, [rule], **world), limit=60_000, drain_every=5)[2] is not None


def test_no_rule_is_left_out() -> None:
    assert set(RULES) == {rule for _, rule, _ in NEEDED}
