"""Tasks that a consumer process does not have: it imports nothing for them, and leaves them to one that has them."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue import get_status, publish
from sqlqueue.models import DeliveryState, Message, Result
from sqlqueue.operations.reschedule import reschedule
from sqlqueue.testing import drain
from tests.logs import LOG
from tests.tasks.declared import TASKS, samples
from tests.tasks.declaring import InvalidTask, task, task_backends
from tests.tasks.stored import change, only_state

pytestmark = pytest.mark.django_db(transaction=True)
TOPIC = "tasks.default"


def dead_letters() -> list[str]:
    return [message.last_error for message in Message.objects.filter(topic=f"{TOPIC}_dlq")]


def make_due() -> None:
    offsets = Message.objects.filter(topic=TOPIC).values_list("offset", flat=True)
    reschedule(LOG, "tasks", TOPIC, list(offsets), delay=0)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a module that Python finds, and that leaves a file where it is imported; return that file."""
    trace = tmp_path / "imported"
    (tmp_path / "stray.py").write_text(
        f"from tests.tasks.declaring import task\nopen({str(trace)!r}, 'w')\n@task\ndef run(): return 'ran'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield trace
    sys.modules.pop("stray", None)


def test_a_module_outside_of_the_apps_is_not_imported_because_a_message_names_it(module: Path) -> None:
    samples.note.enqueue("known")
    publish(TOPIC, {**Message.objects.get().payload, "id": "x", "task": "stray.run"})
    drain()
    assert (samples.RAN, module.exists(), dead_letters()) == (["known"], False, [])
    state = DeliveryState.objects.exclude(last_error=None).get()
    assert "stray.run is in no installed app's package" in state.last_error


def test_nor_to_show_its_result(module: Path) -> None:
    samples.note.enqueue("known")
    change(task="stray.run")
    assert task_backends["default"].get_result(only_state().id).task.name == "run"
    assert not module.exists()


def test_a_task_of_a_package_that_OPTIONS_names_is_run(module: Path, settings: Any) -> None:
    settings.TASKS = {**TASKS, "default": {**TASKS["default"], "OPTIONS": {"packages": ["stray"]}}}
    import stray

    result = stray.run.enqueue()
    assert drain() == 1
    result.refresh()
    assert result.return_value == "ran"


def test_a_task_that_no_process_would_run_is_not_enqueued(module: Path) -> None:
    import stray

    with pytest.raises(InvalidTask, match=r"stray\.run is in no installed app's package"):
        stray.run.enqueue()
    assert (Message.objects.count(), Result.objects.count()) == (0, 0)


def test_an_unknown_task_waits_uncharged_and_is_run_once_a_process_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    new = task(samples.__dict__["note"].func)
    monkeypatch.setattr(samples, "deployed_later", new, raising=False)
    result = samples.note.enqueue("new")
    path = "tests.tasks.samples.deployed_later"
    Message.objects.update(payload={**Message.objects.get().payload, "task": path})
    change(task=path)
    monkeypatch.delattr(samples, "deployed_later")  # the old process
    for _ in range(3):
        drain()
        make_due()
    state = DeliveryState.objects.get()
    assert (max(0, state.retry_count), dead_letters(), samples.RAN) == (0, [], [])
    assert "waits for a process that has what it needs" in state.last_error
    message = Message.objects.get()
    (status,) = get_status(TOPIC, id=message.message_id).groups.values()
    assert (status.state, status.attempts) == ("waiting", 0)
    assert "deployed_later" in status.error
    assert only_state().status == "READY"
    monkeypatch.setattr(samples, "deployed_later", new, raising=False)
    drain()
    result.refresh()
    assert (result.status, samples.RAN, result.attempts) == ("SUCCESSFUL", ["new"], 1)


def test_after_UNKNOWN_FOR_it_has_failed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "UNKNOWN_FOR": timedelta(hours=2)}
    samples.note.enqueue("x")
    Result.objects.all().delete()
    Message.objects.update(
        payload={**Message.objects.get().payload, "task": "tests.tasks.samples.gone"},
        created_at=timezone.now() - timedelta(hours=3),
    )
    drain()
    assert dead_letters() == []  # this process may have begun with a backlog
    monkeypatch.setattr("sqlqueue.consumers.handlers.delivery._loaded", -3 * 3600.0)
    make_due()
    drain()
    assert ["gone" in error for error in dead_letters()] == [True]
    assert only_state().status == "FAILED"
