"""A connection that leads to a server of the past, for as long as it lives: what uses it gets another one."""

from typing import Any

import pytest
from django.db import connection, connections

from sqlqueue import publish
from sqlqueue.consumers.background.lease_renewer import LeaseRenewer
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.database.server_identity import Session
from sqlqueue.leases.heartbeat import Shown
from sqlqueue.models import Offset, PartitionLease
from tests.consuming import Consuming
from tests.processes import wait_until
from tests.transactions import OpenTransaction

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql")]


def lead_to_the_past() -> None:
    """Let this thread's connection be known as one to another server."""
    of_thread: Any = connections["default"]
    of_thread.sqlqueue_session = (of_thread.connection, Session("another one", "1 = %s", (0,), shared=False))
    of_thread.close_at = None  # as with CONN_MAX_AGE = None


def test_an_atomic_handler_gets_another_connection(consuming: Consuming) -> None:
    handled: list[int] = []

    def handle(delivery: Any) -> None:
        if not handled:
            lead_to_the_past()
        handled.append(delivery.attempt)

    consuming.consumer("t", handle, atomic=True, max_attempts=3)
    offset = publish("t", {}).offset
    consuming.start(threads=1)
    wait_until(lambda: Offset.objects.filter(offset_acked=offset).exists())
    assert len(handled) == 2


def test_the_lease_renewer_gets_another_connection(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None)
    publish("t", {})
    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.start()
    wait_until(lambda: subscriber.run_once_guarded() >= 0 and bool(subscriber.ownership.leases()))
    renewer = LeaseRenewer(subscriber.ownership, 1.0, Shown, lambda lost: None, Liveness())
    lead_to_the_past()
    renewer.run_once()
    PartitionLease.objects.update(valid_until=None)
    renewer.run_once()
    assert not PartitionLease.objects.filter(valid_until=None).exists()
    subscriber.close()


def test_a_group_that_waits_for_the_logs_end_needs_no_statement_when_the_server_changes(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None, start="latest")
    publish("t", {})
    with OpenTransaction() as slow:
        slow.do(lambda: publish("t", {}))
        publish("t", {})
        subscriber = consuming.subscriber(background_tasks=False)
        subscriber.start()

        def refuse(execute: Any, sql: str, *rest: Any) -> Any:
            raise AssertionError(f"the server may not answer yet: {sql}")

        with connection.execute_wrapper(refuse):
            subscriber.start_over()
    subscriber.close()
