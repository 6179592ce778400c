"""What was decided and could not be written is not forgotten: the process ends without moving past it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from pytest_django import Settings

from sqlqueue import publish
from sqlqueue.models import DeliveryState, Offset, PartitionLease
from tests.consuming import Consuming
from tests.processes import wait_until
from tests.servers.processlist import end_this_threads_connection


@contextmanager
def away(model: type[Model]) -> Iterator[None]:
    """Let every statement on a table fail, in a way that no waiting mends."""
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")


def test_a_process_whose_table_is_missing_stops_and_leaves_its_messages_to_the_next(
    consuming: Consuming, settings: Settings
) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "SHUTDOWN_TIMEOUT": 1.0}
    attempts: list[int] = []
    began, gate = threading.Event(), consuming.gate()

    @consuming.consumer("t", backoff=0)
    def fail_once(delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) == 1:
            began.set()
            gate.wait(60)
            raise ValueError("once")

    publish("t", 1, key="a")
    host = consuming.start()
    assert began.wait(30)
    with away(DeliveryState):
        gate.set()
        host.join()
    assert host.subscriber.failed
    assert attempts == [1]
    PartitionLease.objects.update(valid_until=None, holder="")  # as its supervisor does, or its expiry
    consuming.drain()
    assert attempts == [1, 2]


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_connection_that_is_lost_in_a_release_may_mean_that_the_server_was_restarted(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    consuming.consumer("t", lambda delivery: None)
    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.start()
    try:
        subscriber.run_once()
        release, tries = subscriber.ownership.release, []

        def cut_off(partitions: Any) -> None:
            tries.append(partitions)
            if len(tries) == 1:
                end_this_threads_connection()
            release(partitions)

        monkeypatch.setattr(subscriber.ownership, "release", cut_off)
        held = {one: one.holding for one in subscriber.subscriptions}
        subscriber.settler.release(held, subscriber.clock())
        assert len(tries) == 2
        assert subscriber.ownership.server.doubtful
    finally:
        subscriber.close()


def test_a_table_that_comes_back_in_time_leaves_nothing_charged(consuming: Consuming) -> None:
    attempts: list[int] = []
    began, gate = threading.Event(), consuming.gate()

    @consuming.consumer("t", max_attempts=1)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        began.set()
        gate.wait(60)

    publish("t", 1, key="a")
    host = consuming.start()
    assert began.wait(30)
    with away(Offset):
        gate.set()
        wait_until(lambda: host.subscriber.failed)
    host.join()
    consuming.drain()
    assert attempts == [1]
