"""The iterations of a subscriber: no partition starves, nothing spins, nothing leaks."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue import Delivery, NewMessage, publish, publish_many
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.consumers.declare.registry import Consumer, build
from sqlqueue.consumers.engine.dispatcher import Room
from sqlqueue.consumers.engine.in_flight import ExecutorLoad
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.engine.throttle import Throttle
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.consumers.handlers.pools import ThreadPool
from sqlqueue.consumers.process import worker
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import ConsumerOptions, PartitionRef
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.models import Topic
from tests.factories import MessageValueFactory
from tests.logs import LOG
from tests.processes import wait_until


def consumer(topic: str, handler: Callable[..., object], **options: object) -> Consumer:
    return replace(build(topic, {"group": "g", **options}), handler=handler)


def assigned_partition(partition: int = 0, priority: int = 0, **options: object) -> AssignedPartition:
    address = PartitionRef("g", "t", partition, priority)
    return AssignedPartition(address, ConsumerOptions(**options), id=1, token=1, position=0, watermark=0, claimed=0)


def attempt() -> Attempt:
    return Attempt(assigned_partition().lease, MessageValueFactory(), 1)


Host = Callable[..., Subscriber]


@pytest.fixture
def host(transactional_db: None, settings: object) -> Iterator[Host]:
    settings.SQLQUEUE = {"PARTITIONS": 1, "WAKE": False, "LEASE_DURATION": 3600}
    started: list[Subscriber] = []

    def make(*consumers: Consumer, **options: object) -> Subscriber:
        subscriber = Subscriber(consumers, background_tasks=False, **options)
        subscriber.start()
        started.append(subscriber)
        return subscriber

    yield make
    for subscriber in started:
        subscriber.stop(timeout=0.0)
        subscriber.close()


def test_what_is_due_wakes_the_scheduler_before_the_log_is_looked_at(host: Host, settings) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "POLL_INTERVAL": 60.0, "IDLE_POLL_INTERVAL": 60.0}
    subscriber = host(consumer("t", lambda delivery: None))
    subscriber.scheduler = scheduler = BackgroundTask(LOG, "scheduler", 3600.0)  # which is not started
    subscriber.run_once()
    publish("t", 1, delay=1.0)  # notifies
    while (pause := subscriber.run_once()) == 0 or pause > 1.0:
        assert not scheduler._due.is_set()
    time.sleep(pause)
    assert not scheduler._due.is_set()
    with CaptureQueriesContext(connection) as queries:
        subscriber.run_once()
    assert scheduler._due.is_set()
    assert not [query for query in queries if "sqlqueue_scheduled_message" in query["sql"]]


@pytest.fixture
def sleeper(host: Host, settings) -> tuple[Subscriber, list[object]]:
    """A subscriber that has nothing to do and sleeps for a minute, and what its handler has seen."""
    settings.SQLQUEUE = {**settings.SQLQUEUE, "POLL_INTERVAL": 60.0, "IDLE_POLL_INTERVAL": 60.0}
    settings.SQLQUEUE |= {"BALANCE_INTERVAL": 60.0}
    seen: list[object] = []
    publish("t", "first")
    subscriber = host(consumer("t", lambda delivery: seen.append(delivery.payload)), pool=InlinePool)
    wait_until(lambda: subscriber.run_once() > 10.0 and seen == ["first"] and subscriber.idle)
    return subscriber, seen


def test_a_notification_leads_to_a_handler_in_the_same_iteration(sleeper: tuple[Subscriber, list[object]]) -> None:
    subscriber, seen = sleeper
    for number in range(5):
        publish("t", number)
        assert subscriber.awake.is_set(), "its thread would sleep on"
        subscriber.run_once()
        assert seen == ["first", *range(number + 1)]
        while subscriber.run_once() == 0.0:  # the outcome is settled
            pass
        subscriber.awake.clear()


def test_a_notification_while_an_iteration_runs_leads_to_another_one_at_once(
    sleeper: tuple[Subscriber, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber, seen = sleeper
    looks: list[int] = []
    look = subscriber.reader.log_end.look

    def notified(*arguments: object) -> bool:
        found = look(*arguments)
        if not looks:
            publish("t", "meanwhile")  # after the look: this one has not seen it
        looks.append(subscriber.reader.log_end.highest)
        return found

    monkeypatch.setattr(subscriber.reader.log_end, "look", notified)
    subscriber.notify()
    assert subscriber.run_once() == 0.0
    assert (len(looks), seen) == (1, ["first"])
    subscriber.run_once()
    assert (len(looks), seen) == (2, ["first", "meanwhile"])


def test_a_paused_topic_costs_no_time(host: Host) -> None:
    seen: list[object] = []
    subscriber = host(consumer("t", seen.append), pool=InlinePool)
    Topic.objects.update(paused=True)
    publish_many("t", range(3))
    for _ in range(3):
        pause = subscriber.run_once()
    assert pause > 0
    assert seen == []
    Topic.objects.update(paused=False)
    subscriber._balance_at = 0.0
    subscriber.run_once()
    assert len(seen) == 3


def test_a_long_batch_does_not_keep_other_consumers_waiting(host: Host) -> None:
    go_on = threading.Event()
    seen: list[object] = []
    publish_many("big", range(100))
    subscriber = host(
        consumer("big", lambda deliveries: go_on.wait(60), batch=True, batch_size=100),
        consumer("small", lambda delivery: seen.append(delivery.payload)),
        threads=2,
    )
    wait_until(lambda: subscriber.run_once() is not None and len(subscriber.in_flight) == 100)
    publish_many("small", range(3))
    try:
        wait_until(lambda: subscriber.run_once() is not None and len(seen) == 3, timeout=30.0)
    finally:
        go_on.set()
    wait_until(lambda: subscriber.run_once() is not None and not len(subscriber.in_flight))
    wait_until(lambda: subscriber.run_once() is not None and not subscriber.in_flight.executions)
    assert subscriber.in_flight._batched == 0


def test_an_event_loop_that_stands_still_does_not_keep_the_threads_waiting(host: Host) -> None:
    go_on, blocked = threading.Event(), threading.Event()
    seen: list[object] = []

    async def block(delivery: Delivery) -> None:
        blocked.set()
        go_on.wait(60)

    publish_many("slow", [NewMessage(number, key=f"{number}") for number in range(40)])
    subscriber = host(consumer("slow", block), consumer("small", lambda d: seen.append(d.payload)), threads=2)
    try:
        wait_until(lambda: subscriber.run_once() is not None and blocked.is_set())
        loop = subscriber.dispatcher.pool._loop
        publish_many("small", range(3))
        wait_until(lambda: subscriber.run_once() is not None and len(seen) == 3)
        assert subscriber.dispatcher.pool._loop is loop, "not only when another loop has taken over"
    finally:
        go_on.set()
    wait_until(lambda: subscriber.run_once() is not None and not subscriber.in_flight.executions, timeout=30.0)


def test_after_its_lease_may_have_ended_nothing_is_dispatched(host: Host) -> None:
    seen: list[object] = []
    subscriber = host(consumer("t", seen.append), pool=InlinePool)
    publish_many("t", range(3))
    subscriber.balance()
    (owned,) = subscriber.ownership.assigned_partitions()
    owned.lease.deadline = subscriber.clock() - 1.0
    statements: list[str] = []

    def record(execute, sql, params, many, context):
        statements.append(sql)
        return execute(sql, params, many, context)

    subscriber.run_once()
    with connection.execute_wrapper(record):
        for _ in range(5):
            subscriber.run_once()
    assert seen == []
    assert not [sql for sql in statements if sql.lstrip().startswith("UPDATE")]
    owned.lease.deadline = subscriber.clock() + 30.0
    subscriber.run_once()
    assert len(seen) == 3


def test_partitions_that_are_equally_urgent_come_first_in_rotation() -> None:
    throttle = Throttle(4)
    partitions = [assigned_partition(partition, priority) for priority in (0, 1) for partition in range(3)]
    firsts, seconds = set(), set()
    for _ in range(3):
        order = list(throttle.rotated(partitions))
        assert [each.ref.priority for each in order] == [0, 0, 0, 1, 1, 1]
        firsts.add(order[0].ref.partition)
        seconds.add(order[3].ref.partition)
    assert firsts == seconds == {0, 1, 2}
    assert list(throttle.rotated([])) == []


@pytest.mark.parametrize("fails", [False, True], ids=["from the log", "from behind a failed message"])
def test_a_key_that_is_alone_is_not_dispatched_one_message_at_a_time(host: Host, fails: bool) -> None:
    seen: list[object] = []

    def handle(delivery: Delivery) -> None:
        if fails and not seen and delivery.attempt == 1:
            raise ValueError
        seen.append(delivery.payload)

    subscriber = host(consumer("t", handle, backoff=0.2), pool=InlinePool, threads=4)
    publish_many("t", [NewMessage(number, key="one") for number in range(400)])
    wait_until(lambda: subscriber.run_once() is not None and bool(seen))
    iterations = 1
    while len(seen) < 400 and iterations < 400:
        subscriber.run_once()
        iterations += 1
    assert seen == list(range(400))
    assert iterations <= 80


def test_many_ordering_queues_share_the_room_among_the_threads() -> None:
    throttle = Throttle(4)

    def most(room: int, queues: int) -> int:
        throttle.target = room
        return Room(throttle, ExecutorLoad(0, 8), [SimpleNamespace(candidates=queues)]).of_ordering_queue

    assert [most(40, queues) for queues in (0, 1, 2, 8, 1000)] == [40, 40, 20, 5, 5]
    assert most(3, 1000) == 1


def test_a_deadline_is_set_before_the_start_can_be_seen() -> None:
    order: list[str] = []

    class Watched(Attempt):
        def __setattr__(self, name: str, value: object) -> None:
            order.append(name)
            super().__setattr__(name, value)

    watched = Watched(assigned_partition().lease, MessageValueFactory(), 1)
    order.clear()
    assert HandlerExecutor(LOG, consumer("t", print)).started([watched])
    assert order.index("deadline") < order.index("started")


def test_a_handler_that_came_back_in_the_last_moment_is_not_counted_as_hanging() -> None:
    ended: list[Execution] = []
    pool = ThreadPool(1, lambda attempt, outcome: None, ended.append)
    runs = []
    for _ in range(40):
        run = Execution(assigned_partition().lease, [attempt()])
        pool.submit(HandlerExecutor(LOG, consumer("t", lambda delivery: None)), run)
        runs.append(run)
    wait_until(lambda: len(ended) == 40)
    wait_until(lambda: not pool._running)
    before = threading.active_count()
    for run in runs:
        pool.abandon(run)
    assert pool.look(time.monotonic())
    assert threading.active_count() == before
    pool.close()


def test_a_handler_that_hangs_is_replaced() -> None:
    go_on, begun = threading.Event(), threading.Event()
    reports: list[Attempt] = []
    pool = ThreadPool(1, lambda attempt, outcome: reports.append(attempt), lambda run: None)

    def hang(delivery: object) -> None:
        begun.set()
        go_on.wait(60)

    hanging = Execution(assigned_partition().lease, [attempt()])
    pool.submit(HandlerExecutor(LOG, consumer("t", hang)), hanging)
    assert begun.wait(30)
    pool.abandon(hanging)
    pool.abandon(hanging)
    other = Execution(assigned_partition().lease, [attempt()])
    pool.submit(HandlerExecutor(LOG, consumer("t", lambda delivery: None)), other)
    wait_until(lambda: reports)
    assert reports == [other.attempts[0]]
    go_on.set()
    wait_until(lambda: not pool._abandoned)
    pool.close()


def test_a_process_whose_supervisor_is_gone_stops_once() -> None:
    class Stopping(Subscriber):
        stops = 0

        def __init__(self) -> None:
            """Nothing but to be stopped."""

        def stop(self, timeout: float | None = None) -> None:
            self.stops += 1

    subscriber = Stopping()
    ours, theirs = Pipe()
    thread = threading.Thread(target=worker._listen, args=(theirs, subscriber.stop), daemon=True)
    thread.start()
    ours.send(worker.STOP)
    wait_until(lambda: subscriber.stops == 1)
    ours.close()
    thread.join(30)
    assert not thread.is_alive()
    assert subscriber.stops == 2


def test_a_stopped_execution_releases_what_has_not_started() -> None:
    run = Execution(assigned_partition().lease, [attempt(), attempt(), attempt()])
    assert run.start_next() is run.attempts[0]
    assert list(run.stop()) == run.attempts[1:]
    assert run.start_next() is None
    assert list(run.stop()) == []


def test_an_idle_subscriber_asks_little_however_many_partitions_it_has(host: Host, settings: object) -> None:
    def statements_of_idle_iterations(partitions: int) -> int:
        settings.SQLQUEUE = {"PARTITIONS": partitions, "WAKE": False, "LEASE_DURATION": 3600}
        subscriber = host(consumer(f"idle{partitions}", print), pool=InlinePool)
        publish_many(f"idle{partitions}", range(5))
        wait_until(lambda: subscriber.run_once() is not None and subscriber.settled == 5)
        wait_until(lambda: subscriber.run_once() is not None and subscriber.idle)
        far = subscriber.clock() + 60.0  # however long the iterations take
        subscriber._balance_at = subscriber._options_at = far
        count = 0

        def record(execute, sql, params, many, context):
            nonlocal count
            count += 1
            return execute(sql, params, many, context)

        with connection.execute_wrapper(record):
            for _ in range(10):
                subscriber._poll_at = 0.0
                subscriber.run_once()
            looks = count
            subscriber.balance()
        assert looks <= 10  # one for each
        return count

    assert statements_of_idle_iterations(4) == statements_of_idle_iterations(200)


def test_balancing_and_taking_cost_as_little_with_a_hundred_subscriptions_as_with_one(
    host: Host, settings: object
) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 2, "WAKE": False, "LEASE_DURATION": 3600}

    def statements(topics: range) -> tuple[int, int]:
        subscriber = host(*(consumer(f"t{number}", print) for number in topics), pool=InlinePool)
        counts: list[int] = []
        for _ in range(2):  # it takes everything, and then has its share

            def record(execute, sql, params, many, context):
                counts[-1] += 1
                return execute(sql, params, many, context)

            counts.append(0)
            with connection.execute_wrapper(record):
                subscriber.balance()
        assert len(subscriber.ownership.leases()) == 2 * len(topics)
        assert subscriber._balance_at <= subscriber.clock() + 3.0
        return counts[0], counts[1]

    few = 4 if connection.vendor == "postgresql" else 3  # where what does not wait takes another one to say so
    assert statements(range(1))[1] == few
    taking, having = statements(range(1, 101))
    assert having == few
    assert taking <= 15


def test_a_pause_is_noticed_within_a_second_however_many_subscriptions_there_are(host: Host) -> None:
    seen: list[object] = []
    subscriber = host(*(consumer("t", seen.append, group=f"g{n}") for n in range(40)), pool=InlinePool)
    subscriber.run_once()
    began = subscriber.clock()
    Topic.objects.update(paused=True)
    publish_many("t", range(3))
    subscriber.clock = lambda: began + 1.0
    subscriber.run_once()
    assert seen == []


def test_what_is_due_in_many_partitions_is_loaded_with_one_statement(host: Host, settings) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "PARTITIONS": 4}
    publish_many("t", [NewMessage(n, key=f"k{n}") for n in range(40)])
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            raise ValueError("at the first attempt")
        seen.append(delivery.partition)

    subscriber = host(consumer("t", handle, backoff=0, ordering="none"), pool=InlinePool)
    loads: list[int] = []  # of the iterations that have loaded something: statements
    while not subscriber.idle or len(seen) < 40:
        with CaptureQueriesContext(connection) as queries:
            subscriber.run_once()
        loads.append(sum("s.message_offset" in query["sql"].replace("`", "").replace('"', "") for query in queries))
    assert len(set(seen)) == 4
    assert max(loads) == 1
