"""Partitions are shared fairly among those who are there, and never handled by two at once."""

import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connections
from pytest_django import Settings

from sqlqueue import NewMessage, publish_many
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.models import PartitionLease, SubscriberHeartbeat
from tests.consumer_processes import GROUP, QUICK, Consumers, effects, holders, wait_for_shares
from tests.processes import wait_until
from tests.progress import let_a_round_pass, wait_until_settled
from tests.subscribers import RunningSubscriber, consumer

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "shared"


@pytest.fixture(autouse=True)
def quick(settings: Settings) -> Settings:
    settings.SQLQUEUE = {
        "TOPICS": {TOPIC: {"partitions": 12}},
        "LEASE_DURATION": 60,
        "HEARTBEAT_INTERVAL": 1,
        "BALANCE_INTERVAL": 0.05,
        "IDLE_POLL_INTERVAL": 0.05,
        "FLUSH_INTERVAL": 0.1,
    }
    return settings


def partition_topic(settings: Settings, partitions: int) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {TOPIC: {"partitions": partitions}}}


class Watched:
    """Handlers of several subscribers, which note who handles what: and that no other is at the same partition."""

    def __init__(self, pause: float = 0.002) -> None:
        self._lock = threading.Lock()
        self._pause = pause
        self._at: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.intruders: list[str] = []
        self.handled = 0
        self.ids_by_key: defaultdict[str, list[str]] = defaultdict(list)
        self.subscribers: defaultdict[int, set[str]] = defaultdict(set)

    def subscriber(self, name: str) -> RunningSubscriber:
        """Return a subscriber whose handlers are watched."""

        def handle(delivery: Delivery) -> None:
            self._enter(name, delivery)
            time.sleep(self._pause)
            self._leave(name, delivery)

        return RunningSubscriber(consumer(TOPIC, handle), name=name, threads=2)

    @property
    def counts(self) -> Counter[str]:
        """How often each message was handled."""
        with self._lock:
            return Counter(name for ids in self.ids_by_key.values() for name in ids)

    def has_worked(self, *subscribers: RunningSubscriber) -> bool:
        """Tell whether all of these have handled something."""
        with self._lock:
            return {subscriber.name for subscriber in subscribers} <= set().union(*self.subscribers.values())

    def _enter(self, name: str, delivery: Delivery) -> None:
        with self._lock:
            others = {other for other, count in self._at[delivery.partition].items() if count and other != name}
            if others:
                self.intruders.append(f"{name} at {delivery!r} together with {others}")
            self._at[delivery.partition][name] += 1
            self.subscribers[delivery.partition].add(name)

    def _leave(self, name: str, delivery: Delivery) -> None:
        with self._lock:
            self._at[delivery.partition][name] -= 1
            self.ids_by_key[delivery.key].append(delivery.id)
            self.handled += 1


def shares(partitions: int) -> list[int]:
    """Return how many partitions each live subscriber holds, the fullest first; [] while not all are held."""
    found = holders(TOPIC)
    alive = set(SubscriberHeartbeat.objects.alive().values_list("subscriber", flat=True))
    if found[""] or sum(found.values()) != partitions or not set(found) <= alive:
        return []
    return sorted((found[name] for name in alive), reverse=True)


def wait_for(expected: list[int]) -> None:
    """Return when the partitions are shared like this."""
    wait_until(lambda: shares(sum(expected)) == expected, message=lambda: f"{shares(sum(expected))}, not {expected}")


def wait_until_stable(subscribers: list[RunningSubscriber]) -> None:
    """Return when no partition has changed its owner while every subscriber has balanced some times."""

    def stayed() -> bool:
        before = tokens()
        since = [subscriber.subscriber._balance_at for subscriber in subscribers]
        for subscriber, at in zip(subscribers, since, strict=True):
            wait_until(lambda subscriber=subscriber, at=at: subscriber.subscriber._balance_at > at + 0.2)
        return tokens() == before

    wait_until(stayed, message="partitions wander for ever")


def tokens() -> list[int]:
    """Return every partition's fencing token, which grows with each change of owner."""
    return list(PartitionLease.objects.order_by("partition").values_list("fencing_token", flat=True))


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [(5, [3, 2]), (12, [3, 3, 2, 2, 2]), (2, [1, 1, 0, 0])],
    ids=["5 on 2", "12 on 5", "2 on 4"],
)
def test_partitions_are_shared_fairly_and_then_stay(settings: Settings, partitions: int, expected: list[int]) -> None:
    partition_topic(settings, partitions)
    watched = Watched()
    subscribers = [watched.subscriber(f"subscriber-{number}") for number in range(len(expected))]
    with ExitStack() as running:
        for subscriber in subscribers:
            running.enter_context(subscriber)
        wait_for(expected)
        wait_until_stable(subscribers)
        assert shares(partitions) == expected
        rounds = let_a_round_pass(TOPIC, GROUP)
    assert watched.counts == dict.fromkeys(rounds, 1)


class SteadyPublisher:
    """Publishes batches, each key's messages in order, until the `with` block ends; no faster than handlers are."""

    KEYS = 40

    def __init__(self, watched: Watched, pause: float) -> None:
        self._watched, self._pause = watched, pause
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ids_by_key: defaultdict[str, list[str]] = defaultdict(list)

    def __enter__(self) -> "SteadyPublisher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.wait(self._pause):
                if self.KEYS * number > self._watched.handled + 4 * self.KEYS:
                    continue
                number += 1
                keys = [f"key {each}" for each in range(self.KEYS)]
                publish_many(TOPIC, [NewMessage({}, key=key, id=f"{key} {number}") for key in keys])
                for key in keys:
                    self.ids_by_key[key].append(f"{key} {number}")
        finally:
            connections.close_all()


def test_joiners_get_a_share_leavers_give_theirs_and_no_partition_is_handled_by_two_at_once(settings: Settings) -> None:
    watched = Watched(pause=0.005)
    with watched.subscriber("first"), SteadyPublisher(watched, pause=0.1) as publisher:
        wait_for([12])
        for turn in range(3):
            second, third, fourth = (watched.subscriber(f"{name}-{turn}") for name in ("second", "third", "fourth"))
            with second:
                wait_for([6, 6])
                with third, fourth:
                    wait_for([3, 3, 3, 3])
                    wait_until(lambda: watched.has_worked(second, third, fourth))  # noqa: B023
                wait_for([6, 6])
            wait_for([12])
        publisher.__exit__()
        wait_until_settled(TOPIC, GROUP)
        rounds = let_a_round_pass(TOPIC, GROUP)
    assert not watched.intruders
    handled = {key: ids for key, ids in watched.ids_by_key.items() if key.startswith("key ")}
    assert handled == publisher.ids_by_key, "each key's messages come once each, in their order"
    assert len(watched.counts) == len(rounds) + sum(map(len, handled.values()))
    assert max(map(len, watched.subscribers.values())) > 1, "no partition has moved"


@pytest.fixture
def consumer_options(settings: Settings) -> dict[str, Any]:
    """Leases that end soon after their holder."""
    settings.SQLQUEUE = {**QUICK, "LEASE_DURATION": 5}
    return settings.SQLQUEUE


def test_a_killed_consumers_partitions_move_when_its_leases_end(consumers: Consumers) -> None:
    survivor, victim = consumers.start("steady", processes=0), consumers.start("steady", processes=0)
    subscribers = wait_for_shares("steady", 2)
    victim.kill()
    (lost,) = [name for name, pid in subscribers.items() if pid == victim.pid]
    for number in range(20):
        consumers.publish("steady", f"{number}")
    ends = dict(PartitionLease.objects.filter(holder=lost).values_list("partition", "valid_until"))
    leases = PartitionLease.objects.filter(partition__in=ends).annotate(now=DatabaseNow())

    def all_have_moved() -> bool:
        found = list(leases.values_list("partition", "holder", "now"))
        moved = [(partition, now) for partition, holder, now in found if holder != lost]
        assert all(now >= ends[partition] for partition, now in moved), "a lease was taken before it ended"
        return len(moved) == len(ends)

    assert len(ends) == 2
    wait_until(lambda: len(effects()) >= 5, message="the survivor does not go on with its own")
    wait_until(all_have_moved)
    wait_until_settled("steady", GROUP)
    assert set(holders("steady")) == set(subscribers) - {lost}
    assert effects() == {(f"{number}", 1): 1 for number in range(20)}
    survivor.terminate()
    assert survivor.wait() == 0, survivor.output
