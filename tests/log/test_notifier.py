"""The notifier: a publish wakes sleeping consumers; a notification is empty, and a consumer that misses it polls."""

import socket
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue import publish, publish_many
from sqlqueue.leases import heartbeat
from sqlqueue.log import notifier, wake_ups
from sqlqueue.models import SubscriberHeartbeat
from tests.consuming import QUICK, Consuming
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
        for module in (notifier, wake_ups):
            monkeypatch.setattr(module, "time", self)
        wake_ups.forget()
        notifier._notified_at.clear()

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

    doorbell = notifier.Listener("127.0.0.1", heard)
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
        doorbells = [notifier.Listener("127.0.0.1", event.set) for event in heard]
        gone = notifier.Listener("127.0.0.1", lambda: None)
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
            heartbeat.beat("default", f"s{number}", [("g", "t")], 300, address)
        wake_ups.forget()
        try:
            publish("t", 1)
            assert all(event.wait(30) for event in heard)
        finally:
            for doorbell in doorbells:
                doorbell.close()
            wake_ups.forget()

    @pytest.mark.skipif(sys.platform != "linux", reason="no other system tells that no process listens there")
    def test_what_takes_the_place_of_a_consumer_that_is_gone_is_woken_by_the_first_message(
        self, transactional_db: None, settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "WAKE": True}
        former, present = notifier.Listener("127.0.0.1", lambda: None), threading.Semaphore(0)
        heartbeat.beat("default", "former", [("g", "t")], 300, former.address)
        clock = Clock(monkeypatch)
        publish("t", 1)
        former.close()
        clock.now += wake_ups.CHANGING_LAST
        successor = notifier.Listener("127.0.0.1", present.release)
        heartbeat.beat("default", "present", [("g", "t")], 300, successor.address)
        try:
            publish("t", 2)  # refused by the former one
            if not present.acquire(timeout=1):  # a refusal may be known a moment later
                clock.now += wake_ups.CHANGING_LAST
                publish("t", 3)
                assert present.acquire(timeout=30)
        finally:
            successor.close()

    def test_the_first_consumer_is_woken_soon(
        self, transactional_db: None, settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "WAKE": True}
        clock = Clock(monkeypatch)
        publish("t", 1)
        present = threading.Semaphore(0)
        first = notifier.Listener("127.0.0.1", present.release)
        heartbeat.beat("default", "first", [("g", "t")], 300, first.address)
        clock.now += wake_ups.CHANGING_LAST
        try:
            publish("t", 2)
            assert present.acquire(timeout=30)
        finally:
            first.close()

    def test_publishers_read_the_addresses_seldom(
        self, transactional_db: None, settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "WAKE": True}
        publish("t", 0)
        only = notifier.Listener("127.0.0.1", lambda: None)
        heartbeat.beat("default", "only", [("g", "t")], 300, only.address)
        clock = Clock(monkeypatch)
        counts: list[int] = []
        try:
            for _ in range(50):
                with CaptureQueriesContext(connection) as queries:
                    publish("t", 1)
                counts.append(sum("heartbeat" in query["sql"] for query in queries))
                clock.now += wake_ups.ADDRESSES_LAST / 25
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
        doorbell = notifier.Listener("127.0.0.1", lambda: None)
        doorbell.close()
        assert not doorbell._thread.is_alive()

    def test_a_subscriber_shows_its_address_while_it_runs(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "WAKE": True}
        consuming.consumer("t", lambda delivery: None)
        host = consuming.start()
        assert SubscriberHeartbeat.objects.get().address.startswith("127.0.0.1:")
        host.stop()
        assert not SubscriberHeartbeat.objects.exists()


def test_polling_is_the_safety_net(consuming: Consuming, monkeypatch) -> None:
    monkeypatch.setattr("sqlqueue.log.adding.notify_after_commit", lambda alias: None)
    seen: list[object] = []
    asleep(consuming, seen)
    publish("t", "second")
    wait_until(lambda: seen == ["first", "second"], timeout=30)
