"""Another session locks the table of the heartbeats: publishers go on, and consumers with what they own."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from django.db import connection, transaction
from pytest_django import Settings

from sqlqueue import call, publish
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.leases import heartbeat
from sqlqueue.log import notifier
from sqlqueue.log.notifier import Listener
from sqlqueue.models import PartitionLease, SubscriberHeartbeat
from sqlqueue.operations.topics import pause, resume
from sqlqueue.signals import lease_lost
from tests.consuming import QUICK, Consuming, Host
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql", "postgresql")]

AT_ONCE = 0.5  # seconds: far less than anything that waits for the lock


@contextmanager
def locked_heartbeats() -> Iterator[None]:
    """Lock the table, as ALTER TABLE does, for reads and writes of all others."""
    with closing(connection.copy()) as another, another.cursor() as cursor:
        if another.vendor == "mysql":
            cursor.execute("LOCK TABLES sqlqueue_subscriber_heartbeat WRITE")
        else:
            another.set_autocommit(False)
            cursor.execute("LOCK TABLE sqlqueue_subscriber_heartbeat IN ACCESS EXCLUSIVE MODE")
        try:
            yield
        finally:
            cursor.execute("UNLOCK TABLES" if another.vendor == "mysql" else "ROLLBACK")


def publishing(payload: object) -> float:
    """Return how many seconds a publish takes."""
    notifier.waker_of(LOG)._notified_at.clear()
    began = time.monotonic()
    publish("orders", payload)
    return time.monotonic() - began


def test_a_publisher_does_not_wait_for_the_addresses_of_those_whom_it_wakes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = {**QUICK, "WAKE": True}
    monkeypatch.setattr(notifier, "ADDRESSES_LAST", 0.0)
    rung = threading.Semaphore(0)
    with closing(Listener("127.0.0.1", rung.release)) as listener:
        heartbeat.beat(LOG, "one", [("ship", "orders")], 300, listener.address)
        notifier.forget()
        with locked_heartbeats():
            assert publishing(1) < AT_ONCE, "of no addresses"
        publishing(2)
        assert rung.acquire(timeout=30)
        with locked_heartbeats():
            assert publishing(3) < AT_ONCE
            assert rung.acquire(timeout=30), "the addresses that were known have been forgotten"
            began = time.monotonic()
            with transaction.atomic():
                publish("orders", 4)
            assert time.monotonic() - began < AT_ONCE


def consume(consuming: Consuming) -> tuple[Host, list[object]]:
    seen: list[object] = []

    @consuming.consumer("orders", group="ship")
    def ship(delivery) -> str:
        seen.append(delivery.payload)
        return f"shipped {delivery.payload}"

    publish("orders", "first")
    host = consuming.start()
    wait_until(lambda: seen == ["first"])
    return host, seen


def test_what_is_owned_is_consumed_settled_and_renewed_meanwhile_and_what_waits_is_woken(
    consuming: Consuming, settings: Settings
) -> None:
    short = {"LEASE_DURATION": 2.0, "HEARTBEAT_INTERVAL": 0.4, "BALANCE_INTERVAL": 0.5, "IDLE_POLL_INTERVAL": 60}
    settings.SQLQUEUE = {**QUICK, **short, "WAKE": True}
    lost: list[object] = []
    lease_lost.connect(lambda **fields: lost.append(fields), weak=False, dispatch_uid="lost")
    notifier.forget()
    host, seen = consume(consuming)
    publishing("known")  # the addresses are
    wait_until(lambda: "known" in seen)
    try:
        with locked_heartbeats():
            until = time.monotonic() + 2 * short["LEASE_DURATION"]
            while time.monotonic() < until:
                began, payload = time.monotonic(), len(seen)
                assert publishing(payload) < AT_ONCE
                wait_until(lambda payload=payload: payload in seen)
                assert time.monotonic() - began < 2 * AT_ONCE + 1, "the loop waits for the lock"
                time.sleep(0.1)
            assert PartitionLease.objects.filter(holder=host.name, valid_until__gt=DatabaseNow()).count() == 4
            began = time.monotonic()
            assert call("orders", "now", timeout=10) == "shipped now"
            assert time.monotonic() - began < 2 * AT_ONCE + 1
        wait_until(SubscriberHeartbeat.objects.alive().exists)
    finally:
        lease_lost.disconnect(dispatch_uid="lost")
    host.stop()
    assert lost == []
    assert len(seen) == len(set(seen))


def test_a_pause_takes_effect_meanwhile(consuming: Consuming, settings: Settings) -> None:
    settings.SQLQUEUE = QUICK
    _, seen = consume(consuming)
    with locked_heartbeats():
        pause(LOG, "orders", "ship")
        publish("orders", "second")
        time.sleep(1)
        publish("orders", "third")
        time.sleep(0.5)
        assert "third" not in seen
        resume(LOG, "orders", "ship")
        wait_until(lambda: "third" in seen)


def test_a_process_ends_meanwhile(consuming: Consuming, settings: Settings) -> None:
    settings.SQLQUEUE = QUICK
    host, _ = consume(consuming)
    with locked_heartbeats():
        began = time.monotonic()
        host.stop(timeout=1)
        assert time.monotonic() - began < 15
        assert not PartitionLease.objects.filter(holder=host.name).exists()
