"""A task's one identity: its id is that of its message, and unique over all queues."""

import threading
import time
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from sqlqueue import ConfigurationError, InvalidMessage, cancel, get_status
from sqlqueue.exceptions import Expired
from sqlqueue.models import Message, Result, ScheduledMessage
from sqlqueue.tasks import enqueue
from sqlqueue.testing import drain
from tests.tasks.declared import TASKS, samples
from tests.tasks.declaring import TaskResultDoesNotExist

pytestmark = pytest.mark.django_db(transaction=True)
TOPIC = "tasks.default"


def test_a_task_is_found_by_its_id() -> None:
    result = samples.note.enqueue("x")
    status = get_status(TOPIC, id=result.id)
    assert status is not None
    out = StringIO()
    call_command("queuemessage", TOPIC, "--id", result.id, stdout=out)
    assert result.id in out.getvalue()
    drain()
    finished = get_status(TOPIC, id=result.id)
    assert finished is not None
    assert [group.state for group in finished.groups.values()] == ["acked"]


def test_the_admins_search_finds_a_task_by_its_id(admin_client: Client) -> None:
    mine, yours = (samples.note.enqueue(n) for n in (1, 2))
    address = reverse("admin:sqlqueue_message_changelist")
    html = admin_client.get(address, {"topic": TOPIC, "message_id": mine.id}).content.decode()
    offset = Message.objects.get(message_id=mine.id).offset
    assert reverse("admin:sqlqueue_message_change", args=[offset]) in html
    assert yours.id not in html


def test_a_task_that_waits_is_cancelled_by_its_id_and_no_other() -> None:
    mine, yours = (samples.note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(n) for n in (1, 2))
    assert cancel(TOPIC, id=mine.id)
    with pytest.raises(TaskResultDoesNotExist):
        mine.refresh()
    yours.refresh()
    assert ScheduledMessage.objects.get().message_id == yours.id


def test_a_known_id_is_that_task_in_whichever_queue() -> None:
    first = enqueue(samples.note, ["x"], {"more": 1}, id="mine")
    again = enqueue(samples.special, id="mine")
    assert (first.id, again.id, again.task.name, again.args) == ("mine", "mine", "note", ["x"])
    assert (Message.objects.count(), Result.objects.count()) == (1, 1)
    assert drain() == 1
    assert enqueue(samples.note, ["x"], id="mine").return_value == {"what": "x", "more": 1}
    assert drain() == 0


def test_two_that_enqueue_an_id_at_once_have_one_task() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time: the two cannot overlap")
    found: list[Any] = []

    def other() -> None:
        try:
            found.append(enqueue(samples.note, ["other"], id="mine"))
        finally:
            connections.close_all()

    with transaction.atomic():
        Result.objects.count()  # its snapshot
        enqueue(samples.note, ["first"], id="mine")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
    thread.join(30)
    assert [result.args for result in found] == [["first"]]
    assert (Message.objects.count(), Result.objects.count()) == (1, 1)


def test_an_id_whose_message_is_there_and_whose_result_is_not_is_refused_and_leaves_nothing() -> None:
    enqueue(samples.note, id="mine")
    Result.objects.all().delete()
    with transaction.atomic():
        with pytest.raises(InvalidMessage, match="whose result is deleted"):
            enqueue(samples.note, id="mine")
        samples.note.enqueue()
    assert Result.objects.count() == 1


@pytest.mark.parametrize("id", ["", "x" * 65, "ä", "a\0", 7])
def test_what_is_no_id_is_refused(id: Any) -> None:
    with pytest.raises(InvalidMessage, match="a task's id is 1 to 64 characters"):
        enqueue(samples.note, id=id)


def test_a_task_that_would_begin_too_late_fails_and_does_not_run() -> None:
    result = enqueue(samples.note, ["late"], expires=0.01)
    time.sleep(0.2)
    assert drain() == 1
    result.refresh()
    assert (result.status, samples.RAN) == ("FAILED", [])
    assert [error.exception_class for error in result.errors] == [Expired]


def test_a_task_of_another_backend_is_refused(settings: Any) -> None:
    package = "django_tasks" if "django_tasks" in settings.INSTALLED_APPS else "django.tasks"
    settings.TASKS = {**TASKS, "default": {"BACKEND": f"{package}.backends.dummy.DummyBackend"}}
    with pytest.raises(ConfigurationError, match="is no SqlQueueBackend"):
        enqueue(samples.note, id="x")


def test_the_status_of_an_unknown_topic_is_refused_as_by_publish(settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {}}}
    for look in (get_status, cancel):
        with pytest.raises(ConfigurationError, match="topic 'typo' is not declared"):
            look("typo", id="x")
    assert get_status("t", id="x") is None
