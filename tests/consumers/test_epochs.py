"""Consumers walk through the epochs of a topic: in order for each key, and nothing stands still."""

import random
import threading
from collections import defaultdict
from typing import Any

import pytest

from sqlqueue import Reject, Retry, publish
from sqlqueue.core.keys import partition_of
from sqlqueue.log.collect import collect
from sqlqueue.log.groups import register
from sqlqueue.models import BlockedRange, DeliveryState, Message, PartitionLease
from sqlqueue.operations.move import move
from sqlqueue.operations.reschedule import reschedule
from tests import epochs
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.progress import dead_letter_offsets, keys_of_partitions, wait_until_settled

KEYS = [f"key-{number}" for number in range(12)]


class Course:
    """Publishes to several epochs, and notes what is handled: (key, number) in the order of the beginnings."""

    def __init__(self) -> None:
        self.began: list[tuple[str, int]] = []
        self.published: dict[str, int] = defaultdict(int)
        self.troubles: dict[tuple[str, int], Exception] = {}
        self._lock = threading.Lock()

    def publish(self, rounds: int = 3) -> None:
        """Publish so many messages of each key to the topic's last epoch."""
        for _ in range(rounds):
            for key in KEYS:
                epochs.publish_into("t", self.published[key], key)
                self.published[key] += 1

    def trouble(self) -> None:
        """Let some messages fail once, others for good."""
        chosen = random.Random(4).sample([(key, n) for key in KEYS for n in range(self.published[key])], 12)
        for number, one in enumerate(chosen):
            self.troubles[one] = Retry(delay=0.2) if number % 2 else Reject("for good")

    def __call__(self, delivery: Any) -> None:
        with self._lock:
            self.began.append((delivery.key, delivery.payload))
        trouble = self.troubles.get((delivery.key, delivery.payload))
        if isinstance(trouble, Reject) or (trouble and delivery.attempt == 1):
            raise trouble

    __qualname__ = "Course"

    def check(self, *, ordered: bool = True) -> None:
        """Each key's messages were handled, in their order; one that failed came again before the next."""
        wait_until_settled("t", "g")
        by_key: dict[str, list[int]] = defaultdict(list)
        for key, number in self.began:
            by_key[key].append(number)
        for key, count in self.published.items():
            assert set(by_key[key]) == set(range(count)), key
            assert not ordered or by_key[key] == sorted(by_key[key]), key


@pytest.fixture
def course(consuming: Consuming, settings: Any) -> Course:
    settings.SQLQUEUE = {**QUICK, "HEARTBEAT_INTERVAL": 0.2}
    return Course()


def asynchronous(course: Course) -> Any:
    async def handle(delivery: Any) -> None:
        course(delivery)

    return handle


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"atomic": True},
        {"atomic": True, "commit_every": 10},
        {"ordering": "partition"},
        {"ordering": "none"},
    ],
    ids=lambda options: "-".join(options) + "-" + str(options.get("ordering", "")),
)
def test_three_epochs(consuming: Consuming, course: Course, options: dict[str, Any]) -> None:
    consuming.consumer("t", course, group="g", backoff=0.01, **options)
    walk(consuming, course, troubles="commit_every" not in options)  # one that fails lets others be called again
    course.check(ordered=options.get("ordering") != "none")


def test_three_epochs_with_an_asynchronous_handler(consuming: Consuming, course: Course) -> None:
    consuming.consumer("t", asynchronous(course), group="g")
    walk(consuming, course)
    course.check()


def test_three_epochs_in_batches(consuming: Consuming, course: Course) -> None:
    def handle(deliveries: list[Any]) -> None:
        for delivery in deliveries:
            course(delivery)

    consuming.consumer("t", handle, group="g", batch=True, batch_size=7)
    walk(consuming, course, troubles=False)
    course.check()


def walk(consuming: Consuming, course: Course, troubles: bool = True) -> None:
    """Let two subscribers go through three epochs, of which the last begins meanwhile."""
    register(LOG, "g", "t")
    course.publish()
    epochs.alter("t", 6)
    course.publish()
    if troubles:
        course.trouble()
    consuming.start()
    epochs.begin("t", 3)
    course.publish()
    consuming.start()
    epochs.end("t")
    course.publish()


def test_only_what_shares_keys_with_a_delayed_message_waits(consuming: Consuming, course: Course) -> None:
    register(LOG, "g", "t")
    course.troubles["key-0", 0] = Retry(delay=3600)
    consuming.consumer("t", course, group="g")
    course.publish()
    epochs.alter("t", 8)
    course.publish()
    consuming.start()
    behind = {key for key in KEYS if partition_of(key, 4) == partition_of("key-0", 4)}
    free = {(key, n) for key in KEYS for n in range(6) if key not in behind}
    first = {(key, n) for key in behind for n in range(3)} - {("key-0", 1), ("key-0", 2)}
    wait_until(lambda: set(course.began) >= free | first, message=lambda: str(course.began))
    wait_until(lambda: BlockedRange.objects.exists() or DeliveryState.objects.count() >= 3)
    assert set(course.began) == free | first
    (row,) = DeliveryState.objects.filter(retry_count=1, acked=False)
    reschedule(LOG, "g", "t", [row.message_offset])
    course.check()


def test_dead_letters_hold_nothing_up(consuming: Consuming, course: Course) -> None:
    register(LOG, "g", "t")
    offset = epochs.publish_into("t", 0, "key-0")
    course.published["key-0"] = 1
    course.troubles["key-0", 0] = Reject("for good")
    epochs.alter("t", 4)
    course.publish()
    consuming.consumer("t", course, group="g")
    consuming.drain()
    course.check()
    assert dead_letter_offsets("t", "g") == [offset]


def test_draining_goes_through_all_epochs(consuming: Consuming, course: Course) -> None:
    consuming.consumer("t", course, group="g")
    for partitions in (3, 5, 1):
        course.publish()
        epochs.alter("t", partitions)
    course.publish()
    consuming.drain()
    course.check()


def test_a_rewind_is_in_order_too(consuming: Consuming, course: Course) -> None:
    consuming.consumer("t", course, group="g")
    course.publish()
    epochs.alter("t", 6)
    course.publish()
    consuming.start()
    consuming.start()
    for _ in range(3):
        course.check()
        course.began.clear()
        move(LOG, "g", "t", 0)
    course.check()


def test_messages_for_another_group_at_an_epochs_end_hold_nothing_up(consuming: Consuming, course: Course) -> None:
    register(LOG, "g", "t")
    register(LOG, "other", "t")
    for key in keys_of_partitions(4):
        offset = publish("t", {}, key=key).offset
        Message.objects.filter(offset=offset).update(target_group="other")
    epochs.alter("t", 4)
    course.publish()
    consuming.consumer("t", course, group="g")
    consuming.start()
    course.check()


def test_what_a_filter_leaves_out_at_an_epochs_end_holds_nothing_up(consuming: Consuming, course: Course) -> None:
    consuming.consumer("t", course, group="g", where={"key": "key-0"})
    register(LOG, "g", "t")
    for key in keys_of_partitions(4):
        publish("t", {}, key=f"not {key}")
    epochs.alter("t", 4)
    epochs.publish_into("t", 0, "key-0")
    course.published["key-0"] = 1
    consuming.start()
    course.check()


def test_a_retired_epoch_is_given_up(consuming: Consuming, course: Course, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "HEARTBEAT_INTERVAL": 0.2, "RETENTION": 0.001}
    consuming.consumer("t", course, group="g")
    course.publish()
    epochs.alter("t", 2)
    host = consuming.start()
    course.publish()
    course.check()

    def gone() -> bool:
        collect(LOG)
        return len(epochs.epochs("t")) == 1

    wait_until(gone)
    course.publish()
    course.check()
    wait_until(lambda: {ref.partition for each in host.subscriber.subscriptions for ref in each.assigned} == {4, 5})
    assert set(PartitionLease.objects.values_list("partition", flat=True)) == {4, 5}
