"""The engine's own threads wait for a lock for some seconds only, and say so; handlers wait as the application does."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from sqlqueue import publish
from sqlqueue.database import lock_timeouts
from sqlqueue.models import Message
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.session import connection_id, end_connection, lock_wait
from tests.transactions import OpenTransaction

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql", "postgresql")]


def test_an_operation_that_waits_for_an_open_transaction_gives_up_and_is_run_again(
    consuming: Consuming, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[str] = []

    @consuming.consumer("orders")
    def handle(delivery) -> None:
        handled.append(delivery.id)

    publish("orders", 0, id="first")
    host = consuming.start()
    wait_until(lambda: handled == ["first"])
    with caplog.at_level(logging.INFO, "sqlqueue"), OpenTransaction() as slow:
        slow.do(lambda: publish("orders", 1, id="same"))
        publish("orders", 2, id="same", delay=0)
        wait_until(lambda: "event=scheduled_message_waits" in caplog.text, message="the scheduler waits in silence")
        slow.commit()
    wait_until(lambda: handled == ["first", "same"])
    host.stop()
    host.join()
    assert Message.objects.get(message_id="same").payload == 1


def test_a_handlers_own_connection_waits_as_long_as_the_servers_default(consuming: Consuming) -> None:
    waits: list[str] = []

    @consuming.consumer("orders")
    def handle(delivery) -> None:
        waits.append(lock_wait())

    publish("orders", 1)
    consuming.drain()
    assert waits == [lock_wait()]


@pytest.mark.database("mariadb", "mysql")
def test_a_connection_that_is_lost_before_a_thread_begins_to_work_ends_no_process() -> None:
    with ThreadPoolExecutor() as other:
        other.submit(end_connection, connection_id()).result()
        other.submit(lambda: connection.close()).result()
    with lock_timeouts.limited(LOG):
        assert lock_wait() == "5"
    connection.close()  # so that later tests have one that waits longer
