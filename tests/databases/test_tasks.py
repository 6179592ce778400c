"""Tasks and batches with several logs: they are on DATABASE."""

from typing import Any

import pytest
from django.db import transaction

from sqlqueue import Batch, InvalidMessage, NewMessage, get_batch
from sqlqueue.models import Message, Result
from sqlqueue.testing import drain
from tests.databases.aliases import A, B
from tests.databases.test_publish import OF_A, OF_B

pytestmark = pytest.mark.usefixtures("databases")


def test_tasks_are_on_database(settings: Any) -> None:
    from tests.tasks.declared import TASKS, samples  # the apps are ready only now

    settings.TASKS = TASKS
    with transaction.atomic(using=A):
        result = samples.note.enqueue("one")
    assert Result.objects.using(A).get().message_id == result.id
    assert not Result.objects.using(B).exists()
    with transaction.atomic(using=B), pytest.raises(InvalidMessage, match="are on DATABASE, 'default'"):
        samples.note.enqueue("two")
    with transaction.atomic(using=A), transaction.atomic(using=B):
        samples.note.enqueue("three")
    assert Result.objects.using(A).count() == 2


def test_a_member_that_belongs_on_another_log_is_refused() -> None:
    with Batch() as batch:
        batch.publish("t", 1, key=OF_A)
        for refused in (
            lambda: batch.publish("t", 2, key=OF_B),
            lambda: batch.publish_many("t", [NewMessage(3, key=OF_A), NewMessage(4, key=OF_B)]),
        ):
            with pytest.raises(InvalidMessage, match=f"belongs on '{B}', and a batch has its members on DATABASE"):
                refused()
    assert [one.payload for alias in (A, B) for one in Message.objects.using(alias).filter(topic="t")] == [1]
    status = get_batch(batch.id)
    assert status is not None
    assert status.pending == 1


def test_a_callback_goes_to_its_database() -> None:
    with Batch(on_finish=("t", "done", OF_B)):
        pass
    drain()
    assert [one.payload for one in Message.objects.using(B).filter(topic="t")] == ["done"]
