"""How tasks end: what goes wrong once the work is done, errors that are no Exception, and what is told of them."""

import logging
from typing import Any

import pytest
from django.db import transaction

from sqlqueue.consumers.declare.registry import registry
from sqlqueue.models import Message
from sqlqueue.tasks import queues
from sqlqueue.tasks import states as task_states
from sqlqueue.tasks.interface import TaskResultStatus
from sqlqueue.testing import drain
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.tasks.declared import samples
from tests.tasks.declaring import default_task_backend, task_finished
from tests.tasks.stored import change

pytestmark = pytest.mark.django_db(transaction=True)
FAILED = TaskResultStatus.FAILED


@pytest.mark.parametrize("what", ["object", "nan", "large"])
def test_a_task_whose_work_is_done_is_not_run_again_because_of_what_it_returns(what: str, settings: Any) -> None:
    result = samples.return_it.enqueue(what)
    settings.SQLQUEUE = {**settings.SQLQUEUE, "MAX_PAYLOAD_BYTES": 1_000}
    drain()
    result.refresh()
    assert (result.status, result.attempts, samples.RAN) == (FAILED, 1, [what])
    (letter,) = Message.objects.dead_letters(topic="tasks.default")
    assert letter.last_error


def test_a_KeyboardInterrupt_that_a_task_raises_in_a_consumer_process_is_its_error(consuming: Consuming) -> None:
    queues.add_consumers(registry)
    result = samples.interrupt.enqueue()
    consuming.start()
    wait_until(lambda: default_task_backend.get_result(result.id).status == FAILED)
    result.refresh()
    assert [error.exception_class for error in result.errors] == [KeyboardInterrupt]
    assert result.attempts == 1


def test_ctrl_c_ends_a_drain() -> None:
    samples.interrupt.enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain()


def test_a_traceback_ends_with_its_line_as_format_exception_does() -> None:
    result = samples.fail.enqueue("no")
    drain()
    result.refresh()
    assert result.errors[0].traceback.endswith("\nValueError: no\n")


@pytest.mark.parametrize("ending", ["raises", "unknown", "killed"])
def test_what_logs_a_failed_task_sees_its_error(ending: str, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "UNKNOWN_FOR": 0}

    def log(task_result: Any, **arguments: Any) -> None:
        logging.getLogger("told").exception("failed")  # noqa: LOG004  it is called while an error is handled

    samples.fail.enqueue("the error")
    message = Message.objects.get()
    task_finished.connect(log)
    try:
        if ending == "killed":
            with transaction.atomic():
                task_states.mark_dead(LOG, message.offset, message.payload, "its consumer process ended 5 times")
        elif ending == "unknown":
            Message.objects.update(payload={**message.payload, "task": "gone.task"})
            change(task="gone.task")
        drain()
    finally:
        task_finished.disconnect(log)
    assert "NoneType: None" not in caplog.text
    told = {"raises": "ValueError: the error", "unknown": "ImportError: gone.task is in no", "killed": "ended 5 times"}
    assert told[ending] in caplog.text
