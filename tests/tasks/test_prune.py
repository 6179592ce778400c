"""Results that expire, and `manage.py queueprune`."""

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from sqlqueue.consumers.background.collector import CollectorTask
from sqlqueue.log import task_states
from sqlqueue.models import TaskState
from sqlqueue.testing import drain
from tests.logs import LOG
from tests.tasks.declared import DEFAULT, TASKS, samples
from tests.tasks.declaring import TaskResultDoesNotExist

pytestmark = pytest.mark.django_db(transaction=True)


def finished(status: str = "SUCCESSFUL", days: float = 0, queue: str = "default", backend: str = "default") -> Any:
    """Return the result of a task that has ended so many days ago."""
    sample = samples.note.using(queue_name=queue, backend=backend)
    result = sample.enqueue()
    at = timezone.now() - timedelta(days=days)
    TaskState.objects.filter(pk=result.id).update(status=status, finished_at=at)
    return result


def prune(*words: str) -> Any:
    out = io.StringIO()
    call_command("queueprune", "--no-input", "--json", *words, stdout=out)
    return json.loads(out.getvalue())


def gone(result: Any) -> bool:
    try:
        result.refresh()
    except TaskResultDoesNotExist:
        return True
    return False


def test_prunes_tasks() -> None:
    result = finished()
    assert prune("--min-age", "0") == {"results": 1, "deleted": 1}
    assert gone(result)


def test_prunes_no_new_and_no_running_tasks() -> None:
    new, running = samples.note.enqueue(), finished("RUNNING", days=30)
    assert prune("--min-age", "0") == {"results": 0, "deleted": 0}
    assert not gone(new)
    assert not gone(running)


def test_only_prunes_the_named_queues_and_backends() -> None:
    one, other, third = finished(), finished(queue="special"), finished(backend="retrying")
    assert prune("--min-age", "0", "--queue", "special")["deleted"] == 1
    assert [gone(each) for each in (one, other, third)] == [False, True, False]
    assert prune("--min-age", "0", "--backend", "retrying")["deleted"] == 1
    assert [gone(each) for each in (one, third)] == [False, True]
    assert prune("--min-age", "0")["deleted"] == 1


def test_min_age() -> None:
    young, old = finished(days=1), finished(days=3)
    assert prune()["deleted"] == 0, "fourteen days, if nothing else is said"
    assert prune("--min-age", "2.5")["deleted"] == 1
    assert [gone(each) for each in (young, old)] == [False, True]


def test_failed_min_age() -> None:
    good, bad = finished(days=3), finished("FAILED", days=3)
    assert prune("--min-age", "2", "--failed-min-age", "5")["deleted"] == 1
    assert [gone(each) for each in (good, bad)] == [True, False]
    assert prune("--min-age", "5", "--failed-min-age", "1")["deleted"] == 1


def test_status() -> None:
    good, bad = finished(), finished("FAILED")
    assert prune("--min-age", "0", "--status", "FAILED")["deleted"] == 1
    assert [gone(each) for each in (good, bad)] == [False, True]


def test_dry_run() -> None:
    result = finished()
    assert prune("--min-age", "0", "--dry-run") == {"results": 1, "deleted": 0}
    assert not gone(result)
    out = io.StringIO()
    call_command("queueprune", "--min-age", "0", "--dry-run", stdout=out)
    assert "There are 1 results" in out.getvalue()
    assert "Nothing was done" in out.getvalue()


def test_a_question_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    result = finished()
    monkeypatch.setattr("builtins.input", lambda question: "n")
    with pytest.raises(CommandError, match="nothing was done"):
        call_command("queueprune", "--min-age", "0", stdout=io.StringIO())
    assert not gone(result)


@pytest.mark.parametrize("words", [("--backend", "unknown"), ("--min-age", "-1"), ("--min-age", "inf"), ("--json",)])
def test_wrong_words_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        call_command("queueprune", *words, stdout=io.StringIO())


def test_more_than_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_states, "BATCH", 2)
    for _ in range(5):
        finished()
    assert prune("--min-age", "0") == {"results": 5, "deleted": 5}


# -- expiry -----------------------------------------------------------------------------------------------------------


def collect() -> bool:
    return CollectorTask(LOG, 0, 30).run_once()


def test_results_are_kept_as_long_as_the_options_say(settings: Any) -> None:
    settings.TASKS = {
        "default": {**DEFAULT, "OPTIONS": {"keep_results": 0}},
        "retrying": {**DEFAULT, "OPTIONS": {"keep_results": None}},
    }
    short, long = samples.note.enqueue(), samples.note.using(backend="retrying").enqueue()
    waiting = samples.note.using(run_after=timezone.now() + timedelta(days=1)).enqueue()
    drain()
    collect()
    assert [gone(each) for each in (short, long, waiting)] == [True, False, False]
    assert TaskState.objects.get(pk=long.id).expires_at is None


def test_results_are_kept_for_seven_days_by_default(settings: Any) -> None:
    settings.TASKS = TASKS
    good, bad = samples.note.enqueue(), samples.fail.enqueue("no")
    drain()
    for state in TaskState.objects.all():
        assert state.expires_at - state.finished_at == timedelta(days=7)
    collect()
    assert not gone(good)
    TaskState.objects.update(expires_at=timezone.now())
    collect()
    assert gone(good)
    assert gone(bad)


def test_more_than_the_collector_deletes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_states, "BATCH", 2)
    monkeypatch.setattr(task_states, "MOST_AT_ONCE", 4)
    for _ in range(5):
        finished()
    TaskState.objects.update(expires_at=timezone.now())
    assert collect(), "there is more"
    assert TaskState.objects.count() == 1
    assert not collect()
    assert not TaskState.objects.exists()
