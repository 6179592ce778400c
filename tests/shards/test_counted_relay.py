"""What a message costs that is published in a transaction on one shard and belongs to another.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import transaction

from sqlqueue import Batch, NewMessage, publish, publish_many, publish_on_commit
from sqlqueue.core.shards import shard_of
from sqlqueue.log import relay_moves
from tests.counting import Cost, Costs, counted
from tests.shards.aliases import A, B

pytestmark = pytest.mark.usefixtures("shards")

KEYS = [key for key in (f"key-{number}" for number in range(400)) if shard_of(key, ["a", "b"]) == "b"][:100]


def on_a(publishing: Callable[[], object]) -> None:
    with transaction.atomic(using=A):
        publishing()


def all_of_b(**options: object) -> None:
    publish_many("t", [NewMessage(key, key=key, **options) for key in KEYS], relay=True)


def ten() -> None:
    for key in KEYS[:10]:
        publish("t", 1, key=key, relay=True)


def ten_on_commit() -> None:
    for key in KEYS[:10]:
        publish_on_commit("t", 1, key=key)


def members() -> None:
    with Batch() as batch:
        batch.publish_many("t", [NewMessage(key, key=key) for key in KEYS])


# What is published in a transaction on shard a, and the costs: of publishing it, and of moving it to shard b.
RELAYED: dict[str, tuple[Callable[[], object], Costs, Costs]] = {
    "a hundred at once": (
        all_of_b,
        Cost(0, 1, 100),
        {"": Cost(8, 3, 201), "sqlite": Cost(6, 3, 0), "postgresql": Cost(6, 3, 201)},
    ),
    "a hundred with a delay": (
        lambda: all_of_b(delay=3600),
        Cost(0, 1, 100),
        {"": Cost(9, 3, 201), "sqlite": Cost(8, 3, 0), "postgresql": Cost(8, 3, 201)},
    ),
    "ten one by one": (
        ten,
        Cost(0, 10, 10),
        {"": Cost(8, 3, 21), "sqlite": Cost(6, 3, 0), "postgresql": Cost(6, 3, 21)},
    ),
    "ten on commit": (ten_on_commit, Cost(0, 10, 10), Cost(1, 0, 0)),
    "a hundred members of a batch": (
        members,
        Cost(0, 4, 103),
        {"": Cost(9, 4, 202), "sqlite": Cost(7, 4, 0), "postgresql": Cost(7, 4, 202)},
    ),
}


@pytest.mark.parametrize("what", RELAYED)
def test_what_is_relayed(what: str) -> None:
    publishing, published, moved = RELAYED[what]
    on_a(lambda: publish("t", 0, key=KEYS[0], relay=True))
    relay_moves.move(A, "b")
    with counted(A, B) as counter:
        on_a(publishing)
    counter.check(published)
    with counted(A, B) as counter:
        while relay_moves.move(A, "b").more:
            pass
    counter.check(moved)
