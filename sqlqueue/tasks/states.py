"""The states of tasks: written when a task is enqueued, at the start and at the end of each attempt, and by the settle
that dead-letters its message; deleted when they have expired.

Each write but the first is fenced: it names the delivery that it is of, and one of an earlier delivery changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import timezone as dt_timezone
from functools import partial
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils import timezone

from sqlqueue.core.codec import JSON_OPTIONS, decode
from sqlqueue.core.effects import Effect, EffectWrite
from sqlqueue.core.outcomes import TOO_LATE, storable
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.exceptions import Expired, LeaseLost, WorkerEnded
from sqlqueue.models import TaskState
from sqlqueue.models.task_state import FAILED, READY, RUNNING, SUCCESSFUL
from sqlqueue.signals import announce, task_killed

GROUP: Final = "tasks"  # the consumer group that runs tasks
PREFIX: Final = "tasks."  # of the topics, before the queue's name
FINISHED: Final = (SUCCESSFUL, FAILED)

# JSON as the message has it: what the server takes as a message, it takes as a state.
_as_text: Final = json.JSONEncoder(**JSON_OPTIONS).encode

MOST_ERRORS = 100  # of a task that are kept: the last ones
MOST_WORKERS = 1_000
# What an attempt's start writes. Not the arguments: with the errors they may be more than one packet takes.
BEGUN: Final = (
    "status",
    "started_at",
    "last_attempted_at",
    "finished_at",
    "expires_at",
    "worker_ids",
    "errors",
    "return_value",
    "kept_for",
    "failures",
    "run",
    "run_offset",
    "run_token",
    "run_attempt",
)
BATCH = 1_000
MOST_AT_ONCE = 100 * BATCH


def topic_of(queue: str) -> str:
    """Return the topic of a queue's tasks."""
    return PREFIX + queue


@dataclass(frozen=True, slots=True)
class Running:
    """Which delivery runs a task. order: (offset, fencing token, attempt), which grows with each later delivery; name:
    of this attempt alone; worker: the consumer process; after_death: the process before it ended, or lost its lease;
    keep: for how long the result is kept, None for ever."""

    order: tuple[int, int, int]
    name: str
    worker: str
    after_death: bool
    keep: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """An error as it is stored: the dotted path of its class, and the traceback as text."""

    path: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Overrun:
    """The error of an attempt that has ended without an outcome, and how many errors a task may have (None: any
    number)."""

    error: TaskFailure
    most: int | None


def begin(log: Log, fresh: TaskState, running: Running, overrun: Overrun, give_up: Callable[[], bool]) -> TaskState:
    """Store that a task's attempt starts, in a transaction of its own, and return the task's state.

    It is not RUNNING if there is nothing to run: an earlier delivery of this message has ended the task. Its run_offset
    is another if the task is a later message's: the replay of this one. fresh: the state to store if there is none any
    more; overrun: what an attempt that has ended without an outcome counts as; if it was the last one, the state's
    failures say so, and the caller ends the task without an attempt; give_up: whether the delivery is lost, which ends
    the wait for a database that is unreachable. Raises LeaseLost if a later delivery has begun, and after give_up.
    """
    values = (log, fresh, running, overrun, give_up)
    begun = retries.patiently(log, retries.run, log, _begin, *values, give_up=give_up)
    if begun is None:
        raise LeaseLost
    return begun


def _begin(log: Log, fresh: TaskState, running: Running, overrun: Overrun, is_lost: Callable[[], bool]) -> TaskState:
    found = TaskState.objects.using(log.alias).select_for_update().filter(pk=fresh.pk).first()
    state = found or fresh
    offset, token, attempt = running.order
    if state.run_offset > offset:  # its replay has begun, and this message is read again
        return state
    again = state.run_offset == offset
    # An operator may have set the attempts back.
    if again and (state.run_token > token or (state.run_token == token and state.run_attempt > attempt and is_lost())):
        raise LeaseLost("another delivery of this task has begun")
    if again and state.status in FINISHED:
        return state
    if not again:  # its first delivery, or a replay's, whose errors are counted anew
        state.failures = 0
    elif state.status == RUNNING and state.run_attempt < attempt and not running.after_death:
        add_error(state, overrun.error)
    state.status, state.finished_at, state.expires_at, state.return_value = RUNNING, None, None, None
    runs = overrun.most is None or state.failures < overrun.most
    if runs and state.run != running.name:  # else the reply to this transaction was lost, and it is run again
        state.last_attempted_at = timezone.now()
        state.started_at = state.started_at or state.last_attempted_at
        state.worker_ids = json.dumps([*json.loads(state.worker_ids or "[]"), running.worker][-MOST_WORKERS:])
    state.run_offset, state.run_token, state.run_attempt = running.order
    state.run = running.name
    state.kept_for = None if running.keep is None else int(running.keep.total_seconds())
    if found is None:
        state.save(using=log.alias, force_insert=True)
    else:
        state.save(using=log.alias, update_fields=BEGUN)
    return state


def add_error(state: TaskState, error: TaskFailure) -> None:
    """Add an error to a state, and count it; the caller stores it."""
    errors = [*json.loads(state.errors or "[]"), [error.path, error.traceback]]
    state.errors, state.failures = _as_text(errors[-MOST_ERRORS:]), state.failures + 1


def end(log: Log, state: TaskState, give_up: Callable[[], bool]) -> bool:
    """Store how an attempt has ended: the state's status, return value, errors and times. Return whether that is so: a
    later attempt may have begun, or the state may be gone."""
    return bool(retries.patiently(log, retries.run_statement, log, _end, log, state, give_up=give_up))


def _end(log: Log, state: TaskState) -> bool:
    rows = TaskState.objects.using(log.alias).filter(pk=state.pk, run=state.run)
    values = {name: getattr(state, name) for name in ("status", "return_value", "errors", "failures")}
    return bool(rows.update(**values, finished_at=state.finished_at, expires_at=state.expires_at))


def mark_dead(log: Log, offset: int, payload: Any, error: str) -> None:
    """Store that a task has failed whose message becomes a dead letter, in the caller's transaction: unless its own
    attempt has said so, it ended its consumer processes. `task_killed` is announced after the commit."""
    try:
        id = of_message(decode(payload)).pk
    except (ValueError, TypeError, KeyError):
        return  # a message that is no task's
    unfinished = TaskState.objects.using(log.alias).select_for_update().exclude(status__in=FINISHED)
    for state in unfinished.filter(pk=id, run_offset__lte=offset):
        add_error(state, failure_of_worker(error))
        state.status, state.finished_at = FAILED, timezone.now()
        state.expires_at = expiry(state)
        state.run, state.run_offset = "", offset
        state.save(using=log.alias, force_update=True)
        log.on_commit(partial(announce, task_killed, mark_dead, id=state.pk, database=log.label))


def failure_of_worker(error: str) -> TaskFailure:
    """Return the error of a task whose message was given up, for the reason that the queue gives."""
    kind = Expired if error == TOO_LATE else WorkerEnded
    return TaskFailure(f"{kind.__module__}.{kind.__qualname__}", storable(error))


# -- deleting ---------------------------------------------------------------------------------------------------------


def withdraw(log: Log, ids: Sequence[str]) -> None:
    """Delete the states of the tasks whose scheduled messages, with these ids, the caller's transaction is about to
    delete: they would wait for ever. A task that has begun before, and was published again, keeps its state."""
    _delete_some(TaskState.objects.using(log.alias).filter(pk__in=ids, status=READY, run_offset=0))


def expire(log: Log) -> int:
    """Delete the states that have expired, MOST_AT_ONCE at most; return how many."""
    expired = TaskState.objects.using(log.alias).filter(expires_at__lte=timezone.now())
    total = 0
    for _ in range(MOST_AT_ONCE // BATCH):
        keys = list(expired.order_by("expires_at").values_list("pk", flat=True)[:BATCH])
        if keys:
            # Again by the condition: a replay may have started one of them meanwhile.
            total += retries.run_statement(log, _delete_some, expired.filter(pk__in=keys))
        if len(keys) < BATCH:
            break
    return total


def _delete_some(rows: QuerySet[TaskState]) -> int:
    return rows._raw_delete(rows.db)  # nothing refers to them


def new(task: Mapping[str, Any]) -> TaskState:
    """Return the state of a task that has not run, from the payload of its message."""
    return TaskState(
        id=task["id"],
        backend=task["backend"],
        queue=task["queue"],
        path=task["task"],
        arguments=_as_text([task["args"], task["kwargs"]]),
        priority=task["priority"],
        run_after=None if task["run_after"] is None else datetime.fromisoformat(task["run_after"]),
        status=READY,
        enqueued_at=datetime.fromisoformat(task["enqueued_at"]),
        worker_ids="[]",
        errors="[]",
        failures=0,
        run="",
        run_offset=0,
        run_token=0,
        run_attempt=0,
    )


def of_message(payload: Any) -> TaskState:
    """Return the state of a task from the payload of a message that anyone may have published. Raises KeyError,
    TypeError or ValueError for one that is no task's: what cannot be stored would be tried for ever."""
    state = new(payload)
    for name in ("id", "task", "backend", "queue"):
        if not isinstance(payload[name], str):
            raise TypeError(f"{name} must be a string")
    if not isinstance(state.priority, int) or not -100 <= state.priority <= 100:
        raise ValueError("priority must be a whole number from -100 to 100")
    if not isinstance(payload["args"], list) or not isinstance(payload["kwargs"], dict):
        raise TypeError("args must be a list, and kwargs an object")
    try:
        for name in ("id", "backend", "queue", "path"):
            TaskState._meta.get_field(name).clean(getattr(state, name), state)  # type: ignore[union-attr]
        f"{state.pk}{state.backend}{state.queue}{state.path}{state.arguments}".encode()  # no half surrogates
        for moment in filter(timezone.is_aware, filter(None, (state.run_after, state.enqueued_at))):
            moment.astimezone(dt_timezone.utc)
    except (ValidationError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return state


def expiry(state: TaskState) -> datetime | None:
    """Return when a state that has finished expires; None: never."""
    if state.finished_at is None or state.kept_for is None:
        return None
    return state.finished_at + timedelta(seconds=state.kept_for)


class Tasks(Effect):
    """Follows the messages of tasks that run_task() is not called for."""

    topics = PREFIX

    def settle(self, log: Log, writes: Sequence[EffectWrite]) -> None:
        """Store that tasks have failed whose messages become dead letters."""
        for each in writes:
            if each.lease.ref.group == GROUP:
                mark_dead(log, each.offset, each.value.message.payload, each.value.error)

    def withdrawn(self, log: Log, topic: str, group: str, messages: Iterable[Any] | None) -> int:
        """Delete the states of tasks that are taken from the schedule: their ids are those of their messages."""
        withdraw(log, list(messages or ()))
        return 0

    def sweep(self, log: Log) -> bool:
        """Delete the states that have expired."""
        return expire(log) >= MOST_AT_ONCE


TASKS = Tasks()
