"""No group waits for the handlers of others: what these keep waiting gets a thread of its own."""

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.consumers.engine import reserved_threads
from sqlqueue.models import PartitionLease
from tests.consuming import Consuming
from tests.processes import wait_until

pytestmark = [pytest.mark.once, pytest.mark.of_time]

# Beyond STARVED_AFTER: what a busy machine takes to notice, claim and start.
SOON = reserved_threads.STARVED_AFTER + 4.0
MINUTES = 600
LONG = {"ordering": "none", "visibility_timeout": MINUTES}


class Long:
    """A group whose handlers run until the test ends, or lets them."""

    def __init__(self, consuming: Consuming, topic: str = "videos", **options: Any) -> None:
        self.topic, self.gate, self.running = topic, consuming.gate(), 0
        consuming.consumer(topic, self, **{"group": "long", **LONG, **options})

    def __call__(self, given: object) -> None:
        self.running += 1
        self.gate.wait()

    def publish(self, count: int) -> None:
        publish_many(self.topic, range(count))


def noting(consuming: Consuming, topic: str, **options: Any) -> list[Any]:
    """Register a quick group, and return the list of the payloads that it has handled."""
    seen: list[Any] = []

    def handle(given: Any) -> None:
        seen.extend(each.payload for each in (given if options.get("batch") else [given]))

    consuming.consumer(topic, handle, group="quick", **options)
    return seen


def handler_threads() -> int:
    return sum("sqlqueue-handler" in thread.name for thread in threading.enumerate())


def within(seconds: float, happened: Callable[[], Any]) -> None:
    wait_until(happened, timeout=seconds, message="a group waits for another one's handlers")


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("first", [True, False])
def test_every_other_group_goes_on_while_one_groups_handlers_take_every_thread(
    consuming: Consuming, threads: int, first: bool
) -> None:
    """The long ones first, or after the others' messages."""
    long = Long(consuming)
    seen = {topic: noting(consuming, topic) for topic in ("orders", "mails")}

    def publish_quick() -> None:
        for topic in seen:
            publish_many(topic, [NewMessage(number, key=str(number % 7)) for number in range(40)])

    if not first:
        publish_quick()
    long.publish(3 * threads)
    consuming.start(threads=threads)
    wait_until(lambda: long.running == threads)
    if first:
        publish_quick()
    within(SOON, lambda: all(seen.values()))
    wait_until(lambda: all(len(some) == 40 for some in seen.values()))
    for some in seen.values():
        assert sorted(some) == list(range(40))
        assert all(sorted(part) == part for part in ([n for n in some if n % 7 == key] for key in range(7)))
    publish("orders", "later")
    within(SOON, lambda: seen["orders"][-1] == "later")
    assert long.running == threads


@pytest.mark.parametrize(
    "options", [{"batch": True}, {"atomic": True}, {"atomic": True, "commit_every": 10}, {"ordering": "partition"}]
)
def test_groups_of_every_kind_get_a_thread_of_their_own(consuming: Consuming, options: dict[str, Any]) -> None:
    long = Long(consuming)
    seen = noting(consuming, "orders", **options)
    long.publish(4)
    consuming.start(threads=2)
    wait_until(lambda: long.running == 2)
    publish_many("orders", range(30))
    within(SOON, lambda: seen)
    wait_until(lambda: sorted(seen) == list(range(30)))


def test_more_groups_than_there_are_threads_share_those_that_come_on_top(consuming: Consuming) -> None:
    long = Long(consuming)
    topics = [f"t{number}" for number in range(6)]
    seen = {topic: noting(consuming, topic) for topic in topics}
    long.publish(3)
    consuming.start(threads=1)
    wait_until(lambda: long.running)
    for topic in topics:
        publish_many(topic, range(20))
    within(SOON, lambda: all(seen.values()))
    wait_until(lambda: all(len(some) == 20 for some in seen.values()))


def test_async_groups_go_on_beside_one_whose_coroutines_take_all_the_room(consuming: Consuming) -> None:
    running, open_at_last = [], threading.Event()
    seen: list[object] = []

    @consuming.consumer("videos", group="long", **LONG)
    async def wait(delivery) -> None:
        running.append(1)
        while not open_at_last.is_set():
            await asyncio.sleep(0.02)

    @consuming.consumer("orders", group="quick")
    async def note(delivery) -> None:
        seen.append(delivery.payload)

    publish_many("videos", range(20))
    consuming.start(threads=2)
    try:
        wait_until(lambda: len(running) >= 4)
        publish_many("orders", range(20))
        within(SOON, lambda: seen)
        wait_until(lambda: sorted(seen) == list(range(20)))
    finally:
        open_at_last.set()


def test_there_are_as_many_threads_again_at_most_and_they_end_when_they_are_idle(consuming: Consuming) -> None:
    before = handler_threads()
    long = Long(consuming)
    others = [Long(consuming, f"long{number}", group=f"g{number}") for number in range(4)]
    long.publish(9)
    consuming.start(threads=2)
    wait_until(lambda: long.running == 2)
    for other in others:
        other.publish(3)
    wait_until(lambda: sum(other.running for other in others) == 2)
    time.sleep(1.5 * reserved_threads.STARVED_AFTER)
    assert (sum(other.running for other in others), handler_threads() - before) == (2, 4)
    for one in (long, *others):
        one.gate.set()
    wait_until(lambda: handler_threads() - before == 2)
    wait_until(lambda: (long.running, [other.running for other in others]) == (9, [3] * 4))


def test_a_handler_that_hangs_in_a_thread_of_its_groups_own_is_superseded(consuming: Consuming) -> None:
    long = Long(consuming)
    gate, seen = consuming.gate(), []

    @consuming.consumer("orders", group="hangs", visibility_timeout=0.5, backoff=0, max_attempts=3)
    def hang(delivery) -> None:
        seen.append((delivery.payload, delivery.attempt))
        if delivery.payload == "hangs" and delivery.attempt == 1:
            gate.wait()

    long.publish(4)
    consuming.start(threads=2)
    wait_until(lambda: long.running == 2)
    publish_many("orders", [NewMessage("hangs", key="a"), NewMessage("next", key="a")])
    within(2 * SOON, lambda: seen == [("hangs", 1), ("hangs", 2), ("next", 1)])


def test_each_message_is_handled_once_while_threads_of_their_own_come_and_go(consuming: Consuming) -> None:
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for topic, seconds in (("slow", 0.4), ("a", 0.001), ("b", 0.0), ("c", 0.05)):

        def handle(delivery, topic: str = topic, seconds: float = seconds) -> None:
            time.sleep(seconds)
            counts[topic][delivery.payload] += 1

        consuming.consumer(topic, handle, group="g", ordering="none" if topic == "slow" else "key")
    publish_many("slow", range(20))
    for topic in "abc":
        publish_many(topic, [NewMessage(number, key=str(number % 5)) for number in range(40)])
    consuming.drain(threads=2)
    assert {topic: (len(some), set(some.values())) for topic, some in counts.items()} == {
        "slow": (20, {1}),
        **dict.fromkeys("abc", (40, {1})),
    }


def holders_of(topic: str) -> set[str]:
    leases = PartitionLease.objects.filter(topic=topic, consumer_group="quick")
    return set(leases.values_list("holder", flat=True)) - {""}


class Full:
    """A process whose threads, and those that come on top, run long handlers; another one gets to know of `quick`."""

    def __init__(self, consuming: Consuming, count: int) -> None:
        """count: how many processes with a thread each these handlers take up."""
        self.longs = [Long(consuming, f"long{number}", group=f"long{number}") for number in range(2 * count)]
        self.seen = noting(consuming, "orders")
        self.host = consuming.start(threads=1)
        for long in self.longs[:2]:
            long.publish(1)
        wait_until(lambda: self.running == 2)

    @property
    def running(self) -> int:
        return sum(long.running for long in self.longs)

    def publish_quick(self) -> None:
        publish_many("orders", [NewMessage(number, key=str(number)) for number in range(40)])


@pytest.mark.parametrize("first", [True, False])
def test_a_process_without_any_thread_left_gives_up_the_partitions_of_groups_that_wait(
    consuming: Consuming, first: bool
) -> None:
    """The other process is there before the messages, or comes later."""
    full = Full(consuming, 1)
    if first:
        consuming.start(threads=1)
        wait_until(lambda: len(holders_of("orders")) == 2)
    full.publish_quick()
    if not first:
        time.sleep(1.5 * reserved_threads.GIVEN_UP_AFTER)
        assert not full.seen, "no thread is left, and no other process"
        consuming.start(threads=1)
    within(SOON, lambda: len(full.seen) == 40)
    assert full.running == 2
    assert full.host.name not in holders_of("orders")
    full.longs[0].gate.set()
    within(SOON, lambda: full.host.name in holders_of("orders"))


def test_full_processes_do_not_give_partitions_to_and_fro(consuming: Consuming) -> None:
    full = Full(consuming, 2)
    consuming.start(threads=1)
    wait_until(lambda: len(holders_of("orders")) == 2)
    for long in full.longs[2:]:
        long.publish(1)
    within(3 * SOON, lambda: full.running == 4)
    full.publish_quick()
    wait_until(lambda: len(holders_of("orders")) == 1)
    wait_until(lambda: PartitionLease.objects.filter(topic="orders", holder="").count() == 0)
    tokens = sorted(PartitionLease.objects.values_list("pk", "fencing_token"))
    time.sleep(2 * reserved_threads.GIVEN_UP_AFTER)
    assert sorted(PartitionLease.objects.values_list("pk", "fencing_token")) == tokens
    assert not full.seen
    full.longs[2].gate.set()
    full.longs[0].gate.set()
    within(SOON, lambda: len(full.seen) == 40)


def test_a_process_that_has_withdrawn_comes_back_when_the_other_one_dies(consuming: Consuming) -> None:
    full = Full(consuming, 1)
    other = consuming.start(threads=1)
    full.publish_quick()
    within(SOON, lambda: len(full.seen) == 40)
    wait_until(lambda: holders_of("orders") == {other.name})
    other.stop()
    wait_until(lambda: holders_of("orders") == {full.host.name})


def test_a_group_that_has_got_a_thread_is_not_given_up_for_having_waited(
    consuming: Consuming, caplog: pytest.LogCaptureFixture
) -> None:
    full = Full(consuming, 1)
    publish("orders", "one")
    time.sleep(1.5 * reserved_threads.GIVEN_UP_AFTER)
    for long in full.longs:
        long.gate.set()
    within(SOON, lambda: full.seen)
    consuming.start(threads=1)
    wait_until(lambda: len(holders_of("orders")) == 2)
    assert "no_thread_left" not in caplog.text
