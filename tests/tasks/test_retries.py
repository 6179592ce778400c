"""What becomes of tasks that raise, take too long, or end their process."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from sqlqueue import HandOver, publish, replay
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.exceptions import ConfigurationError, LeaseLost, NotRun, WorkerEnded
from sqlqueue.models import DeliveryState, Message, Result
from sqlqueue.operations.move import move
from sqlqueue.tasks import queues, task_options
from sqlqueue.tasks import states as task_states
from sqlqueue.tasks.interface import TaskResultStatus
from sqlqueue.tasks.states import Running, TaskState
from sqlqueue.testing import drain
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import ManageCommands, wait_until
from tests.tasks.declared import DEFAULT, RETRYING, TASKS, samples
from tests.tasks.declaring import default_task_backend, task_finished
from tests.tasks.stored import only_state, state_of, states

pytestmark = pytest.mark.django_db(transaction=True)

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


def ended(result: Any) -> Any:
    drain()
    result.refresh()
    return result


def test_a_task_is_tried_again_if_the_backend_says_so() -> None:
    result = ended(samples.fail_until.enqueue(3))
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [OSError, OSError]
    assert [error.traceback.rstrip()[-10:] for error in result.errors] == ["not yet, 1", "not yet, 2"]
    assert result.started_at <= result.last_attempted_at <= result.finished_at


def test_a_task_fails_at_the_last_attempt() -> None:
    result = ended(samples.fail_until.enqueue(10))
    assert (result.status, result.attempts, len(result.errors)) == (FAILED, 3, 3)
    (letter,) = Message.objects.dead_letters(topic="tasks.default")
    assert letter.last_error.endswith("OSError: not yet, 3")


@pytest.mark.parametrize(("task", "kind"), [("hidden", "coroutine"), ("returns_steps", "generator")])
def test_a_task_that_returns_what_has_not_run_has_failed_and_is_not_tried_again(task: str, kind: str) -> None:
    result = ended(getattr(samples, task).enqueue())
    assert (result.status, result.attempts, [error.exception_class for error in result.errors]) == (FAILED, 1, [NotRun])
    assert f"samples.{task} returned a {kind}" in result.errors[0].traceback
    assert (["called"] if kind == "generator" else []) == samples.RAN


def test_a_hand_over_is_an_exception_as_any_other() -> None:
    """Its caller waits for a result, which people could not give."""
    result = ended(samples.hand_over.enqueue())
    assert (result.status, [error.exception_class for error in result.errors]) == (FAILED, [HandOver])
    assert not WorkItem.objects.exists()


def test_a_task_waits_ready_for_its_next_attempt(settings: Any) -> None:
    settings.TASKS = {**TASKS, "retrying": {**RETRYING, "OPTIONS": {"max_attempts": 3, "backoff": 3600}}}
    result = ended(samples.fail_until.enqueue(2))
    assert (result.status, result.attempts, len(result.errors), result.is_finished) == (READY, 1, 1, False)
    assert drain(ahead=timedelta(hours=2)) == 1
    result.refresh()
    assert (result.status, result.attempts) == (SUCCESSFUL, 2)


def test_a_tasks_own_options_win() -> None:
    result = ended(samples.own_options.enqueue("os"))
    assert (result.status, result.attempts) == (FAILED, 2)
    result = ended(samples.own_options.enqueue("value"))
    assert (result.status, result.attempts) == (FAILED, 1), "retry_for names OSError only"


def test_postpone_and_reject_keep_their_meaning() -> None:
    result = ended(samples.not_now.enqueue())
    assert (result.status, result.return_value, result.errors) == (SUCCESSFUL, "now", [])
    result = ended(samples.rejected.enqueue())
    assert (result.status, result.attempts) == (FAILED, 1)


def test_the_context_counts_attempts() -> None:
    assert ended(samples.in_context_later.enqueue()).return_value == 2


def test_a_replayed_task_is_run_again_with_fresh_attempts() -> None:
    result = ended(samples.fail_until.enqueue(5))
    assert (result.status, result.attempts) == (FAILED, 3)
    assert replay("tasks.default", group="tasks") == 1
    result = ended(result)
    assert (result.status, result.attempts, result.return_value) == (SUCCESSFUL, 5, 5)


def test_a_replayed_task_whose_result_was_pruned_is_run_again() -> None:
    result = ended(samples.fail_until.enqueue(4))
    Result.objects.all().delete()
    assert replay("tasks.default", group="tasks") == 1
    result = ended(result)
    assert (result.status, result.args, result.return_value) == (SUCCESSFUL, [4], 4)


def test_a_message_that_is_no_tasks_is_a_dead_letter() -> None:
    publish("tasks.default", {"hello": "world"})
    publish("tasks.default", [1])
    drain()
    letters = Message.objects.dead_letters(topic="tasks.default")
    assert letters.count() == 2
    assert all("no task's" in letter.last_error for letter in letters)


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": "x" * 65},
        {"id": 7},
        {"task": 7},
        {"task": "a" * 256},
        {"backend": None},
        {"backend": "b" * 101},
        {"queue": "q" * 101},
        {"priority": "high"},
        {"priority": None},
        {"priority": 10**9},
        {"args": {"a": 1}},
        {"kwargs": [1]},
        {"run_after": "0001-01-01T00:00:00+14:00"},
        {"enqueued_at": "0001-01-01T00:00:00+14:00"},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_message_that_is_nearly_a_tasks_is_a_dead_letter(change: dict[str, Any]) -> None:
    samples.note.enqueue("whole")
    message = Message.objects.get()
    state = only_state()
    publish("tasks.default", {**message.payload, "id": "another", **change})
    drain()
    (letter,) = Message.objects.dead_letters(topic="tasks.default")
    assert "no task's" in letter.last_error
    assert not DeliveryState.objects.filter(acked=False).exists(), "it is not tried again"
    assert [one.id for one in states()] == [state.id]


@pytest.mark.parametrize("keys", [("id",), ("id", "task", "args", "kwargs", "backend", "queue", "priority")])
def test_an_id_that_no_database_keeps_ends_no_process(keys: tuple[str, ...]) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the others refuse it as JSON")
    samples.note.enqueue("whole")
    payload = {**Message.objects.get().payload, "id": "\ud800"}
    text = json.dumps({name: payload[name] for name in (*keys, *("run_after", "enqueued_at")[: len(keys) - 1])})
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO sqlqueue_scheduled_message (topic, payload) VALUES ('tasks.default', %s)", [text])
    assert drain() == 2
    assert Message.objects.dead_letters(topic="tasks.default").count() == 1


def test_a_replayed_tasks_first_message_may_be_read_again() -> None:
    result = ended(samples.fail_until.enqueue(4))
    assert replay("tasks.default", group="tasks") == 1
    result = ended(result)
    assert (result.status, result.attempts) == (SUCCESSFUL, 4)
    move(LOG, "tasks", "tasks.default", target=0)
    assert drain() == 2
    again = ended(result)
    assert (again.status, again.attempts) == (SUCCESSFUL, 4)
    assert not DeliveryState.objects.filter(acked=False).exists(), "it is not tried again"
    assert not Message.objects.dead_letters(topic="tasks.default").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_attemps": 2}, "Did you mean 'max_attempts'"),
        ({"max_attempts": 0}, "max_attempts must be"),
        ({"keep_results": -1}, "keep_results must be"),
        ({"retry_for": "no.such.Error"}, "cannot be imported"),
        ({"retry_for": 7}, "exception classes"),
        ({"backoff": 10, "max_backoff": 1}, "longer than max_backoff"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str, settings: Any) -> None:
    with pytest.raises(ConfigurationError, match=said):
        task_options(**options)
    settings.TASKS = {"default": {**DEFAULT, "OPTIONS": options}}
    (problem,) = queues.problems()
    assert said in problem
    assert "TASKS['default']" in problem


def test_task_options_stands_below_task() -> None:
    with pytest.raises(ConfigurationError, match="below @task"):
        task_options(max_attempts=2)(samples.note)


# -- in threads of a consumer -----------------------------------------------------------------------------------------


@pytest.fixture
def hosting(consuming: Consuming) -> Consuming:
    queues.add_consumers(registry)
    return consuming


def test_a_task_that_overruns_fails_and_is_not_run_again(hosting: Consuming, settings: Any) -> None:
    settings.TASKS = {"default": {**DEFAULT, "OPTIONS": {"visibility_timeout": 0.2, "backoff": 0}}}
    queues.add_consumers(registry)
    gate, samples.GATE = samples.GATE, hosting.gate()
    try:
        result = samples.wait_at_the_gate.enqueue()
        hosting.start()
        wait_until(lambda: default_task_backend.get_result(result.id).status == FAILED)
        samples.GATE.set()
        result.refresh()
        assert result.attempts == 1
        assert result.errors[0].exception_class.__name__ == "VisibilityTimeout"
        hosting.end_hosts()
        result.refresh()
        assert result.status == FAILED, "what it returned too late changes nothing"
    finally:
        samples.GATE = gate
    assert samples.RAN == ["at the gate"]


def test_a_running_task_is_seen_as_running(hosting: Consuming) -> None:
    gate, samples.GATE = samples.GATE, hosting.gate()
    try:
        result = samples.wait_at_the_gate.enqueue()
        host = hosting.start()
        wait_until(lambda: samples.RAN)
        result.refresh()
        assert (result.status, result.worker_ids, result.finished_at) == (RUNNING, [host.name], None)
        samples.GATE.set()
        wait_until(lambda: default_task_backend.get_result(result.id).status == SUCCESSFUL)
    finally:
        samples.GATE = gate


def test_many_tasks_in_two_processes_run_once_each(hosting: Consuming) -> None:
    hosts = [hosting.start(threads=3) for _ in range(2)]
    results = [samples.note.using(priority=number % 7).enqueue(number) for number in range(150)]
    wait_until(lambda: Result.objects.filter(outcome="SUCCESSFUL").count() == len(results))
    assert sorted(samples.RAN) == list(range(150))
    found = states()
    assert {len(state.worker_ids) for state in found} == {1}
    assert {name for state in found for name in state.worker_ids} <= {host.name for host in hosts}


# -- fenced -----------------------------------------------------------------------------------------------------------


def begin(
    state: TaskState, offset: int, token: int, attempt: int, after_death: bool = False, serial: int | None = None
) -> TaskState:
    order = offset, token, attempt if serial is None else serial
    running = Running(order, attempt, f"w{token}", after_death, keep=timedelta(hours=1))
    fresh = task_states.of_message(payload_of(state))
    return task_states.begin(LOG, fresh, running, lambda: True)


def payload_of(state: TaskState) -> dict[str, Any]:
    message = Message.objects.get(payload__id=state.id)
    return message.payload


def end(state: TaskState, status: str) -> bool:
    state.status, state.finished_at = status, timezone.now()
    return task_states.end(LOG, state, lambda: True)


@pytest.fixture
def state() -> TaskState:
    return state_of(samples.note.enqueue().id)


def test_a_former_owner_changes_nothing(state: TaskState) -> None:
    old = begin(state, 1, 1, 1)
    new = begin(state, 1, 2, 2, after_death=True)
    assert not end(old, "SUCCESSFUL"), "its outcome is ignored"
    with pytest.raises(LeaseLost):
        begin(state, 1, 1, 1)
    assert only_state().status == "RUNNING"
    assert end(new, "FAILED")
    assert not end(old, "SUCCESSFUL")
    state = only_state()
    assert (state.status, state.worker_ids) == ("FAILED", ["w1", "w2"])


def test_attempts_that_an_operator_has_set_back_are_made(state: TaskState) -> None:
    begun = begin(state, 1, 1, 3)
    begun.status = "READY"
    assert task_states.end(LOG, begun, lambda: True)
    with pytest.raises(LeaseLost):
        begin(state, 1, 1, 1)
    begun = begin(state, 1, 1, 1, serial=4)
    assert (begun.status, begun.attempt, begun.failures) == ("RUNNING", 1, 0)


def test_a_task_whose_ack_was_lost_is_not_run_again(state: TaskState) -> None:
    first = begin(state, 1, 1, 1)
    assert end(first, "SUCCESSFUL")
    again = begin(state, 1, 2, 2, after_death=True)
    assert (again.status, again.worker_ids) == ("SUCCESSFUL", ["w1"])


def test_a_begin_whose_reply_was_lost_is_one_attempt(state: TaskState) -> None:
    begin(state, 1, 1, 1)
    again = begin(state, 1, 1, 1)
    assert (again.worker_ids, again.failures) == (["w1"], 0)
    assert end(again, "SUCCESSFUL")
    assert end(again, "SUCCESSFUL"), "so may the end's be"


def test_deaths_are_no_errors_and_overruns_are(state: TaskState) -> None:
    begin(state, 1, 1, 1)
    assert begin(state, 1, 2, 2, after_death=True).failures == 0
    assert begin(state, 1, 2, 3).failures == 1
    begun = begin(state, 1, 3, 3)  # released when its process stopped, and taken up by another
    ((kind, text),) = begun.errors
    assert (begun.failures, kind) == (1, "sqlqueue.core.outcomes.VisibilityTimeout")
    assert "attempt 2 ended without an outcome" in text
    assert begin(state, 2, 3, 1).failures == 0, "a replay's errors are counted anew"


def test_errors_and_workers_are_bounded(state: TaskState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_states, "MOST_ERRORS", 2)
    monkeypatch.setattr(task_states, "MOST_WORKERS", 3)
    for attempt in range(1, 6):
        begun = begin(state, 1, attempt, attempt)
    assert begun.worker_ids == ["w3", "w4", "w5"]
    assert (len(begun.errors), begun.failures) == (2, 4)


def test_a_message_that_is_given_up_fails_its_task(state: TaskState) -> None:
    heard: list[Any] = []

    def hear(task_result: Any, **kwargs: Any) -> None:
        heard.append((task_result.id, task_result.status))

    message = Message.objects.get()
    begun = begin(state, message.offset, 1, 1)
    task_finished.connect(hear)
    try:
        with transaction.atomic():
            task_states.mark_dead(LOG, message.offset, message.payload, "its consumer process ended 5 times")
            assert heard == [], "only once it is committed"
    finally:
        task_finished.disconnect(hear)
    assert heard == [(state.id, FAILED)]
    assert not end(begun, "SUCCESSFUL"), "the process lives, and has lost its lease"
    assert begin(state, message.offset, 1, 1).status == "FAILED"
    found = default_task_backend.get_result(state.id)
    assert (found.status, [error.exception_class for error in found.errors]) == (FAILED, [WorkerEnded])
    assert Result.objects.get().expires_at - only_state().finished_at == timedelta(hours=1)


def test_what_has_ended_is_not_given_up(state: TaskState) -> None:
    message = Message.objects.get()
    end(begin(state, message.offset, 1, 1), "SUCCESSFUL")
    for payload in (message.payload, {"id": "another"}, {"id": 7}, {}, [], "x", None):
        with transaction.atomic():
            task_states.mark_dead(LOG, message.offset, payload, "ended")
    assert only_state().status == "SUCCESSFUL"


# -- processes that are killed ----------------------------------------------------------------------------------------


def run_consumers(manage: ManageCommands, settings: Any, **options: Any) -> Any:
    env = {
        "TASKS": json.dumps(settings.TASKS),
        "SQLQUEUE": json.dumps(
            {"PARTITIONS": 1, "BALANCE_INTERVAL": 0.1, "IDLE_POLL_INTERVAL": 0.05, "FLUSH_INTERVAL": 0.1, **options}
        ),
    }
    return manage("runconsumers", "--processes=1", "--threads=2", "--drain", env=env)


@pytest.mark.once
def test_a_task_that_kills_its_process_fails_after_five_deaths(manage: ManageCommands, settings: Any) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 1}
    result, other = samples.end_the_process.enqueue(), samples.note.enqueue("unharmed")
    command = run_consumers(manage, settings)
    wait_until(lambda: default_task_backend.get_result(result.id).is_finished, timeout=90)
    wait_until(lambda: default_task_backend.get_result(other.id).is_finished)
    command.wait()
    result.refresh()
    other.refresh()
    assert (result.status, result.attempts) == (FAILED, 5)
    (error,) = result.errors
    assert error.exception_class is WorkerEnded
    assert "ended 5 times" in error.traceback
    assert len(set(result.worker_ids)) == 5
    assert other.status == SUCCESSFUL
