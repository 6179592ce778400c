"""The scenarios that the packages of Django's Tasks interface try on their database backends, on this one: one test for
each, named for it."""

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import connections, transaction
from django.utils import timezone

from sqlqueue import publish
from sqlqueue.models import Message, Result, ScheduledMessage
from sqlqueue.tasks import SqlQueueBackend
from sqlqueue.tasks.interface import TaskResultStatus
from sqlqueue.testing import drain
from tests.tasks.declared import samples
from tests.tasks.declaring import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    default_task_backend,
    task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.tasks.stored import change

pytestmark = pytest.mark.django_db(transaction=True)

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


def ended(result: Any) -> Any:
    """Run what is due, and return the task's present result."""
    drain()
    result.refresh()
    return result


def finish(status: Any = SUCCESSFUL, **values: Any) -> None:
    change(status=status, **{"started_at": timezone.now(), "finished_at": timezone.now(), **values})


# -- enqueue and get_result -------------------------------------------------------------------------------------------


def test_the_backend_that_TASKS_names_is_used() -> None:
    assert isinstance(task_backends["default"], SqlQueueBackend)
    backend = task_backends["default"]
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


@pytest.mark.parametrize("sample", [samples.note, samples.later], ids=["sync", "async"])
def test_enqueue_task(sample: Any) -> None:
    result = sample.enqueue(1, two=3)
    assert (result.status, result.attempts, result.errors, result.worker_ids) == (READY, 0, [], [])
    assert result.enqueued_at
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    with pytest.raises(ValueError, match="Task has not finished yet"):
        result.return_value  # noqa: B018
    assert (result.task, result.args, result.kwargs, result.backend) == (sample, [1], {"two": 3}, "default")


@pytest.mark.parametrize("sample", [samples.note, samples.later], ids=["sync", "async"])
def test_enqueue_task_async(sample: Any) -> None:
    result = awaited(sample.aenqueue, "a")
    assert (result.status, result.task, result.args) == (READY, sample, ["a"])
    assert ended(result).status == SUCCESSFUL
    assert samples.RAN == ["a"]


def awaited(function: Callable[..., Any], *args: Any) -> Any:
    async def run() -> Any:
        try:
            return await function(*args)
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run())


def test_get_result() -> None:
    result = default_task_backend.enqueue(samples.note, [1], {"more": True})
    assert default_task_backend.get_result(result.id) == result
    assert awaited(default_task_backend.aget_result, result.id) == result
    assert samples.note.get_result(result.id) == result


def test_get_result_costs_one_statement(django_assert_num_queries: Any) -> None:
    result = samples.note.enqueue()
    with django_assert_num_queries(1):
        result.refresh()


def test_refresh_result() -> None:
    result = samples.note.enqueue()
    finish()
    assert (result.status, result.started_at, result.finished_at) == (READY, None, None)
    result.refresh()
    assert result.status == SUCCESSFUL
    assert result.started_at
    assert result.finished_at


def test_refresh_result_async() -> None:
    result = samples.note.enqueue()
    finish()
    awaited(result.arefresh)
    assert (result.status, result.is_finished) == (SUCCESSFUL, True)


def test_get_missing_result() -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(str(uuid.uuid4()))
    with pytest.raises(TaskResultDoesNotExist):
        awaited(default_task_backend.aget_result, str(uuid.uuid4()))


@pytest.mark.parametrize("id", ["123", "", "x" * 65, "nul\0", "\ud800", "ä", None, 7, b"123", ["123"]], ids=repr)
def test_invalid_id(id: Any) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(id)


def test_get_result_of_another_task() -> None:
    result = samples.note.enqueue()
    with pytest.raises(TaskResultMismatch):
        samples.fail.get_result(result.id)


def test_enqueue_signal() -> None:
    heard: list[Any] = []

    def hear(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append((sender, task_result.id, task_result.status))

    task_enqueued.connect(hear)
    try:
        result = samples.note.enqueue()
    finally:
        task_enqueued.disconnect(hear)
    assert heard == [(SqlQueueBackend, result.id, READY)]


def test_a_task_is_enqueued_in_the_callers_transaction() -> None:
    with transaction.atomic():
        result = samples.note.enqueue("never")
        result.refresh()  # the transaction itself sees it
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    assert drain() == 0
    with transaction.atomic():
        result = samples.note.enqueue("now")
    assert ended(result).return_value == {"what": "now"}
    assert samples.RAN == ["now"]


def test_a_refused_task_leaves_the_callers_transaction_as_it_was() -> None:
    with transaction.atomic():
        with pytest.raises((TypeError, ValueError)):
            samples.note.enqueue(object())
        with pytest.raises(ValueError, match="not valid Unicode"):
            samples.note.enqueue("\ud800")
        result = samples.note.enqueue("good")
    assert ended(result).status == SUCCESSFUL
    assert Result.objects.count() == 1


def test_priority_range_check() -> None:
    for priority in (-101, 101, 3.1):
        with pytest.raises(InvalidTask):
            samples.note.using(priority=priority)
    for priority in (-100, 0, 100):
        result = samples.note.using(priority=priority).enqueue(priority)
        assert default_task_backend.get_result(result.id).task.priority == priority


def test_a_path_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples.note.func, "__module__", "m" * 256)
    with pytest.raises(ValueError, match="255 is the most"):
        samples.note.enqueue()
    assert not Message.objects.exists()


def test_unknown_queue() -> None:
    with pytest.raises(InvalidTask, match="unknown"):
        samples.note.using(queue_name="unknown")


def test_a_backend_without_queues_says_so(settings: Any) -> None:
    settings.TASKS = {"default": {"BACKEND": "sqlqueue.tasks.SqlQueueBackend", "QUEUES": []}}
    with pytest.raises(InvalidTask, match="name the queues"):
        samples.note.using(queue_name="any")


def test_naive_run_after() -> None:
    with pytest.raises(InvalidTask, match="aware"):
        samples.note.using(run_after=timezone.now().replace(tzinfo=None))


def test_local_function() -> None:
    with pytest.raises(InvalidTask, match="module level"):

        @task
        def local() -> None: ...


def test_check(settings: Any) -> None:
    assert list(default_task_backend.check()) == []


def test_check_without_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "is_installed", lambda name: False)
    (error,) = default_task_backend.check()
    assert error.id == "sqlqueue.E027"
    assert "INSTALLED_APPS" in error.hint


# -- run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [samples.note, samples.later], ids=["sync", "async"])
def test_run_enqueued_task(sample: Any) -> None:
    result = ended(sample.enqueue("it"))
    assert (result.status, result.attempts, result.errors) == (SUCCESSFUL, 1, [])
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert samples.RAN == ["it"]
    assert result.return_value in ({"what": "it"}, "IT")
    assert len(result.worker_ids[0]) > 10


def test_all_tasks_are_run() -> None:
    results = [samples.note.enqueue(number) for number in range(5)] + [samples.fail.enqueue("no")]
    drain()
    assert sorted(samples.RAN, key=str) == [0, 1, 2, 3, 4, "no"]
    assert [default_task_backend.get_result(one.id).status for one in results] == [SUCCESSFUL] * 5 + [FAILED]
    assert drain() == 0


def test_no_tasks() -> None:
    assert drain() == 0


def test_another_queue_is_left_alone() -> None:
    result = samples.note.using(queue_name="special").enqueue()
    assert drain(topics=["tasks.default"]) == 0
    result.refresh()
    assert result.status == READY
    assert drain(topics=["tasks.special"]) == 1
    result.refresh()
    assert result.status == SUCCESSFUL


def test_all_queues_are_run() -> None:
    one, other = samples.note.enqueue(), samples.special.enqueue()
    assert (ended(one).status, ended(other).status) == (SUCCESSFUL, SUCCESSFUL)
    assert other.task.queue_name == "special"
    assert set(Message.objects.values_list("topic", flat=True)) == {"tasks.default", "tasks.special"}


@pytest.mark.parametrize("sample", [samples.fail, samples.fail_later], ids=["sync", "async"])
def test_failing_task(sample: Any) -> None:
    result = ended(sample.enqueue("because"))
    assert (result.status, result.attempts) == (FAILED, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback.rstrip().endswith("ValueError: because")
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018
    assert drain() == 0, "a task that raises is run once"


@pytest.mark.parametrize("sample", [samples.unserialisable, samples.not_a_number], ids=["object", "nan"])
def test_unserialisable_return_value(sample: Any) -> None:
    result = ended(sample.enqueue())
    assert (result.status, result.attempts) == (FAILED, 1)
    assert result.errors[0].exception_class in (TypeError, ValueError)


def test_return_value_that_is_too_large(settings: Any) -> None:
    result = samples.enormous.enqueue()
    settings.SQLQUEUE = {**settings.SQLQUEUE, "MAX_PAYLOAD_BYTES": 1_000}
    result = ended(result)
    assert result.status == FAILED
    assert "2002 bytes as JSON; 1000 is the most" in result.errors[0].traceback


def test_any_text_is_returned_as_it_is() -> None:
    assert ended(samples.null_character.enqueue()).return_value == "a\0b\ud800"


def test_an_exception_that_cannot_be_printed() -> None:
    result = ended(samples.unprintable.enqueue())
    assert result.status == FAILED
    assert result.errors[0].exception_class is samples.Unprintable
    assert "Unprintable" in result.errors[0].traceback


def test_a_task_that_exits_fails() -> None:
    result = ended(samples.interrupted.enqueue())
    assert result.status == FAILED
    assert result.errors[0].exception_class is SystemExit


@pytest.mark.parametrize(
    "sample", [samples.breaks_its_transaction, samples.leaves_a_transaction_open], ids=["broken", "open"]
)
def test_a_task_that_breaks_its_connection_fails(sample: Any) -> None:
    result = ended(sample.enqueue())
    assert result.status == FAILED
    assert ended(samples.note.enqueue()).status == SUCCESSFUL


def test_takes_context() -> None:
    result = ended(samples.in_context.enqueue(5))
    assert result.return_value == {"attempt": 1, "status": "RUNNING", "id": result.id, "args": [5], "more": 5}


def test_run_after() -> None:
    result = samples.note.using(run_after=timezone.now() + timedelta(hours=10)).enqueue("then")
    assert drain() == 0
    assert ScheduledMessage.objects.count() == 1
    result.refresh()
    assert result.status == READY
    assert default_task_backend.get_result(result.id) == result
    assert drain(ahead=timedelta(hours=11)) == 1
    result.refresh()
    assert (result.status, samples.RAN) == (SUCCESSFUL, ["then"])
    assert ended(samples.note.using(run_after=timezone.now() - timedelta(days=1)).enqueue()).status == SUCCESSFUL


@pytest.mark.parametrize(
    "path",
    ["missing.func", "tests.tasks.samples.gone", "subprocess.check_output", "tests.tasks.samples", "nodots", "a..b"],
)
def test_a_task_path_that_is_gone(path: str, settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "UNKNOWN_FOR": 0}
    result = samples.note.enqueue(["exit", "1"])
    Message.objects.update(payload={**Message.objects.get().payload, "task": path})
    change(task=path)
    drain()
    found = default_task_backend.get_result(result.id)
    assert (found.status, found.attempts, found.args) == (FAILED, 1, [["exit", "1"]])
    assert found.errors[0].exception_class in (ImportError, ModuleNotFoundError)
    assert samples.RAN == []
    with pytest.raises(TaskResultMismatch):
        samples.note.get_result(result.id)


@pytest.mark.parametrize("ending", ["raise SystemExit('no')", "raise ValueError(Unprintable())"])
def test_a_module_that_exits_when_it_is_imported(
    ending: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "UNKNOWN_FOR": 0}
    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"packages": ["exits_at_import"]}}}
    code = f"class Unprintable:\n    def __repr__(self): raise RuntimeError\n{ending}\n"
    (tmp_path / "exits_at_import.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    samples.note.enqueue()
    publish("tasks.default", {**Message.objects.get().payload, "id": "x", "task": "exits_at_import.run"})
    drain()
    found = default_task_backend.get_result("x")
    assert (found.status, found.attempts) == (FAILED, 1)
    assert "exits_at_import" in found.errors[0].traceback


def test_a_backend_that_is_gone(settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "UNKNOWN_FOR": 0}
    result = samples.fail_until.enqueue(1)
    settings.TASKS = {"default": settings.TASKS["default"]}
    drain()
    found = default_task_backend.get_result(result.id)
    assert found.status == FAILED
    assert "retrying" in found.errors[0].traceback


def test_signals_of_a_run() -> None:
    heard: list[Any] = []

    def started(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append(("started", sender, task_result.id, task_result.status))

    def finished(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append(("finished", sender, task_result.id, task_result.status))
        raise RuntimeError("a receiver's own error changes nothing")

    task_started.connect(started)
    task_finished.connect(finished)
    try:
        good, bad = samples.note.enqueue(), samples.fail.enqueue("x")
        drain()
    finally:
        task_started.disconnect(started)
        task_finished.disconnect(finished)
    assert {one[1] for one in heard} == {SqlQueueBackend}
    assert sorted((kind, id, str(status)) for kind, _, id, status in heard) == sorted(
        [
            ("started", good.id, "RUNNING"),
            ("finished", good.id, "SUCCESSFUL"),
            ("started", bad.id, "RUNNING"),
            ("finished", bad.id, "FAILED"),
        ]
    )
    assert default_task_backend.get_result(bad.id).status == FAILED
