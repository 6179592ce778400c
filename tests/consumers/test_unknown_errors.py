"""An error of the database that is not known to be a row's own charges no attempt, refuses nothing and ends no process:
the engine's statement is tried again, and the error is shown meanwhile."""

import threading
from datetime import timedelta

import pytest
from django.db import Error, OperationalError, connection

from sqlqueue import get_status, publish
from sqlqueue.log.schedule import MOST_ERRORS, move_due
from sqlqueue.models import Message, ScheduledMessage, SubscriberHeartbeat
from tests.consuming import Consuming
from tests.failing_statements import failing
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def shown() -> str:
    return " ".join(SubscriberHeartbeat.objects.values_list("failing", flat=True))


def test_a_settle_that_fails_is_written_once_its_cause_is_gone(consuming: Consuming) -> None:
    attempts: list[int] = []
    began, gate = threading.Event(), consuming.gate()

    @consuming.consumer("t", max_attempts=1)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        began.set()
        gate.wait(60)

    publish("t", 1, key="a", id="one")
    host = consuming.start()
    assert began.wait(30)
    with failing("sqlqueue_offset"):
        gate.set()
        wait_until(lambda: "loop: " in host.subscriber.failing())
        wait_until(lambda: "unheard" in shown())  # the doctor's finding, and the metrics'
        assert host.running
    wait_until(lambda: get_status("t", id="one", key="a").groups["default"].state == "acked")
    wait_until(lambda: host.subscriber.failing() == "")
    assert attempts == [1]


@pytest.mark.parametrize("options", [{}, {"commit_every": 10}], ids=["alone", "grouped"])
def test_an_atomic_handler_whose_ack_fails_is_not_charged(consuming: Consuming, options: dict[str, int]) -> None:
    attempts: list[int] = []

    @consuming.consumer("t", atomic=True, max_attempts=1, keep_results=60, **options)
    def handle(delivery) -> str:
        attempts.append(delivery.attempt)
        return "done"

    with failing("sqlqueue_result", "INSERT"):  # a statement of the handlers' own transactions only
        publish("t", 1, key="a", id="one")
        host = consuming.start()
        wait_until(lambda: len(attempts) > 3)
        wait_until(lambda: "handle: " in host.subscriber.failing())
    wait_until(lambda: get_status("t", id="one", key="a").groups["default"].state == "acked")
    assert set(attempts) == {1}


def test_what_an_atomic_handler_raises_itself_is_its_attempt(consuming: Consuming) -> None:
    @consuming.consumer("t", atomic=True, max_attempts=1)
    def handle(delivery) -> None:
        raise OperationalError(1105, "raised by the handler")

    publish("t", 1, key="a", id="one")
    consuming.drain()
    assert get_status("t", id="one", key="a").groups["default"].state == "dead"


@pytest.mark.parametrize("count", [1, MOST_ERRORS + 2])
def test_scheduled_messages_wait_and_are_tried_again_however_many_fail(count: int) -> None:
    for number in range(count):
        publish("t", 1, key=f"{number}", id=f"{number}", delay=timedelta(milliseconds=1))
    with failing("sqlqueue_message", "INSERT"):
        wait_until(raises_in_move_due)
        assert not ScheduledMessage.objects.filter(refused=True).exists()
    wait_until(lambda: move_due(LOG) == 0 and not ScheduledMessage.objects.exists())
    assert Message.objects.filter(topic="t").count() == count


def raises_in_move_due() -> bool:
    try:
        move_due(LOG)
    except Error:
        return True
    return False


@pytest.mark.database("mariadb", "mysql")
def test_a_password_that_is_rotated_charges_nothing(consuming: Consuming) -> None:
    """A handler's thread cannot connect: its transaction is not begun. The sessions that are open stay open."""
    attempts: list[int] = []

    @consuming.consumer("ledger", atomic=True, max_attempts=1)
    def ledger(delivery) -> None:
        attempts.append(delivery.attempt)

    host = consuming.start()
    with connection.cursor() as cursor:
        cursor.execute("SELECT CURRENT_USER()")
        user, _, place = cursor.fetchone()[0].partition("@")
        account, password = f"'{user}'@'{place}'", connection.settings_dict["PASSWORD"]
        cursor.execute(f"ALTER USER {account} IDENTIFIED BY 'another'")
        try:
            publish("ledger", 1, key="a", id="one")
            wait_until(lambda: "ledger: " in host.subscriber.failing())
            assert not attempts
            assert host.running
        finally:
            cursor.execute(f"ALTER USER {account} IDENTIFIED BY '{password}'")
    wait_until(lambda: get_status("ledger", id="one", key="a").groups["default"].state == "acked")
    assert attempts == [1]
