"""Tasks on several shards: each one's state is where its message is, and is found by its id."""

from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext

from sqlqueue import InvalidMessage, cancel_all, replay
from sqlqueue.consumers.registry import registry
from sqlqueue.models import Message, ScheduledMessage, TaskState
from sqlqueue.tasks import shards as task_shards
from sqlqueue.testing import drain
from tests.shards.aliases import A, B

pytestmark = pytest.mark.long("mariadb", "mysql", "postgresql")

TOPIC = "tasks.default"


@pytest.fixture(autouse=True)
def samples(shards: dict[str, Any], settings: Any) -> Any:
    from tests.tasks.declared import TASKS, samples  # the apps are ready only now

    settings.SQLQUEUE = shards | {"TOPICS": {TOPIC: {"shards": ["a", "b"]}}}
    settings.TASKS = TASKS
    samples.RAN.clear()
    registry.discover()
    return samples


def on(alias: str, task: Any, *values: Any) -> Any:
    with transaction.atomic(using=alias):
        return task.enqueue(*values)


def states(alias: str) -> dict[str, str]:
    return dict(TaskState.objects.using(alias).values_list("id", "status"))


def test_a_task_is_where_its_transaction_is_and_its_result_is_found_by_its_id(samples: Any) -> None:
    first, second = on(A, samples.note, "on a"), on(B, samples.note, "on b")
    assert (states(A), states(B)) == ({first.id: "READY"}, {second.id: "READY"})
    assert drain() == 2
    assert sorted(samples.RAN) == ["on a", "on b"]
    for result, alias in ((first, A), (second, B)):
        result.refresh()
        assert result.status == "SUCCESSFUL"
        assert states(alias) == {result.id: "SUCCESSFUL"}
    assert first.return_value == {"what": "on a"}


def test_its_id_tells_which_shard_to_ask(samples: Any) -> None:
    results = [on(alias, samples.note, 1) for alias in (A, B) * 5]
    with CaptureQueriesContext(connections[A]) as of_a, CaptureQueriesContext(connections[B]) as of_b:
        for result in results:
            result.refresh()
    assert [len([one for one in asked if "task_state" in one["sql"]]) for asked in (of_a, of_b)] == [5, 5]


def test_others_are_spread(samples: Any) -> None:
    ids = {samples.note.enqueue(number).id for number in range(40)}
    assert len(states(A)) > 3
    assert len(states(B)) > 3
    assert {*states(A), *states(B)} == ids
    assert drain() == 40
    assert sorted(samples.RAN) == [*range(40)]


def test_it_is_rolled_back_with_its_transaction(samples: Any) -> None:
    with transaction.atomic(using=B):
        samples.note.enqueue(1)
        transaction.set_rollback(True, using=B)
    assert drain() == 0
    assert states(B) == {}


def test_one_that_fails_is_replayed_on_its_shard_under_its_id(samples: Any) -> None:
    result = on(B, samples.fail, "bad")
    drain()
    result.refresh()
    assert result.status == "FAILED"
    assert Message.objects.using(B).dead_letters().count() == 1
    assert replay(TOPIC) == 1
    drain()
    assert samples.RAN == ["bad", "bad"]
    assert states(B) == {result.id: "FAILED"}
    assert states(A) == {}


def test_one_that_waits_is_taken_back(samples: Any) -> None:
    from django.utils import timezone

    at = timezone.now() + timezone.timedelta(hours=1)
    for alias in (A, B):
        on(alias, samples.note.using(run_after=at), 1)
    assert ScheduledMessage.objects.using(B).count() == 1
    assert cancel_all(TOPIC, key="") == 2
    assert (states(A), states(B)) == ({}, {})


def test_in_a_transaction_on_a_shard_that_its_topic_is_not_on(samples: Any) -> None:
    with transaction.atomic(using=B):
        with pytest.raises(InvalidMessage, match=r"are on shard 'a', and the open .* shard 'b'.*transaction.on_commit"):
            samples.special.enqueue()
        transaction.on_commit(samples.special.enqueue, using=B)
    assert len(states(A)) == 1


def test_one_of_the_time_before_shards_is_found(samples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(task_shards, "shard_of", lambda *_: "a")
        result = on(A, samples.note, 1)
        patch.setattr(task_shards, "shard_of", lambda *_: "b")
        result.refresh()
    assert result.status == "READY"


def test_an_unknown_one_is_unknown_only_if_all_shards_answer(samples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.tasks.declaring import TaskResultDoesNotExist, default_task_backend

    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result("unknown")
    known = on(A, samples.note, 1)
    first = QuerySet.first

    def down(self: Any) -> Any:
        if self.db == B:
            raise OperationalError(2013, "Lost connection")
        return first(self)

    monkeypatch.setattr(QuerySet, "first", down)
    monkeypatch.setattr(task_shards.retries, "classify", lambda error: task_shards.ErrorKind.GONE)
    known.refresh()
    with pytest.raises(OperationalError):
        default_task_backend.get_result("unknown")


def test_results_are_pruned_on_every_shard(samples: Any) -> None:
    from django.core.management import call_command

    for alias in (A, B):
        on(alias, samples.note, 1)
    drain()
    call_command("queueprune", "--min-age", "0", "--no-input")
    assert (states(A), states(B)) == ({}, {})
