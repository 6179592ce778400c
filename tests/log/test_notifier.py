"""The notifier: a publish wakes sleeping consumers; a notification is empty, and a consumer that misses it polls."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.core.keys import partition_of
from sqlqueue.leases import heartbeat
from sqlqueue.log import notifier
from sqlqueue.log.groups import register
from sqlqueue.log.notifier import Listener
from sqlqueue.models import Message, PartitionLease, SubscriberHeartbeat
from sqlqueue.operations import repartition
from tests.consuming import QUICK, Consuming
from tests.factories import PartitionLeaseFactory
from tests.logs import LOG
from tests.processes import ManageCommands, wait_until

# So long that a consumer that misses the notification fails the test.
SLEEPY = {**QUICK, "POLL_INTERVAL": 40.0, "IDLE_POLL_INTERVAL": 60.0, "BALANCE_INTERVAL": 60.0, "LEASE_DURATION": 60.0}


@pytest.fixture
def rings(transactional_db: None, settings):
    """When this process was notified."""
    settings.SQLQUEUE = QUICK
    heard: list[float] = []
    stop = notifier.listen(lambda: heard.append(time.monotonic()))
    yield heard
    stop()


def asleep(consuming: Consuming, seen: list[object]) -> None:
    """Start a subscriber that has looked once, and sleeps now."""
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    publish("t", "first")
    host = consuming.start()
    wait_until(lambda: seen == ["first"])
    wait_until(lambda: host.subscriber.idle)
    time.sleep(0.1)


class Clock:
    """The clock by which publishers know how old the addresses are; they have read none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = time.monotonic()
        monkeypatch.setattr(notifier, "time", self)
        notifier.forget()

    def monotonic(self) -> float:
        self.now += notifier.QUIET
        return self.now


@contextmanager
def ringing(before=lambda: None):
    """A listener that releases a semaphore at each notification, and what sends datagrams to it."""
    rung = threading.Semaphore(0)

    def heard() -> None:
        before()
        rung.release()

    doorbell = Listener("127.0.0.1", heard)
    host, _, port = doorbell.address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        try:
            yield rung, lambda datagram: stranger.sendto(datagram, (host, int(port)))
        finally:
            doorbell.close()


class TestInThisProcess:
    def test_a_publish_wakes_a_sleeping_subscriber(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = SLEEPY
        seen: list[object] = []
        asleep(consuming, seen)
        publish("t", "second")
        wait_until(lambda: seen == ["first", "second"], timeout=30)

    def test_the_commit_notifies_and_not_the_publish(self, rings: list[float]) -> None:
        publish("t", 1)
        rings.clear()
        with transaction.atomic():
            publish("t", 2)
            publish_many("t", [3, 4])
            assert rings == []
        assert len(rings) == 1

    def test_a_rollback_notifies_no_listener(self, rings: list[float]) -> None:
        with transaction.atomic():
            publish("t", 1)
            transaction.set_rollback(True)
        assert rings == []

    def test_a_duplicate_notifies_no_listener(self, rings: list[float]) -> None:
        publish("t", 1, id="x")
        rings.clear()
        publish("t", 1, id="x")
        assert rings == []


class TestFromElsewhere:
    def test_another_processes_publish_wakes_a_sleeping_subscriber(
        self, consuming: Consuming, settings, manage: ManageCommands
    ) -> None:
        settings.SQLQUEUE = {**SLEEPY, "WAKE": True}
        seen: list[object] = []
        asleep(consuming, seen)
        script = "from sqlqueue import publish; publish('t', 'from elsewhere')"
        command = manage("shell", "-v", "0", "-c", script)
        assert command.wait() == 0, command.output
        wait_until(lambda: seen == ["first", "from elsewhere"], timeout=30)

    def test_a_notification_reaches_every_live_address_and_minds_no_dead_one(
        self, transactional_db: None, settings
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "WAKE": True}
        heard = [threading.Event() for _ in range(2)]
        doorbells = [Listener("127.0.0.1", event.set) for event in heard]
        gone = Listener("127.0.0.1", lambda: None)
        gone.close()
        addresses = [
            doorbells[0].address,
            gone.address,
            "nonsense",
            "256.0.0.1:1",
            "127.0.0.1:99999999",
            doorbells[1].address,
        ]
        for number, address in enumerate(addresses):
            heartbeat.beat(LOG, f"s{number}", [("g", "t")], 300, address)
        notifier.forget()
        try:
            publish("t", 1)
            assert all(event.wait(30) for event in heard)
        finally:
            for doorbell in doorbells:
                doorbell.close()
            notifier.forget()

    @pytest.mark.parametrize("former", [True, False], ids=["in the place of one that is gone", "the first"])
    def test_a_new_consumer_is_woken_after_two_seconds_at_most(
        self, transactional_db: None, settings, monkeypatch: pytest.MonkeyPatch, former: bool
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "WAKE": True}
        if former:
            gone = Listener("127.0.0.1", lambda: None)
            heartbeat.beat(LOG, "former", [("g", "t")], 300, gone.address)
            gone.close()
        clock = Clock(monkeypatch)
        publish("t", 1)
        present = threading.Semaphore(0)
        new = Listener("127.0.0.1", present.release)
        heartbeat.beat(LOG, "new", [("g", "t")], 300, new.address)
        clock.now += notifier.ADDRESSES_LAST
        try:
            publish("t", 2)
            assert present.acquire(timeout=30)
        finally:
            new.close()

    def test_publishers_read_the_addresses_seldom(
        self, transactional_db: None, settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "WAKE": True}
        publish("t", 0)
        only = Listener("127.0.0.1", lambda: None)
        heartbeat.beat(LOG, "only", [("g", "t")], 300, only.address)
        clock = Clock(monkeypatch)
        counts: list[int] = []
        try:
            for _ in range(50):
                with CaptureQueriesContext(connection) as queries:
                    publish("t", 1)
                counts.append(sum("heartbeat" in query["sql"] for query in queries))
                clock.now += notifier.ADDRESSES_LAST / 25
        finally:
            only.close()
        assert (sum(counts), counts[0], counts[25]) == (2, 1, 1)

    @pytest.mark.parametrize("datagram", [b"", b"stop", b"\0" * 8, b"x" * 60_000], ids=lambda sent: f"{sent[:4]!r}")
    def test_nothing_that_a_datagram_holds_ends_the_listener(self, datagram: bytes) -> None:
        with ringing() as (rung, send):
            for _ in range(3):
                send(datagram)
                assert rung.acquire(timeout=30)
            send(b"")
            assert rung.acquire(timeout=30)

    def test_a_listener_survives_errors_of_what_it_calls(self) -> None:
        failures = [RuntimeError("one"), OSError("two")]

        def fail() -> None:
            if failures:
                raise failures.pop()

        with ringing(fail) as (rung, send):
            for _ in range(2):
                send(b"")
            wait_until(lambda: not failures)
            send(b"")
            assert rung.acquire(timeout=30)

    def test_a_closed_listener_leaves_no_thread(self) -> None:
        doorbell = Listener("127.0.0.1", lambda: None)
        doorbell.close()
        assert not doorbell._thread.is_alive()

    def test_a_subscriber_shows_its_address_while_it_runs(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "WAKE": True}
        consuming.consumer("t", lambda delivery: None)
        host = consuming.start()
        assert SubscriberHeartbeat.objects.get().address.startswith("127.0.0.1:")
        host.stop()
        assert not SubscriberHeartbeat.objects.exists()


class Crowd:
    """More consumers than are all woken, each with one partition of the topic; `count` of them hear."""

    def __init__(self, count: int):
        self.heard = [0] * count
        self.listeners = [Listener("127.0.0.1", partial(self._hear, number)) for number in range(count)]
        for number, listener in enumerate(self.listeners):
            heartbeat.beat(LOG, f"s{number}", [("g", "t")], 300, listener.address)
            self.give(number, f"s{number}")

    def _hear(self, number: int) -> None:
        self.heard[number] += 1

    def give(self, partition: int, holder: str) -> None:
        leases = PartitionLease.objects.filter(topic="t", consumer_group="g", partition=partition)
        assert leases.update(holder=holder) == 1

    def rung(self) -> list[int]:
        """Who was woken so far. Each hears one datagram more, so that nothing is on its way any more."""
        before = notifier.parsed(self.listeners[0].address)
        assert before is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for number, listener in enumerate(self.listeners):
                for _ in range(2):  # the second one is heard when the first one has been counted
                    stranger.sendto(b"", notifier.parsed(listener.address) or before)
                wait_until(lambda number=number: self.heard[number] >= 2)
        time.sleep(0.05)
        found, self.heard = [number for number, heard in enumerate(self.heard) if heard > 2], [0] * len(self.heard)
        return found

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()


@pytest.fixture
def crowd(transactional_db: None, settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Crowd, Clock]]:
    settings.SQLQUEUE = {**QUICK, "WAKE": True, "TOPICS": {"t": {"partitions": notifier.FEW + 1}}}
    register(LOG, "g", "t")
    crowd, clock = Crowd(notifier.FEW + 1), Clock(monkeypatch)
    publish("t", 0)  # it reads the addresses
    assert crowd.rung() == list(range(notifier.FEW + 1))
    clock.now += notifier.QUIET
    yield crowd, clock
    crowd.close()


def key_of(partition: int) -> str:
    """A key of this partition."""
    return next(key for number in count() if partition_of(key := f"k{number}", notifier.FEW + 1) == partition)


class TestAmongMany:
    def test_those_that_have_the_messages_partitions_are_woken(self, crowd: tuple[Crowd, Clock]) -> None:
        everyone, clock = crowd
        publish("t", 1, key=key_of(3))
        assert everyone.rung() == [3]
        with transaction.atomic():
            publish("t", 1, key=key_of(2))
            publish_many("t", [NewMessage(1, key=key_of(5))])
        assert everyone.rung() == [2, 5]
        everyone.give(3, "s7")
        clock.now += notifier.ADDRESSES_LAST
        publish("t", 1, key=key_of(3))
        assert everyone.rung() == [7]

    def test_all_are_when_messages_are_many_or_something_else_is_to_be_seen(self, crowd: tuple[Crowd, Clock]) -> None:
        everyone, _ = crowd
        publish_many("t", [NewMessage(1, key=key_of(1))] * (notifier.MOST_ROWS + 1))
        assert len(everyone.rung()) == notifier.FEW + 1
        publish_many("t", [NewMessage(1, key=key_of(1))] * notifier.MOST_ROWS)
        assert everyone.rung() == [1]
        publish("t", 1, delay=0.001)
        assert len(everyone.rung()) == notifier.FEW + 1

    def test_a_message_is_looked_for_where_the_layout_has_placed_it(self, crowd: tuple[Crowd, Clock]) -> None:
        everyone, clock = crowd
        repartition.begin(LOG, "t", 2)
        for _ in repartition.Repartition(LOG).run():
            pass
        publish("t", 1, key=key_of(3))
        [partition] = Message.objects.order_by("-offset").values_list("partition", flat=True)[:1]
        assert partition > notifier.FEW
        PartitionLeaseFactory(topic="t", consumer_group="g", partition=partition, holder="s4")
        everyone.rung()
        clock.now += notifier.ADDRESSES_LAST
        publish("t", 2, key=key_of(3))
        assert everyone.rung() == [4]


def test_polling_is_the_safety_net(consuming: Consuming, monkeypatch) -> None:
    monkeypatch.setattr("sqlqueue.log.adding.notify_after_commit", lambda alias, rows: None)
    seen: list[object] = []
    asleep(consuming, seen)
    publish("t", "second")
    wait_until(lambda: seen == ["first", "second"], timeout=30)
