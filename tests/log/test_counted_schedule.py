"""What it costs to move scheduled messages that are due into the log, 500 at a time.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sqlqueue import Batch, NewMessage, publish, publish_many
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.sizes import LIGHT
from sqlqueue.log.schedule import MOVED_AT_ONCE, move_due
from sqlqueue.models import ScheduledMessage
from tests.counting import Cost, Costs, counted
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("steady")]

LATER = 3600


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
