"""What ways of delivery and outcomes cost beyond the plain ones of test_counted_costs: pull loops, async handlers,
priorities, progress, results, dead letters, work items.

docs/operations/scaling.md has some of these figures.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue import HandOver, NewMessage, Reject, publish_many
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.pools import Pool, ThreadPool
from sqlqueue.consumers.pull.delivery import PulledDelivery
from sqlqueue.consumers.pull.engine import PullPool, pulled_consumer
from sqlqueue.core.settle_plan import Execution
from tests.counting import Cost, Costs, Counter
from tests.processes import wait_until
from tests.steady import SETTINGS, Steady, settle

MESSAGES = 100

pytestmark = pytest.mark.django_db(transaction=True)


def publish_all(**options: Any) -> None:
    publish_many("t", [NewMessage(number, key=f"{number}", **options) for number in range(MESSAGES)])


def settled(subscriber: Subscriber, between: Callable[[], object] = lambda: None) -> Counter:
    counter = Counter()
    settle(subscriber, counter, between)
    with connection.execute_wrapper(counter):
        subscriber.run_once()  # which writes what has been left for later
    return counter


async def asynchronous(delivery: Any) -> None:
    pass


def reject(delivery: Any) -> None:
    raise Reject("no")


def reject_one(delivery: Any) -> None:
    if delivery.payload in ("warm", 7):  # the first one makes the topic of the dead letters
        raise Reject("no")


def hand_over(delivery: Any) -> None:
    if delivery.payload != "warm":
        raise HandOver("to a person")


def report(delivery: Any) -> None:
    delivery.progress(1, 2)


OUTCOMES: dict[str, tuple[Callable[[Any], object], dict[str, Any], Costs]] = {
    "results that are kept": (lambda delivery: 1, {"keep_results": 60}, Cost(1, 27, 114)),
    "progress of what is settled at once": (report, {}, Cost(1, 14, 14)),
    "one of a hundred dead": (reject_one, {}, Cost(1, 17, 16)),
    "a hundred dead": (reject, {}, Cost(1, 140, 214)),
    "a hundred handed over": (hand_over, {}, Cost(14, 40, 114)),
    "a filter that lets one of a hundred through": (report, {"where": {"key": "7"}}, Cost(1, 4, 4)),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_hundred_of_one_outcome(outcome: str, steady: Steady) -> None:
    handler, options, expected = OUTCOMES[outcome]
    subscriber = steady.start(handler, **options)
    publish_all()
    settled(subscriber).check(expected)


def test_a_hundred_with_a_receipt_each(steady: Steady, settings: Any) -> None:
    settings.SQLQUEUE = {**SETTINGS, "TOPICS": {"noted": {"history": "all"}}}
    publish_many("noted", ["warm"])
    subscriber = steady.start(lambda delivery: None, topic="noted")
    publish_many("noted", [NewMessage(n, key=f"{n}") for n in range(MESSAGES)])
    settled(subscriber).check(Cost(1, 27, 114))


def test_a_hundred_of_three_priorities(steady: Steady, settings: Any) -> None:
    settings.SQLQUEUE = {**SETTINGS, "TOPICS": {"three": {"priorities": 3}}}
    publish_many("three", ["warm"])
    subscriber = steady.start(lambda delivery: None, topic="three")
    publish_many("three", [NewMessage(n, key=f"{n}", priority=n % 3) for n in range(MESSAGES)])
    settled(subscriber).check(Cost(3, 14, 20))


class LoopPool(ThreadPool):
    """Runs async handlers on its event loop, as ever, and tells when all that it was given have ended."""

    def __init__(self, report: Callable[..., None], ended: Callable[[Execution], None]) -> None:
        super().__init__(1, report, self._end)
        self._told, self.running = ended, 0

    def submit(self, executor: Any, execution: Execution, reserved: bool = False) -> None:
        self.running += 1
        super().submit(executor, execution, reserved)

    def _end(self, execution: Execution) -> None:
        self._told(execution)
        self.running -= 1


def test_a_hundred_on_an_event_loop(steady: Steady) -> None:
    pools: list[LoopPool] = []

    def make(*reporting: Any) -> Pool:
        pools.append(LoopPool(*reporting))
        return pools[-1]

    def wait() -> None:
        wait_until(lambda: not pools[0].running)

    subscriber = steady.start(asynchronous, pool=make, between=wait)
    publish_all()
    settled(subscriber, wait).check(Cost(1, 14, 14))


class Receiver:
    """What a pull loop's receiver does: it takes what has come, and acks it; each time all of it, or nothing."""

    def __init__(self, steady: Steady, settle: Callable[[PulledDelivery], object], **options: Any) -> None:
        self._deliveries: SimpleQueue[PulledDelivery | None] = SimpleQueue()
        self._settle = settle
        self.subscriber = steady.start(
            pulled_consumer("t", "g", options).handler, pool=self._pool, between=self.receive, **options
        )

    def _pool(self, report: Callable[..., None], ended: Callable[[Execution], None]) -> PullPool:
        return PullPool(report, ended, lambda: None, self._deliveries)

    def receive(self) -> None:
        while not self._deliveries.empty():
            delivery = self._deliveries.get()
            if delivery is not None and delivery.ready():
                self._settle(delivery)


def ack_in_a_transaction(delivery: PulledDelivery) -> None:
    with transaction.atomic():
        delivery.ack()


PULLED: dict[str, tuple[Callable[[PulledDelivery], object], Costs]] = {
    "acked one by one": (lambda delivery: delivery.ack(), Cost(1, 14, 14)),
    "rejected": (lambda delivery: delivery.reject("no"), Cost(1, 140, 214)),
    "put off": (lambda delivery: delivery.retry(3600), Cost(1, 40, 214)),
    "acked with a write of the receiver's": (ack_in_a_transaction, Cost(1, 27, 114)),
}


@pytest.mark.parametrize("way", PULLED)
def test_a_hundred_pulled(way: str, steady: Steady) -> None:
    settling, expected = PULLED[way]
    receiver = Receiver(steady, settling)
    publish_all()
    settled(receiver.subscriber, receiver.receive).check(expected)
