"""Batch handlers: up to batch_size deliveries in one call."""

import threading

import pytest

from sqlqueue import NewMessage, Postpone, Reject, Retry, publish, publish_many
from sqlqueue.core.keys import partition_of
from sqlqueue.models import Message
from tests import subscribers
from tests.consuming import QUICK, Consuming, states
from tests.processes import wait_until
from tests.progress import keys_of_partitions, wait_until_settled

pytestmark = pytest.mark.once

ONE_PARTITION = {**QUICK, "PARTITIONS": 1, "FLUSH_INTERVAL": 60.0}  # what a slow batch holds up would get rows


@pytest.fixture
def one_partition(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = ONE_PARTITION


@pytest.mark.usefixtures("one_partition")
@pytest.mark.parametrize("atomic", [False, True])
class TestSizes:
    def test_batches_are_full_while_there_is_enough_and_in_order(self, consuming: Consuming, atomic: bool) -> None:
        batches: list[list[int]] = []

        @consuming.consumer("t", batch=True, batch_size=10, atomic=atomic)
        def handle(deliveries) -> None:
            batches.append([delivery.payload for delivery in deliveries])

        publish_many("t", [NewMessage(number, key=f"k{number % 3}") for number in range(35)])
        consuming.drain()
        assert [number for batch in batches for number in batch] == list(range(35))
        assert [len(batch) for batch in batches] == [10, 10, 10, 5]

    def test_one_message_is_a_batch_too(self, consuming: Consuming, atomic: bool) -> None:
        batches: list[list[int]] = []

        @consuming.consumer("t", batch=True, atomic=atomic)
        def handle(deliveries) -> None:
            batches.append([delivery.payload for delivery in deliveries])

        publish("t", 1)
        consuming.drain()
        assert batches == [[1]]

    @pytest.mark.parametrize("ordering", ["key", "partition", "none"])
    def test_each_is_in_one_batch(self, consuming: Consuming, atomic: bool, ordering: str) -> None:
        seen: list[int] = []

        @consuming.consumer("t", batch=True, batch_size=7, atomic=atomic, ordering=ordering)
        def handle(deliveries) -> None:
            seen.extend(delivery.payload for delivery in deliveries)

        publish_many("t", [NewMessage(number, key=f"k{number % 4}") for number in range(200)])
        consuming.drain()
        assert sorted(seen) == list(range(200))
        if ordering != "none":
            for remainder in range(4):
                mine = [number for number in seen if number % 4 == remainder]
                assert mine == sorted(mine)


@pytest.mark.parametrize("atomic", [False, True])
class TestFailures:
    @pytest.mark.parametrize("ordering", ["key", "none"])
    def test_only_the_bad_message_dies(self, consuming: Consuming, settings, atomic: bool, ordering: str) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        batches: list[list[int]] = []
        done: list[int] = []

        @consuming.consumer("t", batch=True, batch_size=10, atomic=atomic, ordering=ordering, max_attempts=3, backoff=0)
        def handle(deliveries) -> None:
            numbers = [delivery.payload for delivery in deliveries]
            batches.append(numbers)
            if 4 in numbers:
                raise ValueError("four")
            done.extend(numbers)

        publish_many("t", [NewMessage(number, key=f"k{number}") for number in range(10)])
        consuming.drain()
        assert batches[0] == list(range(10))
        assert sorted(done) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert batches.count([4]) == 3
        (dead_letter,) = Message.objects.filter(topic="t_dlq")
        assert (dead_letter.payload, dead_letter.failure_count) == (4, 3)
        assert states("t") == []

    def test_a_key_keeps_its_order_through_a_failed_batch(self, consuming: Consuming, settings, atomic: bool) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        done: list[int] = []
        failed: list[int] = []

        @consuming.consumer("t", batch=True, batch_size=5, atomic=atomic, backoff=0)
        def handle(deliveries) -> None:
            numbers = [delivery.payload for delivery in deliveries]
            if 3 in numbers and len(failed) < 2:
                failed.append(3)
                raise Retry(delay=0)
            done.extend(numbers)

        publish_many("t", [NewMessage(number, key="a") for number in range(12)])
        consuming.drain()
        assert done == list(range(12))

    def test_reject_of_a_batch_rejects_each_of_it(self, consuming: Consuming, settings, atomic: bool) -> None:
        settings.SQLQUEUE = ONE_PARTITION

        @consuming.consumer("t", batch=True, batch_size=10, atomic=atomic)
        def handle(deliveries) -> None:
            raise Reject("all of them")

        publish_many("t", range(3))
        consuming.drain()
        dead_letters = Message.objects.filter(topic="t_dlq")
        assert sorted(dead_letters.values_list("payload", "last_error")) == [(n, "all of them") for n in range(3)]

    def test_postpone_charges_none_of_it(self, consuming: Consuming, settings, atomic: bool) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        attempts: list[int] = []

        @consuming.consumer("t", batch=True, batch_size=10, atomic=atomic, max_attempts=2)
        def handle(deliveries) -> None:
            attempts.extend(delivery.attempt for delivery in deliveries)
            if len(attempts) < 12:
                raise Postpone(delay=0)

        publish_many("t", range(3))
        consuming.drain()
        assert set(attempts) == {1}
        assert not Message.objects.filter(topic="t_dlq").exists()


class TestTogether:
    def test_batches_of_different_partitions_run_side_by_side(self, consuming: Consuming) -> None:
        together = threading.Barrier(3)
        keys = {}
        for number in range(50):
            keys.setdefault(partition_of(f"k{number}", 4), f"k{number}")

        consuming.consumer("t", lambda deliveries: together.wait(30), batch=True)
        for partition in range(3):
            publish("t", 1, key=keys[partition])
        consuming.drain(threads=3)
        assert not together.broken

    def test_a_batch_that_overruns_comes_back_one_by_one(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        gate, batches = consuming.gate(), []

        @consuming.consumer("t", batch=True, visibility_timeout=0.5, backoff=0)
        def handle(deliveries) -> None:
            if deliveries[0].attempt > 1:
                deliveries[0].extend(seconds=300)
            batches.append([(delivery.payload, delivery.attempt) for delivery in deliveries])
            if len(batches) == 1:
                gate.wait()

        publish_many("t", range(3))
        consuming.start()
        wait_until(lambda: len(batches) == 4)
        assert sorted(batches[1:]) == [[(0, 2)], [(1, 2)], [(2, 2)]]


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_consumers_of_a_group_with_batches_of_one_and_of_five_share_its_messages(
    consuming: Consuming, settings, ordering: str
) -> None:
    """As while processes of yesterday's release still run beside those of today's."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 6, "BALANCE_INTERVAL": 0.05}
    keys = keys_of_partitions(6)
    seen: dict[str, list[int]] = {key: [] for key in keys}
    sizes: dict[int, list[int]] = {1: [], 5: []}
    lock = threading.Lock()

    def handling(size: int):
        def handle(deliveries) -> None:
            with lock:
                sizes[size].append(len(deliveries))
                for delivery in deliveries:
                    seen[delivery.key].append(delivery.payload)

        return subscribers.consumer("t", handle, batch=True, batch_size=size, ordering=ordering)

    with (
        subscribers.RunningSubscriber(handling(1), name="one") as one,
        subscribers.RunningSubscriber(handling(5), name="five") as five,
    ):
        wait_until(lambda: len(one.holding()) == len(five.holding()) == 3)
        publish_many("t", [NewMessage(number, key=key) for number in range(50) for key in keys])
        wait_until_settled("t", "default")
    if ordering == "key":
        assert seen == {key: list(range(50)) for key in keys}
    assert {key: sorted(numbers) for key, numbers in seen.items()} == {key: list(range(50)) for key in keys}
    assert set(sizes[1]) == {1}
    assert max(sizes[5]) == 5
    assert sum(sizes[1]) == sum(sizes[5]) == 150, "not each its half"
