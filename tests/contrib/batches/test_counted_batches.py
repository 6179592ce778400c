"""What batches cost beyond their messages: making and filling one, settling its members, and its end.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from sqlqueue import Batch, NewMessage, Reject, get_batch, publish_many
from sqlqueue.contrib.batches.ends import check, sweep
from sqlqueue.log.groups import register
from tests.contrib.batches.following import CALLED
from tests.counting import Cost, Costs, Counter, counted
from tests.logs import LOG
from tests.steady import Steady, settle

pytestmark = pytest.mark.django_db(transaction=True)


def batch_of(members: int, **options: Any) -> Batch:
    with Batch(**options) as batch:
        batch.publish_many("t", [NewMessage(number, key=f"{number}") for number in range(members)])
    return batch


def reject(delivery: Any) -> None:
    raise Reject("no")


def test_a_batch_is_published(steady: Steady) -> None:
    """With a hundred members at once, and then ten one by one."""
    register(LOG, "default", "t", "latest")
    batch_of(1)
    with counted() as counter:
        batch_of(100)
    counter.check(Cost(2, 4, 104))
    with counted() as counter, Batch() as batch:
        for number in range(10):
            batch.publish("t", number, key="one")
    upserted = Cost(2, 22, 31)  # MySQL and MariaDB count a row that an upsert changes twice
    counter.check({"": Cost(2, 22, 22), "mariadb": upserted, "mysql": upserted})


SETTLED: dict[str, tuple[Callable[[Any], object], dict[str, Any], Costs]] = {
    "one by one": (lambda delivery: None, {}, Cost(1, 27, 28)),
    "in batches of 100": (lambda delivery: None, {"batch": True, "batch_size": 100}, Cost(1, 3, 4)),
    "dead": (reject, {}, Cost(1, 153, 228)),
}


@pytest.mark.parametrize("way", SETTLED)
def test_a_hundred_members_are_settled(way: str, steady: Steady) -> None:
    handler, options, expected = SETTLED[way]
    subscriber = steady.start(handler, **options)
    subscriber.settler.tell_effects = lambda written: None  # a background task does it, for many settles at once
    batch_of(100)
    counter = Counter()
    settle(subscriber, counter)
    with connection.execute_wrapper(counter):
        subscriber.run_once()
    counter.check(expected)


def test_the_progress_and_the_end_of_batches(steady: Steady) -> None:
    subscriber = steady.start(lambda delivery: None)
    publish_many(CALLED, ["warm"])
    callbacks = {"on_finish": (CALLED, 1), "on_success": (CALLED, 2)}
    ids = [batch_of(10, **callbacks).id for _ in range(10)]
    for operation, expected in (
        (lambda: get_batch(ids[0]), Cost(2, 0, 0)),
        (lambda: check(LOG, ids), Cost(1, 0, 0)),
        (lambda: sweep(LOG), Cost(2, 0, 0)),
    ):
        with counted() as counter:
            operation()
        counter.check(expected)
    subscriber.settler.tell_effects = lambda written: None  # what it would check is checked here, together
    settle(subscriber, Counter())
    with counted() as counter:
        check(LOG, ids)
    counter.check(Cost(21, 40, 40))
    with counted() as counter:
        sweep(LOG)  # all are over
    counter.check(Cost(1, 0, 0))
