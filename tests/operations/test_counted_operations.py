"""What operators' work costs: replays, rewinds, reschedulings and what else they do to a hundred messages.

docs/operations/scaling.md has some of these figures. The app of batches is installed: it is asked once whether a topic
has members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue import NewMessage, Reject, Retry, discard, publish_many, replay
from sqlqueue.database.log import forget_layouts
from sqlqueue.log.layout_changes import TRANSACTIONS
from sqlqueue.models import DeliveryState, Message
from sqlqueue.operations import requests
from sqlqueue.operations.messages import delete
from sqlqueue.operations.move import move
from sqlqueue.operations.repartition import Repartition, begin
from sqlqueue.operations.replay_requests import request_replay
from sqlqueue.operations.reschedule import acknowledge, reprioritize, republish, reschedule
from sqlqueue.operations.reschedule_requests import WaitingDeliveries, request_rescheduling
from sqlqueue.operations.topics import purge
from tests.counting import Cost, Costs, Counter, counted
from tests.logs import LOG
from tests.steady import Steady, settle

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = 100


def reject(delivery: Any) -> None:
    raise Reject("no")


def put_off(delivery: Any) -> None:
    raise Retry(delay=3600)


def succeed(delivery: Any) -> None:
    pass


def handled(steady: Steady, handler: Callable[[Any], object]) -> None:
    subscriber = steady.start(handler)
    publish_many("t", [NewMessage(number, key=f"{number}") for number in range(MESSAGES - 1)])
    settle(subscriber, Counter())
    subscriber.run_once()


def requested_replay() -> None:
    request_replay(LOG, "t")


def requested_rescheduling() -> None:
    request_rescheduling(LOG, WaitingDeliveries("t", "g"))


def nothing() -> None:
    pass


# How the messages were handled, what comes before, the operation, and its cost.
Operation = tuple[Callable[[Any], object], Callable[[], object], Callable[[list[int]], object], Costs]
OPERATIONS: dict[str, Operation] = {
    "replay": (reject, nothing, lambda offsets: replay("t"), Cost(8, 3, 300)),
    "replay of one": (reject, nothing, lambda offsets: replay("t", limit=1), Cost(5, 3, 3)),
    "discard": (reject, nothing, lambda offsets: discard("t"), Cost(2, 1, 100)),
    "replay, as consumers carry it out": (
        reject,
        requested_replay,
        lambda offsets: requests.carry_out(LOG),
        Cost(11, 4, 301),
    ),
    "rewind": (
        succeed,
        nothing,
        lambda offsets: move(LOG, "g", "t", 0),
        {"": Cost(11, 8, 4), "sqlite": Cost(10, 8, 0)},
    ),
    "rewind of one partition": (
        succeed,
        nothing,
        lambda offsets: move(LOG, "g", "t", 0, 0),
        {"": Cost(10, 8, 4), "sqlite": Cost(9, 8, 0)},
    ),
    "rewind over what waits": (
        put_off,
        nothing,
        lambda offsets: move(LOG, "g", "t", 0),
        {"": Cost(11, 8, 104), "sqlite": Cost(10, 8, 0)},
    ),
    "reschedule": (put_off, nothing, lambda offsets: reschedule(LOG, "g", "t", offsets), Cost(2, 1, 100)),
    "reschedule, as consumers carry it out": (
        put_off,
        requested_rescheduling,
        lambda offsets: requests.carry_out(LOG),
        Cost(10, 2, 101),
    ),
    "acknowledge": (put_off, nothing, lambda offsets: acknowledge(LOG, "g", "t", offsets), Cost(4, 1, 100)),
    "reprioritize": (
        put_off,
        nothing,
        lambda offsets: reprioritize(LOG, "g", "t", offsets, 0),
        Cost(6, 2, 200),
    ),
    "republish": (succeed, nothing, lambda offsets: republish("t", "g", offsets), Cost(2, 1, 100)),
    "delete": (succeed, nothing, lambda offsets: delete(LOG, "t", offsets), Cost(8, 1, 100)),
    "purge": (
        succeed,
        nothing,
        lambda offsets: purge(LOG, "t"),
        {"": Cost(3, 1, 1), "sqlite": Cost(2, 1, 0)},
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_on_a_hundred_messages(name: str, steady: Steady) -> None:
    handler, before, operation, expected = OPERATIONS[name]
    handled(steady, handler)
    before()
    assert (DeliveryState.objects.count() == MESSAGES) is (handler is put_off)
    offsets = list(Message.objects.filter(topic="t").order_by("offset").values_list("offset", flat=True))
    with counted() as counter:
        operation(offsets)
    counter.check(expected)


# What a change of a topic's partitions costs in each of its steps: publishers wait for some of these statements.


# The rows of MySQL's gate are turned to the new generation twice: before the keys go over, and when no publisher has to
# ask the slots any more.
BEGUN: Costs = {"": Cost(6, 3, 66), "sqlite": Cost(5, 4, 0), "postgresql": Cost(8, 3, 3)}
SLOTTED = [Cost(51, 16, 256), Cost(20, 4, 64), Cost(10, 2, 2), Cost(34, 16, 256), Cost(4, 1, 64)]
STEPS = {"sqlite": [], "mariadb": SLOTTED, "mysql": SLOTTED, "postgresql": [Cost(15, 2, 2)]}


@pytest.mark.usefixtures("steady")
def test_each_step_of_a_change(database_name: str) -> None:
    """MySQL turns the 256 rows of the gate and the 64 slots of the topic's keys, 16 in a transaction."""
    forget_layouts()
    publish_many("t", range(100))
    with counted() as counter:
        begin(LOG, "t", 4)
    counter.check(BEGUN)
    repartition, expected = Repartition(LOG), list(STEPS[database_name])
    while True:
        with counted() as counter:
            left = repartition.step()
        if left is None:
            break
        if left.stage == TRANSACTIONS:
            return  # PostgreSQL's autovacuum has the table
        counter.check(expected.pop(0))
    assert not expected
