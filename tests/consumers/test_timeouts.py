"""Visibility timeouts: a handler that overruns is superseded, and one that asks for more time is not.

Who is not to overrun asks for minutes at once: a slow machine is no overrun.
"""

import threading
import time

import pytest
from django.db import transaction

from sqlqueue import NewMessage, Retry, publish, publish_many
from sqlqueue.log.groups import revoke
from sqlqueue.models import Message
from sqlqueue.signals import delivery_settled
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming, states
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.once

SOON, MINUTES = 0.5, 300


def test_a_handler_that_overruns_is_superseded_and_its_outcome_ignored(consuming: Consuming) -> None:
    gate, attempts, raised = consuming.gate(), [], threading.Event()

    @consuming.consumer("t", visibility_timeout=SOON, backoff=0, max_attempts=3)
    def handle(delivery) -> None:
        if delivery.attempt > 1:
            delivery.extend(MINUTES)
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            gate.wait()
            raised.set()
            raise ValueError("too late")

    publish("t", 1, key="a")
    host = consuming.start()
    wait_until(lambda: attempts == [1, 2])
    gate.set()
    assert raised.wait(30)
    consuming.drain()
    host.stop()
    assert attempts == [1, 2]
    assert (states("t"), Message.objects.filter(topic="t_dlq").count()) == ([], 0)


def test_the_reason_is_kept(consuming: Consuming) -> None:
    gate = consuming.gate()
    consuming.consumer("t", lambda delivery: gate.wait(), visibility_timeout=0.2, max_attempts=1)
    publish("t", 1)
    consuming.start()
    wait_until(lambda: Message.objects.filter(topic="t_dlq").exists())
    assert "still running after its visibility timeout" in Message.objects.get(topic="t_dlq").last_error


@pytest.mark.parametrize("batch", [False, True])
def test_handlers_that_never_return_keep_nothing_else_waiting(consuming: Consuming, batch: bool) -> None:
    """More of them than may be in flight at once, and fewer than end the process."""
    gate = consuming.gate()
    seen: list[object] = []

    @consuming.consumer("t", visibility_timeout=0.2, max_attempts=3, backoff=0, batch=batch)
    def handle(given) -> None:
        deliveries = given if batch else [given]
        if any(delivery.payload == "hangs" for delivery in deliveries):
            gate.wait()
            return
        seen.extend(delivery.payload for delivery in deliveries)

    publish("t", "hangs", key="a")
    consuming.start(threads=1)
    wait_until(lambda: Message.objects.filter(topic="t_dlq").exists())
    publish_many("t", range(20))
    wait_until(lambda: sorted(seen, key=str) == sorted(range(20), key=str))


def test_of_a_batch_that_hangs_each_comes_again_when_its_own_time_is_over(consuming: Consuming) -> None:
    gate = consuming.gate()
    again: list[object] = []

    @consuming.consumer("t", visibility_timeout=0.2, backoff=0, batch=True)
    def handle(deliveries) -> None:
        if deliveries[0].attempt == 1:
            deliveries[0].extend(1.0)
            gate.wait()
        else:
            again.extend(delivery.payload for delivery in deliveries)

    publish_many("t", [NewMessage(number, key="a") for number in range(3)])
    consuming.start(threads=1)
    wait_until(lambda: sorted(again, key=str) == [0, 1, 2])


def test_a_handler_that_hangs_while_its_partition_is_lost_keeps_nothing_waiting(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 2, "HEARTBEAT_INTERVAL": 0.5}
    gate = consuming.gate()
    seen: list[object] = []

    @consuming.consumer("t", visibility_timeout=1.5, ordering="none")
    def handle(delivery) -> None:
        if delivery.payload == "hangs" and delivery.attempt == 1:
            gate.wait()
        seen.append(delivery.payload)

    publish("t", "hangs")
    host = consuming.start(threads=1)
    wait_until(lambda: len(host.subscriber.in_flight))
    with transaction.atomic():
        revoke(LOG, "default", "t")
    publish_many("t", range(20))
    wait_until(lambda: len(seen) == 21)
    wait_until(lambda: not len(host.subscriber.in_flight))


def test_a_process_with_too_many_that_hang_has_failed(consuming: Consuming) -> None:
    gate = consuming.gate()
    consuming.consumer("t", lambda delivery: gate.wait(), visibility_timeout=0.1, max_attempts=1, ordering="none")
    publish_many("t", range(40))
    host = consuming.start(threads=1, drain=True)
    wait_until(lambda: not host.running)
    assert host.subscriber.failed
    assert host.subscriber.anything_due()


def test_a_drain_waits_for_the_redelivery(consuming: Consuming) -> None:
    attempts: list[int] = []
    again = consuming.gate()

    @consuming.consumer("t", visibility_timeout=SOON, backoff=0)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            again.wait()
        else:
            delivery.extend(MINUTES)
            again.set()

    publish("t", 1)
    consuming.drain()
    assert attempts == [1, 2]
    assert states("t") == []


def test_it_is_announced_with_the_time_that_it_took(consuming: Consuming) -> None:
    gate, seconds = consuming.gate(), []

    def hear(**facts: object) -> None:
        seconds.append(facts["seconds"])

    consuming.consumer("t", lambda delivery: gate.wait(), visibility_timeout=0.2, max_attempts=1)
    publish("t", 1)
    delivery_settled.connect(hear)
    began = time.monotonic()
    try:
        consuming.start()
        wait_until(lambda: seconds)
    finally:
        delivery_settled.disconnect(hear)
    assert 0.2 <= seconds[0] <= time.monotonic() - began


def test_the_outcome_of_an_earlier_attempt_is_not_taken_for_a_later_ones(consuming: Consuming) -> None:
    first, second = consuming.gate(), consuming.gate()
    attempts: list[int] = []
    returned = threading.Event()

    @consuming.consumer("t", visibility_timeout=SOON, backoff=0)
    def handle(delivery) -> None:
        if delivery.attempt > 1:
            delivery.extend(MINUTES)
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            first.wait()
            returned.set()
            return
        second.wait()
        raise Retry("the second attempt failed", delay=60)

    offset = publish("t", 1).offset
    host = consuming.start()
    wait_until(lambda: attempts == [1, 2])
    first.set()
    assert returned.wait(30)
    publish("t", 2)
    second.set()
    wait_until(lambda: states("t") != [] and states("t")[0] == (offset, 2, False) and attempts.count(1) == 2)
    host.stop()
    assert states("t")[0] == (offset, 2, False)


def test_the_timeout_starts_with_the_handler_and_not_with_the_fetch(consuming: Consuming) -> None:
    attempts: list[int] = []

    @consuming.consumer("t", visibility_timeout=2)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        time.sleep(0.25)

    for number in range(10):
        publish("t", number, key="a")
    consuming.drain(threads=1)
    assert attempts == [1] * 10


def test_extend_gives_a_handler_more_time(consuming: Consuming) -> None:
    attempts: list[int] = []

    @consuming.consumer("t", visibility_timeout=1.5, backoff=0)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        for _ in range(4):
            delivery.extend(seconds=2)
            time.sleep(0.5)

    publish("t", 1)
    consuming.drain()
    assert attempts == [1]


@pytest.mark.database("mariadb", "mysql", "postgresql")  # SQLite's one writer is the handler, until it ends
@pytest.mark.parametrize("ordering", ["key", "partition", "none"])
def test_an_atomic_handler_that_overruns_is_rolled_back(consuming: Consuming, ordering: str) -> None:
    gate = consuming.gate()
    ended = threading.Event()

    @consuming.consumer("t", visibility_timeout=SOON, backoff=0, atomic=True, ordering=ordering)
    def handle(delivery) -> None:
        if delivery.attempt > 1:
            delivery.extend(MINUTES)
        Effect.objects.create(name="attempt", value=str(delivery.attempt))
        if delivery.attempt == 1:
            gate.wait()
            ended.set()

    publish("t", 1, key="a")
    host = consuming.start()
    wait_until(lambda: list(Effect.objects.values_list("value", flat=True)) == ["2"])
    gate.set()
    assert ended.wait(30)
    host.stop()
    consuming.drain()
    assert list(Effect.objects.values_list("value", flat=True)) == ["2"]
    assert states("t") == []


def test_the_message_that_hangs_holds_back_its_own_key_alone(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    gate, seen = consuming.gate(), []

    @consuming.consumer("t", visibility_timeout=0.3, max_attempts=1)
    def handle(delivery) -> None:
        if delivery.payload == "hangs":
            gate.wait()
        seen.append(delivery.payload)

    publish("t", "hangs", key="a")
    publish("t", "behind", key="a")
    for number in range(20):
        publish("t", number, key=f"k{number}")
    consuming.start(threads=1)  # its only thread hangs, and is replaced
    wait_until(lambda: len(seen) == 21)
    assert "hangs" not in seen


def test_when_too_many_handlers_hang_the_consumer_ends(consuming: Consuming) -> None:
    gate = consuming.gate()
    consuming.consumer("t", lambda delivery: gate.wait(), visibility_timeout=0.1, max_attempts=1)
    for number in range(40):
        publish("t", number, key=str(number))
    host = consuming.start(threads=2)
    wait_until(lambda: not host.running)
