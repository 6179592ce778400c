"""What ways of publishing cost beyond the plain ones of tests/consumers/test_counted_costs.py, and cancelling.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import transaction

from sqlqueue import Batch, NewMessage, cancel, cancel_all, get_scheduled, publish, publish_many, publish_on_commit
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.sizes import LIGHT
from sqlqueue.log.schedule import MOVED_AT_ONCE, move_due
from sqlqueue.models import ScheduledMessage
from tests.counting import Cost, Costs, counted
from tests.logs import LOG

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


# What it costs to move scheduled messages that are due into the log, 500 at a time.


def some(count: int) -> list[NewMessage]:
    return [NewMessage(n, key=f"{n}", delay=LATER) for n in range(count)]


def heavy() -> None:
    publish_many("t", [NewMessage("x" * LIGHT, delay=LATER) for _ in range(10)])


def members() -> None:
    with Batch() as batch:
        batch.publish_many("t", some(100))


def with_an_impossible_one() -> None:
    publish_many("t", some(100))
    ScheduledMessage.objects.filter(partition_key="7").update(priority=7)


# What is due, how many messages leave the schedule, and the cost.
MOVED: dict[str, tuple[Callable[[], object], int, Costs]] = {
    "nothing": (lambda: publish("t", 1, delay=LATER), 0, Cost(1, 0, 0)),
    "one": (
        lambda: publish_many("t", some(1)),
        1,
        {"": Cost(4, 2, 2), "sqlite": Cost(3, 2, 0), "postgresql": Cost(3, 2, 2)},
    ),
    "a portion": (
        lambda: publish_many("t", some(MOVED_AT_ONCE)),
        MOVED_AT_ONCE,
        {"": Cost(5, 2, 1000), "sqlite": Cost(3, 2, 0), "postgresql": Cost(3, 2, 1000)},
    ),
    "ten whose payloads stay in the server": (
        heavy,
        10,
        {"": Cost(23, 11, 20), "sqlite": Cost(13, 11, 0), "postgresql": Cost(13, 11, 20)},
    ),
    "a hundred members of a batch": (
        members,
        100,
        {"": Cost(5, 2, 200), "sqlite": Cost(3, 2, 0), "postgresql": Cost(3, 2, 200)},
    ),
    "a hundred, one of which the log refuses": (
        with_an_impossible_one,
        100,
        {"": Cost(5, 3, 199), "sqlite": Cost(3, 3, 0), "postgresql": Cost(3, 3, 199)},
    ),
}


@pytest.mark.parametrize("what", MOVED)
def test_what_is_due_is_moved(what: str) -> None:
    schedule, count, expected = MOVED[what]
    schedule()
    if count:
        ScheduledMessage.objects.update(due_at=DatabaseNow())
    with counted() as counter:
        assert move_due(LOG) == count
    counter.check(expected)
