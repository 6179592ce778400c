"""What ways of publishing cost beyond the plain ones of tests/consumers/test_counted_costs.py, and cancelling.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import transaction

from sqlqueue import NewMessage, cancel, cancel_all, get_scheduled, publish, publish_many, publish_on_commit
from tests.counting import Cost, Costs, counted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("steady")]

LATER = 3600


def hundred(prefix: str = "", **options: object) -> list[NewMessage]:
    """Return a hundred messages of as many keys; with a prefix they have ids."""
    return [NewMessage(n, key=f"{n}", id=f"{prefix}{n}" if prefix else None, **options) for n in range(100)]


def nothing() -> None:
    pass


def ten_on_commit() -> None:
    with transaction.atomic():
        for number in range(10):
            publish_on_commit("t", number)


def taken() -> None:
    publish_many("t", hundred("a"))


def scheduled() -> None:
    publish_many("t", hundred("a", delay=LATER))


def unique() -> None:
    publish_many("t", hundred(unique_for=LATER))


# What was published before, the call, and its cost.
PUBLISHED: dict[str, tuple[Callable[[], object], Callable[[], object], Costs]] = {
    "ten on commit": (nothing, ten_on_commit, Cost(0, 10, 10)),
    "a thousand of a generator": (
        nothing,
        lambda: publish_many("t", (n for n in range(1_000))),
        {"": Cost(1, 1, 1000), "sqlite": Cost(0, 2, 0), "postgresql": Cost(0, 1, 1000)},
    ),
    "a hundred with ids": (
        nothing,
        lambda: publish_many("t", hundred("a")),
        {"": Cost(4, 1, 100), "sqlite": Cost(2, 1, 0), "postgresql": Cost(2, 1, 100)},
    ),
    "a hundred with ids that are there": (
        taken,
        lambda: publish_many("t", hundred("a")),
        {"": Cost(3, 0, 0), "sqlite": Cost(2, 1, 0), "postgresql": Cost(3, 1, 0)},
    ),
    "one of a key, unique": (
        nothing,
        lambda: publish("t", 1, key="a", unique_for=LATER),
        {"": Cost(1, 2, 2), "sqlite": Cost(0, 2, 0), "postgresql": Cost(0, 2, 2)},
    ),
    "one of a key that is pending, unique": (
        unique,
        lambda: publish("t", 1, key="1", unique_for=LATER),
        {"": Cost(2, 1, 1), "sqlite": Cost(1, 1, 0), "postgresql": Cost(1, 1, 1)},
    ),
    "a hundred of as many keys, unique": (
        nothing,
        unique,
        {"": Cost(1, 2, 200), "sqlite": Cost(0, 2, 0), "postgresql": Cost(0, 2, 200)},
    ),
    "a hundred of keys that are pending, unique": (
        unique,
        unique,
        {"": Cost(2, 1, 100), "sqlite": Cost(1, 1, 0), "postgresql": Cost(1, 1, 100)},
    ),
    "a hundred with a delay": (nothing, lambda: publish_many("t", hundred(delay=LATER)), Cost(0, 1, 100)),
    "a hundred with a delay and ids": (
        nothing,
        scheduled,
        {"": Cost(5, 1, 100), "sqlite": Cost(4, 1, 0), "postgresql": Cost(4, 1, 100)},
    ),
    "one with a delay and an id": (nothing, lambda: publish("t", 1, id="a", delay=LATER), Cost(2, 1, 1)),
    "one in place of a scheduled one": (
        scheduled,
        lambda: publish("t", 1, key="1", id="a1", delay=LATER, on_conflict="replace"),
        Cost(1, 1, 1),
    ),
    "a hundred in place of scheduled ones": (
        scheduled,
        lambda: publish_many("t", hundred("a", delay=LATER, on_conflict="replace")),
        Cost(103, 100, 100),
    ),
    "one is looked at": (scheduled, lambda: get_scheduled("t", key="1", id="a1"), Cost(2, 0, 0)),
    "one is cancelled": (scheduled, lambda: cancel("t", key="1", id="a1"), Cost(3, 1, 1)),
    "those of a key are cancelled": (scheduled, lambda: cancel_all("t", key="1"), Cost(3, 1, 1)),
}


@pytest.mark.parametrize("way", PUBLISHED)
def test_ways_of_publishing(way: str) -> None:
    before, publishing, expected = PUBLISHED[way]
    publish("t", 0, delay=LATER)  # the schedule is known
    before()
    with counted() as counter:
        publishing()
    counter.check(expected)
