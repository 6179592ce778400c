"""Tasks that are taken back while they wait for `run_after`."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from sqlqueue import cancel, cancel_all, publish
from sqlqueue.models import Result, ScheduledMessage
from sqlqueue.operations.edit_scheduled import withdraw
from sqlqueue.testing import drain
from tests.logs import LOG
from tests.tasks.declared import samples
from tests.tasks.declaring import TaskResultDoesNotExist
from tests.tasks.stored import change

pytestmark = pytest.mark.django_db(transaction=True)
TOPIC = "tasks.default"


def later() -> Any:
    return samples.note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("later")


def by_id(row: ScheduledMessage) -> int:
    return cancel(TOPIC, id=row.message_id, key=row.partition_key)


def by_key(row: ScheduledMessage) -> int:
    return cancel_all(TOPIC, key=row.partition_key)


def in_the_admin(row: ScheduledMessage) -> int:
    return withdraw(LOG, [row.pk])[0]


@pytest.mark.parametrize("take_back", [by_id, by_key, in_the_admin])
class TestATaskThatIsTakenBack:
    def test_is_gone_and_others_are_not(self, take_back: Callable[[ScheduledMessage], int]) -> None:
        result = later()
        row = ScheduledMessage.objects.get()
        due, other = samples.note.enqueue("due"), samples.note.using(queue_name="special").enqueue("other")
        assert take_back(row) == 1
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
        assert set(Result.objects.values_list("message_id", flat=True)) == {due.id, other.id}
        assert drain(ahead=timedelta(hours=2)) == 2

    def test_is_there_if_that_rolls_back(self, take_back: Callable[[ScheduledMessage], int]) -> None:
        result = later()
        with transaction.atomic():
            take_back(ScheduledMessage.objects.get())
            transaction.set_rollback(True)
        result.refresh()
        assert drain(ahead=timedelta(hours=2)) == 1

    def test_keeps_its_state_once_it_has_begun(self, take_back: Callable[[ScheduledMessage], int]) -> None:
        result = later()
        change(order=(7, 0, 0))
        assert take_back(ScheduledMessage.objects.get()) == 1
        result.refresh()

    def test_keeps_its_state_once_it_has_entered_the_log(self, take_back: Callable[[ScheduledMessage], int]) -> None:
        result = later()
        row = ScheduledMessage.objects.get()
        drain(ahead=timedelta(hours=2))
        assert take_back(row) == 0
        result.refresh()


def test_a_message_that_is_no_tasks_is_taken_back() -> None:
    for payload in (1, ["id"], {"id": 7}, b"\0"):
        publish(TOPIC, payload, id=str(payload), delay=60)
        assert cancel(TOPIC, id=str(payload))
