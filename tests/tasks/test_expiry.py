"""Results that expire."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.log import retention
from sqlqueue.models import Result
from sqlqueue.tasks.states import TaskState
from sqlqueue.testing import drain
from tests.logs import LOG
from tests.tasks.declared import DEFAULT, TASKS, samples
from tests.tasks.declaring import TaskResultDoesNotExist

pytestmark = pytest.mark.django_db(transaction=True)


def gone(result: Any) -> bool:
    try:
        result.refresh()
    except TaskResultDoesNotExist:
        return True
    return False


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
    assert Result.objects.get(message_id=long.id).expires_at is None


def test_results_are_kept_for_seven_days_by_default(settings: Any) -> None:
    settings.TASKS = TASKS
    good, bad = samples.note.enqueue(), samples.fail.enqueue("no")
    drain()
    for row in Result.objects.all():
        assert row.expires_at - TaskState.of(row).finished_at == timedelta(days=7)
    collect()
    assert not gone(good)
    Result.objects.update(expires_at=timezone.now())
    collect()
    assert gone(good)
    assert gone(bad)


def test_more_than_the_collector_deletes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    monkeypatch.setattr(retention, "MOST_BATCHES", 2)
    for _ in range(5):
        samples.note.enqueue()
    Result.objects.update(expires_at=timezone.now())
    assert collect(), "there is more"
    assert Result.objects.count() == 1
    assert not collect()
    assert not Result.objects.exists()
