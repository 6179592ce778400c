"""What each path costs, counted: the statements that the server is sent, and the rows that they change.

No clock decides it, so a statement or a row more on any path fails here. BEGIN, COMMIT and savepoints are not counted,
nor are the looks at the log's end and at the gate: how many of these there are depends on other publishers.
docs/operations/scaling.md has these figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction

from sqlqueue import NewMessage, Retry, publish, publish_many
from sqlqueue.consumers.pools import InlinePool
from sqlqueue.consumers.registry import Consumer, build
from sqlqueue.consumers.subscriber import Subscriber
from sqlqueue.models import Message, Offset

MESSAGES = 100
CHANGE = ("INSERT", "UPDATE", "DELETE", "WITH")
NOT_COUNTED = ("BEGIN", "SAVEPOINT", "RELEASE", "SET")  # SET: of a new connection, when the last one got too old
LOOKS = ("UUID", "MAX(", "sqlqueue_publish_gate", "pg_locks")  # at a new connection, the log's end, the gate

pytestmark = pytest.mark.django_db(transaction=True)


class Cost(NamedTuple):
    """Statements that read, statements that change rows, and how many rows they change."""

    reads: int
    changes: int
    rows: int


class Counter:
    """Counts the statements that pass it."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.changes: list[str] = []
        self.rows = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        result = execute(sql, params, many, context)
        verb = sql.split(None, 1)[0].upper()
        if verb in CHANGE:
            self.changes.append(sql)
            if connection.vendor != "sqlite":  # which does not tell where rows are returned
                self.rows += max(0, context["cursor"].cursor.rowcount)
        elif verb not in NOT_COUNTED and not any(look in sql for look in LOOKS):
            self.reads.append(sql)
        return result

    def check(self, expected: Cost) -> None:
        cost = Cost(len(self.reads), len(self.changes), self.rows)
        if connection.vendor == "sqlite":
            cost = cost._replace(rows=expected.rows)
        assert cost == expected, "\n".join(self.reads + self.changes)


@contextmanager
def counted() -> Iterator[Counter]:
    counter = Counter()
    with connection.execute_wrapper(counter):
        yield counter


@pytest.fixture(autouse=True)
def quiet(settings: Any) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 1, "WAKE": False, "LEASE_DURATION": 3600, "BALANCE_INTERVAL": 1800}
    publish("t", "warm")


@pytest.fixture
def host() -> Iterator[Callable[..., Subscriber]]:
    started: list[Subscriber] = []

    def make(handler: Callable[[Any], object], groups: str = "g", **options: Any) -> Subscriber:
        consumers = [
            Consumer(topic="t", handler=handler, **build("t", {"group": group, **options})) for group in groups
        ]
        subscriber = Subscriber(consumers, background_tasks=False, pool=InlinePool)
        now = time.monotonic()
        subscriber.clock = lambda: now  # stands still: nothing is done because time has passed
        subscriber.start()
        started.append(subscriber)
        settle(subscriber, Counter())
        return subscriber

    yield make
    for subscriber in started:
        subscriber.stop(timeout=0.0)
        subscriber.close()


def settle(subscriber: Subscriber, counter: Counter) -> None:
    """Run until everything that is in the log is settled or waits; only what the subscriber does is counted."""
    last = max(Message.objects.values_list("offset", flat=True))
    for _ in range(1000):
        with connection.execute_wrapper(counter):
            subscriber.run_once()
        if not Offset.objects.filter(position__lt=last).exists():
            return
    raise AssertionError("it is never settled")


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
    "one by one": (succeed, {}, Cost(2, 14, 14)),
    "in batches of 100": (succeed, {"batch": True, "batch_size": 100}, Cost(2, 2, 2)),
    "atomic": (succeed, {"atomic": True}, Cost(102, 127, 214)),
    "atomic, 100 in a transaction": (succeed, {"atomic": True, "commit_every": 100}, Cost(3, 3, 3)),
    "by three groups": (succeed, {"groups": "abc"}, Cost(2, 39, 78)),
    "one of a hundred put off": (put_off(100), {}, Cost(2, 16, 16)),
    "ten of a hundred put off": (put_off(10), {}, Cost(2, 34, 34)),
}

# The time of a transaction, by which a lost commit is known.
FURTHER_READS = {("postgresql", "atomic"): 100, ("postgresql", "atomic, 100 in a transaction"): 1}


@pytest.mark.parametrize("way", CONSUMED)
def test_a_hundred_messages_consumed(way: str, host: Callable[..., Subscriber]) -> None:
    handler, options, expected = CONSUMED[way]
    subscriber = host(handler, **options)
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
