"""Tasks that are enqueued in the block of a batch are its members."""

from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from sqlqueue import Batch, BatchStatus, cancel, get_batch, replay
from sqlqueue.models import Message
from sqlqueue.tasks import enqueue
from sqlqueue.testing import drain
from tests.consuming import Consuming
from tests.tasks.declared import samples
from tests.tasks.declaring import TaskResultDoesNotExist, default_task_backend

pytestmark = pytest.mark.django_db(transaction=True)
CALLS: Any = {f"on_{when}": ("called", when) for when in ("finish", "success", "failure")}


@pytest.fixture
def called(consuming: Consuming) -> list[Any]:
    """The callbacks that were delivered."""
    found: list[Any] = []
    consuming.consumer("called", lambda delivery: found.append(delivery.payload))
    return found


def standing(batch: Batch) -> BatchStatus:
    found = get_batch(batch.id)
    assert found is not None
    return found


def figures(batch: Batch) -> tuple[int, int, int]:
    return standing(batch).total, standing(batch).done, standing(batch).failed


def test_its_callbacks_wait_for_them(called: list[Any]) -> None:
    with Batch(**CALLS) as batch:
        for number in range(3):
            samples.note.enqueue(number)
        samples.special.enqueue()
        samples.fail_until.enqueue(2)
        async_to_sync(samples.later.aenqueue)("later")
        enqueue(samples.note, ["named"], id="named")
        batch.publish("called", "a message")
    assert (figures(batch), standing(batch).state) == ((8, 0, 0), "running")
    drain()
    assert called == ["a message", *called[1:]]
    assert sorted(called[1:]) == ["finish", "success"]
    assert (figures(batch), standing(batch).state) == ((8, 8, 0), "succeeded")


def test_one_that_fails_fails_it_until_it_is_replayed(called: list[Any]) -> None:
    with Batch(**CALLS) as batch:
        failing = samples.fail_until.enqueue(5)
        samples.note.enqueue(1)
    drain()
    assert sorted(called) == ["failure", "finish"]
    assert figures(batch) == (2, 1, 1)
    assert replay("tasks.default") == 1
    drain()
    assert sorted(called) == ["failure", "finish", "success"]
    assert figures(batch) == (2, 2, 0)
    failing.refresh()
    assert failing.is_finished


def test_one_that_waits_for_its_time_is_settled_when_it_is_taken_back(called: list[Any]) -> None:
    with Batch(**CALLS) as batch:
        waiting = samples.note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        samples.note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(2)
    drain()
    assert (figures(batch), called) == ((2, 0, 0), [])
    assert cancel("tasks.default", id=waiting.id)
    assert figures(batch) == (2, 1, 0)
    drain(ahead=timedelta(hours=2))
    assert sorted(called) == ["finish", "success"]


def test_one_that_has_expired_fails_it(called: list[Any]) -> None:
    with Batch(**CALLS) as batch:
        enqueue(samples.note, [1], expires=0.001)
    drain()
    assert sorted(called) == ["failure", "finish"]
    assert figures(batch) == (1, 0, 1)


def test_after_an_exception_there_are_none(called: list[Any]) -> None:
    enqueued: list[Any] = []

    def fill(batch: Batch) -> None:
        with batch:
            enqueued.append(samples.note.enqueue(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill(Batch(**CALLS))
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(enqueued[0].id)
    drain()
    assert (samples.RAN, called) == ([], [])


def test_only_what_is_enqueued_in_the_block_is_a_member_and_of_the_innermost_one(called: list[Any]) -> None:
    with Batch() as outer:
        with Batch(parent=outer) as inner:
            samples.note.enqueue(1)
        samples.note.enqueue(2)
        samples.note.enqueue(3)
    samples.note.enqueue(4)
    assert (figures(outer), figures(inner)) == ((2, 0, 0), (1, 0, 0))
    members = [row.payload["args"] for row in Message.objects.all() if "sqlqueue-batch" in (row.headers or {})]
    assert sorted(members) == [[1], [2], [3]]


def test_one_that_is_known_already_stays_what_it_was(called: list[Any]) -> None:
    first = enqueue(samples.note, [1], id="known")
    with Batch(**CALLS) as batch:
        assert enqueue(samples.note, [2], id="known").id == first.id
    assert figures(batch) == (0, 0, 0)
