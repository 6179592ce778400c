"""Only the control thread touches what is known of a partition; handlers and the lease renewer know its lease."""

import threading
import time
from itertools import islice

import pytest
from django.db import transaction

from sqlqueue import LeaseLost, Retry, publish_many, subscribe
from sqlqueue.core.outcomes import SUCCESS
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import ConsumerOptions, HeldLease, PartitionRef
from sqlqueue.core.settle_plan import Attempt
from sqlqueue.log.groups import revoke
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming
from tests.control_threads import Guard, guarded
from tests.factories import MessageValueFactory
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def quick(settings: object) -> None:
    settings.SQLQUEUE = QUICK | {"HEARTBEAT_INTERVAL": 0.05}


def test_handlers_of_every_kind_leave_it_alone(consuming: Consuming, control_threads: Guard) -> None:
    seen = []

    def look(delivery) -> None:
        seen.append((delivery.topic, delivery.partition, delivery.priority, delivery.group, delivery.attempt))
        delivery.extend(30)
        if delivery.offset % 5 == 0 and delivery.attempt == 1:
            raise Retry("once more", delay=0)

    def look_at_each(deliveries) -> None:
        for delivery in deliveries:
            look(delivery)

    def write(delivery) -> None:
        Effect.objects.create(name=f"{delivery.group} {delivery.offset}")
        look(delivery)

    async def look_later(delivery) -> None:
        look(delivery)

    async def look_at_each_later(deliveries) -> None:
        look_at_each(deliveries)

    consuming.consumer("t", look, group="each")
    consuming.consumer("t", look_at_each, group="batch", batch=True)
    consuming.consumer("t", write, group="atomic", atomic=True)
    consuming.consumer("t", look_at_each, group="together", atomic=True, batch=True)
    consuming.consumer("t", look_later, group="loop")
    consuming.consumer("t", look_at_each_later, group="loop-batch", batch=True)
    publish_many("t", range(40))
    consuming.drain()
    assert {group for *_, group, _ in seen} == {"each", "batch", "atomic", "together", "loop", "loop-batch"}
    assert not control_threads.trespasses


def test_an_overrun_and_a_lost_lease_are_noticed_without_it(consuming: Consuming, control_threads: Guard) -> None:
    lost = []

    def late(delivery) -> None:
        if delivery.attempt == 1:
            for _ in range(1_000):
                try:
                    delivery.check_lease()
                except LeaseLost:
                    lost.append(delivery.group)
                    raise
                time.sleep(0.01)

    consuming.consumer("t", late, group="late", visibility_timeout=0.3, backoff=0)
    consuming.consumer("t", late, group="revoked")
    publish_many("t", [1])
    host = consuming.start()
    wait_until(lambda: len(host.subscriber.dispatcher.in_flight))
    wait_until(lambda: "late" in lost)
    with transaction.atomic():
        revoke(LOG, "revoked", "t")
    wait_until(lambda: "revoked" in lost)
    host.stop()
    assert not control_threads.trespasses


def test_a_receiver_leaves_it_alone(consuming: Consuming, control_threads: Guard) -> None:
    publish_many("t", range(10))
    received = []

    def receive() -> None:
        with subscribe("t", timeout=60) as deliveries:
            for delivery in islice(deliveries, 10):
                received.append(delivery.partition)
                delivery.ack()

    receiver = threading.Thread(target=receive, name="receiver")  # the main thread is a test's own
    receiver.start()
    receiver.join(60)
    assert len(received) == 10
    assert not control_threads.trespasses


def test_the_guard_sees_a_thread_that_touches_it() -> None:
    with guarded() as guard:
        stream = AssignedPartition(
            PartitionRef("g", "t", 0), ConsumerOptions(), id=1, token=1, position=0, watermark=0, claimed=0
        )
        thread = threading.Thread(target=lambda: setattr(stream, "window", stream.window), name="other-1")
        thread.start()
        thread.join()
    assert guard.trespasses == {"other reads window", "other writes window"}


def test_the_guard_sees_who_writes_an_outcome() -> None:
    with guarded() as guard:
        attempt = Attempt(HeldLease(PartitionRef("g", "t", 0), 1, 1), MessageValueFactory(), 1)
        assert not guard.writers
        attempt.outcome = SUCCESS
        assert guard.writers == {"test_the_guard_sees_who_writes_an_outcome"}
        attempt.outcome = SUCCESS
    assert "a second write" in guard.writers
