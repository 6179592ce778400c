"""What each path costs, counted: the statements that the server is sent, and the rows that they change.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue import NewMessage, Retry, publish, publish_many
from tests.counting import Cost, Counter, counted
from tests.steady import Steady, settle

MESSAGES = 100

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("steady")]


def succeed(delivery: Any) -> None:
    pass


def put_off(every: int) -> Callable[[Any], None]:
    def handler(delivery: Any) -> None:
        if delivery.payload % every == 7:
            raise Retry(delay=3600)

    return lambda delivery: None if delivery.payload == "warm" else handler(delivery)


# For MESSAGES of as many keys in one partition. A message of which nothing failed has no row of its own; an atomic one
# has, until the position passes it.
CONSUMED: dict[str, tuple[Callable[[Any], object], dict[str, Any], Cost]] = {
    "one by one": (succeed, {}, Cost(1, 14, 14)),
    "in batches of 100": (succeed, {"batch": True, "batch_size": 100}, Cost(1, 2, 2)),
    "atomic": (succeed, {"atomic": True}, Cost(101, 127, 214)),
    "atomic, 100 in a transaction": (succeed, {"atomic": True, "commit_every": 100}, Cost(2, 3, 3)),
    "by three groups": (succeed, {"groups": "abc"}, Cost(1, 39, 78)),
    "one of a hundred put off": (put_off(100), {}, Cost(1, 16, 16)),
    "ten of a hundred put off": (put_off(10), {}, Cost(1, 34, 34)),
}

# The time of a transaction, by which a lost commit is known.
FURTHER_READS = {("postgresql", "atomic"): 100, ("postgresql", "atomic, 100 in a transaction"): 1}


@pytest.mark.parametrize("way", CONSUMED)
def test_a_hundred_messages_consumed(way: str, steady: Steady) -> None:
    handler, options, expected = CONSUMED[way]
    subscriber = steady.start(handler, **options)
    publish_many("t", [NewMessage(number, key=f"{number}") for number in range(MESSAGES)])
    counter = Counter()
    settle(subscriber, counter)
    with connection.execute_wrapper(counter):
        subscriber.run_once()  # which writes what has been left for later
    counter.check(expected._replace(reads=expected.reads + FURTHER_READS.get((connection.vendor, way), 0)))


def in_a_transaction() -> None:
    with transaction.atomic():
        for number in range(10):
            publish("t", number)


PUBLISHED: dict[str, tuple[Callable[[], object], Cost]] = {
    "one": (lambda: publish("t", 1), Cost(0, 1, 1)),
    "one with an id": (lambda: publish("t", 1, id="a"), Cost(1, 1, 1)),
    "ten in a transaction": (in_a_transaction, Cost(0, 10, 10)),
    "a hundred at once": (lambda: publish_many("t", range(100)), Cost(0, 1, 100)),
    "one with a delay": (lambda: publish("t", 1, delay=100), Cost(0, 1, 1)),
}


@pytest.mark.parametrize("way", PUBLISHED)
def test_messages_published(way: str) -> None:
    publishing, expected = PUBLISHED[way]
    publish("t", 0, delay=100)  # the schedule is known
    with counted() as counter:
        publishing()
    counter.check(expected)


def test_one_that_is_there_already() -> None:
    publish("t", 1, id="a")
    with counted() as counter:
        publish("t", 1, id="a")
    counter.check(Cost(1, 0, 0))
