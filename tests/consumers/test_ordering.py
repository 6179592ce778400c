"""Order: what may start before what, for each `ordering`, with several threads, failures and retries."""

import random
import threading
import time
from collections import defaultdict

import pytest

from sqlqueue import NewMessage, Postpone, Retry, publish, publish_many
from sqlqueue.core.keys import partition_of
from tests.consuming import QUICK, Consuming, offset_row
from tests.processes import wait_until

pytestmark = pytest.mark.once

ONE_PARTITION = {**QUICK, "PARTITIONS": 1}


class Watch:
    """Notes who starts and ends, and how many are at work at once, by queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.running: dict[str, int] = defaultdict(int)
        self.most: dict[str, int] = defaultdict(int)

    def begin(self, queue: str, number: int) -> None:
        with self._lock:
            self.running[queue] += 1
            self.most[queue] = max(self.most[queue], self.running[queue])
            self.events[queue].append(("start", number))

    def end(self, queue: str, number: int, how: str = "done") -> None:
        with self._lock:
            self.running[queue] -= 1
            self.events[queue].append((how, number))

    def done(self, queue: str) -> list[int]:
        return [number for how, number in self.events[queue] if how == "done"]

    def started(self, queue: str) -> list[int]:
        return [number for how, number in self.events[queue] if how == "start"]

    def overtakings(self, queue: str) -> list[tuple[int, int]]:
        """Return (earlier, later): a later one had started before an earlier one of the queue was done."""
        found = []
        settled: set[int] = set()
        begun: set[int] = set()
        for how, number in self.events[queue]:
            if how == "start":
                found += [(earlier, number) for earlier in range(number) if earlier not in settled]
                begun.add(number)
            elif how == "done":
                settled.add(number)
        return found


def flaky(watch: Watch, queue_of, seed: int = 7):
    """Return a handler that fails now and then, in every way, and is done in the end."""
    chance = random.Random(seed)

    def handle(delivery) -> None:
        queue, number = queue_of(delivery), delivery.payload
        watch.begin(queue, number)
        time.sleep(chance.random() / 500)
        fate = chance.random()
        if delivery.attempt < 5 and fate < 0.3:
            watch.end(queue, number, "failed")
            if fate < 0.1:
                raise Retry(delay=0.01)
            if fate < 0.2:
                raise Postpone(delay=0)
            raise ValueError(number)
        watch.end(queue, number)

    return handle


class TestKey:
    @pytest.mark.parametrize("partitions", [1, 3])
    def test_order_per_key_holds_with_many_threads_and_failures(
        self, consuming: Consuming, settings, partitions: int
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": partitions}
        watch = Watch()
        handle = flaky(watch, lambda delivery: delivery.key)
        consuming.consumer("t", handle, max_attempts=9, backoff=0.01)
        keys = [f"k{number}" for number in range(6)]
        publish_many("t", [NewMessage(number, key=key) for number in range(20) for key in keys])
        consuming.drain(threads=8)
        while any(len(watch.done(key)) < 20 for key in keys):
            consuming.drain(threads=8)
        for key in keys:
            assert watch.done(key) == list(range(20))
            assert watch.overtakings(key) == []
            assert watch.most[key] == 1
        assert any(how == "failed" for key in keys for how, _ in watch.events[key])

    def test_different_keys_of_one_partition_are_handled_side_by_side(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        together = threading.Barrier(3)
        consuming.consumer("t", lambda delivery: together.wait(30))
        for key in ("a", "b", "c"):
            publish("t", 1, key=key)
        consuming.drain(threads=3)
        assert not together.broken

    def test_messages_without_a_key_are_handled_side_by_side(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        together = threading.Barrier(3)
        consuming.consumer("t", lambda delivery: together.wait(30))
        publish_many("t", [1, 2, 3])
        consuming.drain(threads=3)
        assert not together.broken

    def test_a_failing_message_holds_back_its_own_key_and_no_other(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        watch = Watch()

        @consuming.consumer("t")
        def handle(delivery) -> None:
            watch.begin(delivery.key, delivery.payload)
            if delivery.key == "bad" and delivery.payload == 1:
                raise Retry(delay=60)
            watch.end(delivery.key, delivery.payload)

        for number in range(4):
            for key in ("bad", "good", "better", ""):
                publish("t", number, key=key)
        consuming.drain()
        assert watch.done("good") == watch.done("better") == sorted(watch.done("")) == [0, 1, 2, 3]
        assert watch.started("bad") == [0, 1]
        publish("t", 4, key="bad")
        publish("t", 4, key="good")
        consuming.drain()
        assert watch.done("good") == [0, 1, 2, 3, 4]
        assert watch.started("bad") == [0, 1]

    def test_what_waited_behind_a_failed_message_follows_it_in_order(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        seen: list[tuple[int, int]] = []

        @consuming.consumer("t")
        def handle(delivery) -> None:
            seen.append((delivery.payload, delivery.attempt))
            if delivery.payload == 0 and delivery.attempt < 3:
                raise Retry(delay=0.05)

        for number in range(5):
            publish("t", number, key="a")
        host = consuming.start()
        wait_until(lambda: len(seen) == 7)
        host.stop()
        assert seen == [(0, 1), (0, 2), (0, 3), (1, 1), (2, 1), (3, 1), (4, 1)]

    def test_one_stuck_key_does_not_hold_its_partition(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        gate, seen = consuming.gate(), []

        @consuming.consumer("t")
        def handle(delivery) -> None:
            if delivery.key == "stuck":
                gate.wait()
            seen.append((delivery.key, delivery.payload))

        stuck = publish("t", 0, key="stuck").offset
        publish("t", 1, key="stuck")
        for number in range(300):
            publish("t", number, key=f"k{number % 10}")
        host = consuming.start(threads=2)
        wait_until(lambda: len(seen) == 300)
        # The position passes the stuck one, the watermark does not.
        wait_until(lambda: offset_row("t").position == stuck + 301)
        assert offset_row("t").offset_acked == stuck - 1
        gate.set()
        wait_until(lambda: len(seen) == 302)
        host.stop()
        assert [entry for entry in seen if entry[0] == "stuck"] == [("stuck", 0), ("stuck", 1)]
        assert offset_row("t").offset_acked == stuck + 301


class TestPartition:
    def test_order_holds_over_all_keys_with_many_threads_and_failures(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": 2}
        watch = Watch()
        numbers: dict[int, int] = {}

        def queue_of(delivery) -> str:
            return str(delivery.partition)

        handle = flaky(watch, queue_of)
        consuming.consumer("t", handle, ordering="partition", max_attempts=9, backoff=0.01)
        for _ in range(25):
            for key in keys_of(0)[:2] + keys_of(1)[:2]:
                partition = partition_of(key, 2)
                publish("t", numbers.setdefault(partition, 0), key=key)  # they count within a partition
                numbers[partition] += 1
        while sum(len(watch.done(queue)) for queue in ("0", "1")) < 100:
            consuming.drain(threads=6)
        for queue in ("0", "1"):
            assert watch.done(queue) == list(range(numbers[int(queue)]))
            assert watch.overtakings(queue) == []
            assert watch.most[queue] == 1

    def test_a_failed_message_holds_its_partition_and_no_other(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": 2}
        seen: list[tuple[str, int]] = []
        bad, other = keys_of(0)[0], keys_of(1)[0]

        @consuming.consumer("t", ordering="partition")
        def handle(delivery) -> None:
            seen.append((delivery.key, delivery.payload))
            if delivery.key == bad:
                raise Retry(delay=60)

        for number in range(3):
            publish("t", number, key=bad)
            publish("t", number, key=other)
        consuming.drain()
        assert [entry for entry in seen if entry[0] == bad] == [(bad, 0)]
        assert [entry for entry in seen if entry[0] == other] == [(other, 0), (other, 1), (other, 2)]

    def test_a_rejected_message_holds_nothing(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        seen: list[int] = []

        @consuming.consumer("t", ordering="partition", max_attempts=1)
        def handle(delivery) -> None:
            seen.append(delivery.payload)
            if delivery.payload == 1:
                raise ValueError

        for number in range(4):
            publish("t", number)
        consuming.drain()
        assert seen == [0, 1, 2, 3]


class TestNone:
    def test_nothing_waits_for_a_failed_message_of_its_key(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        seen: list[int] = []

        @consuming.consumer("t", ordering="none")
        def handle(delivery) -> None:
            seen.append(delivery.payload)
            if delivery.payload == 0:
                raise Retry(delay=60)

        for number in range(5):
            publish("t", number, key="a")
        consuming.drain()
        assert sorted(seen) == [0, 1, 2, 3, 4]

    def test_messages_of_one_key_are_handled_side_by_side(self, consuming: Consuming) -> None:
        together = threading.Barrier(4)
        consuming.consumer("t", lambda delivery: together.wait(30), ordering="none")
        for number in range(4):
            publish("t", number, key="a")
        consuming.drain(threads=4)
        assert not together.broken

    def test_each_is_delivered_once_with_many_threads_and_failures(self, consuming: Consuming) -> None:
        watch = Watch()
        handle = flaky(watch, lambda delivery: "")
        consuming.consumer("t", handle, ordering="none", max_attempts=9, backoff=0.01)
        publish_many("t", [NewMessage(number, key="a") for number in range(150)])
        while len(watch.done("")) < 150:
            consuming.drain(threads=6)
        consuming.drain()
        assert sorted(watch.done("")) == list(range(150))


def keys_of(partition: int) -> list[str]:
    """Return keys that belong to this partition, of two."""
    return [key for key in (f"k{number}" for number in range(20)) if partition_of(key, 2) == partition]
