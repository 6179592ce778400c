"""Tasks with large arguments and results, and connections that end while a task runs."""

from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue.consumers.declare.registry import registry
from sqlqueue.database.sizes import packet
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.models import Message, Result
from sqlqueue.tasks import queues
from sqlqueue.tasks.interface import TaskResultStatus
from sqlqueue.testing import drain
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.tasks.declared import samples
from tests.tasks.declaring import default_task_backend
from tests.tasks.stored import state_of

pytestmark = pytest.mark.django_db(transaction=True)

FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
FACE = "\U0001f600"  # four bytes as UTF-8, twelve as escapes of ASCII


@pytest.fixture
def hosting(consuming: Consuming) -> Consuming:
    queues.add_consumers(registry)
    return consuming


def ended(hosting: Consuming, result: Any) -> Any:
    host = hosting.start()
    try:
        wait_until(lambda: default_task_backend.get_result(result.id).is_finished, timeout=20)
    finally:
        host.subscriber.stop(0)  # so that one which is stuck is given up
    result.refresh()
    return result


def test_a_return_value_that_one_statement_cannot_hold_fails_its_task(hosting: Consuming) -> None:
    count = 6_000_000  # 12 MB as JSON; MySQL's client sends two bytes for each of them
    result = ended(hosting, samples.quotes.enqueue(count))
    if packet(LOG) > 4 * count:
        assert (result.status, len(result.return_value)) == (SUCCESSFUL, count)
    else:
        assert result.status == FAILED
        assert "max_allowed_packet" in result.errors[0].traceback
        assert result.errors[0].exception_class is ValueError


def test_arguments_that_fit_as_a_message_fit_as_a_state() -> None:
    value = FACE * 2_000_000
    with transaction.atomic():
        samples.long_text.enqueue("before")
        result = samples.long_text.enqueue(value)
    drain()
    result.refresh()
    assert (result.status, result.return_value, result.args) == (SUCCESSFUL, len(value), [value])


def test_arguments_that_are_too_large_leave_the_callers_transaction_as_it_was() -> None:
    with transaction.atomic():
        samples.long_text.enqueue("before")
        with pytest.raises(InvalidMessage):
            samples.long_text.enqueue(FACE * 4_300_000)
    assert Result.objects.count() == Message.objects.count() == 1


def test_errors_of_large_arguments_are_stored(settings: Any) -> None:
    options = {"max_attempts": 2, "backoff": 0}
    settings.TASKS = {**settings.TASKS, "default": {**settings.TASKS["default"], "OPTIONS": options}}
    result = samples.fail_at_length.enqueue("x" * (min(packet(LOG), 16 * 1024 * 1024) - 6_000))
    drain()
    result.refresh()
    assert (result.status, len(result.errors)) == (FAILED, 2)


@pytest.mark.session
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_task_whose_connection_ended_meanwhile_has_succeeded(hosting: Consuming, size: int) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("concerns a database server")
    result = ended(hosting, samples.loses_its_connection.enqueue(size))
    assert (result.status, result.attempts, len(result.return_value)) == (SUCCESSFUL, 1, size), result.errors


def test_errors_are_stored_as_they_are() -> None:
    result = samples.fail.enqueue(FACE)
    drain()
    assert FACE in state_of(result.id).errors[0][1]
    assert FACE in str(Result.objects.get().error)
