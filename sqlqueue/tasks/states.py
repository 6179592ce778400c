"""The states of tasks: rows of the table of results, written when a task is enqueued, at the start and at the end of
each attempt, and by the settle that dead-letters its message; deleted as other results when they have expired.

Each write but the first is fenced: it names the delivery that it is of, and one of an earlier delivery changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from datetime import timezone as dt_timezone
from functools import partial
from typing import Any, Final

from django.db.models import QuerySet, Value
from django.utils import timezone

from sqlqueue.core.codec import JSON_OPTIONS, decode
from sqlqueue.core.effects import Effect, EffectWrite
from sqlqueue.core.keys import TOPIC_LENGTH
from sqlqueue.core.outcomes import TOO_LATE, VisibilityTimeout, storable
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.exceptions import Expired, LeaseLost, WorkerEnded
from sqlqueue.models import Result

GROUP: Final = "tasks"  # the consumer group that runs tasks
PREFIX: Final = "tasks."  # of the topics, before the queue's name
READY, RUNNING, FAILED, SUCCESSFUL = "READY", "RUNNING", "FAILED", "SUCCESSFUL"
FINISHED: Final = (SUCCESSFUL, FAILED)
NAMES: Final = ("id", "task", "args", "kwargs", "backend", "queue", "priority", "run_after", "enqueued_at")
# Characters of a task's.
TASK_ID_LENGTH = 64
PATH_LENGTH = 255
BACKEND_LENGTH = 100
LENGTHS: Final = {"id": TASK_ID_LENGTH, "task": PATH_LENGTH, "backend": BACKEND_LENGTH, "queue": TOPIC_LENGTH}
# A task's id is one for all queues: its row names no topic.
IDENTITY: Final = {"topic": "", "partition_key": "", "consumer_group": GROUP}

# JSON as the message has it: what the server takes as a message, it takes as a state.
_as_text: Final = json.JSONEncoder(**JSON_OPTIONS).encode

MOST_ERRORS = 100  # of a task that are kept: the last ones
MOST_WORKERS = 1_000
OVERRUN: Final = (
    "attempt {} ended without an outcome: its visibility timeout passed, or the outcome could not be stored"
)


def topic_of(queue: str) -> str:
    """Return the topic of a queue's tasks."""
    return PREFIX + queue


@dataclass(slots=True)
class TaskState:
    """How a task stands.

    task: what was enqueued, by NAMES, as its message has it; status: READY, RUNNING, FAILED or SUCCESSFUL; order:
    (offset, fencing token, serial) of the delivery that has written last, each later one's is greater; attempt: its
    number; failures: how many attempts of this message have raised; kept_for: seconds from the end until it expires, as
    of the last attempt's start, None for ever; errors: (class, traceback) of each.
    """

    task: Mapping[str, Any]
    status: str = READY
    order: tuple[int, int, int] = (0, 0, 0)
    attempt: int = 0
    started_at: datetime | None = None
    last_attempted_at: datetime | None = None
    finished_at: datetime | None = None
    kept_for: int | None = None
    failures: int = 0
    worker_ids: list[str] = field(default_factory=list)
    errors: list[list[str]] = field(default_factory=list)
    return_value: Any = None

    @classmethod
    def of(cls, row: Result) -> TaskState:
        """Return the state that a row has."""
        run = json.loads(row.run or "{}")
        for name in ("started_at", "last_attempted_at", "finished_at"):
            run[name] = _moment(run.get(name))
        order = row.message_offset, row.run_token, row.serial
        errors = json.loads(row.error or "[]")
        return cls(json.loads(row.task or "{}"), row.outcome, order, row.attempts, errors=errors, **run)

    @property
    def id(self) -> str:
        """The task's id."""
        return str(self.task["id"])

    @property
    def path(self) -> str:
        """The dotted path of its function."""
        return str(self.task["task"])

    @property
    def backend(self) -> str:
        """The entry of TASKS that has enqueued it."""
        return str(self.task["backend"])

    @property
    def run_after(self) -> datetime | None:
        """When it may run."""
        return _moment(self.task["run_after"])

    @property
    def enqueued_at(self) -> datetime:
        """When it was enqueued."""
        return datetime.fromisoformat(self.task["enqueued_at"])

    def texts(self) -> dict[str, str]:
        """Return what changes with each attempt, by column. Errors are stored as they are, and what a task returns in
        ASCII, so that every database keeps it. Raises ValueError for NaN."""
        run = {
            "started_at": _text(self.started_at),
            "last_attempted_at": _text(self.last_attempted_at),
            "finished_at": _text(self.finished_at),
            "kept_for": self.kept_for,
            "failures": self.failures,
            "worker_ids": self.worker_ids,
            "return_value": self.return_value,
        }
        return {"run": json.dumps(run, allow_nan=False), "error": _as_text(self.errors)}

    def columns(self, log: Log) -> dict[str, Any]:
        """Return its row, but for what never changes: the arguments, with which the errors may be more than one packet
        takes."""
        offset, token, serial = self.order
        expires = self.expires_at
        return {
            "outcome": self.status,
            "message_offset": offset,
            "run_token": token,
            "serial": serial,
            "attempts": self.attempt,
            "expires_at": None if expires is None else Value(log.dialect.time(expires)),
            **self.texts(),
        }

    def insert(self, log: Log) -> None:
        """Store it anew. Raises IntegrityError if there is a task of this id."""
        row = Result(**IDENTITY, message_id=self.id, task=_as_text(self.task), **self.columns(log))
        row.save(using=log.alias, force_insert=True)

    @property
    def expires_at(self) -> datetime | None:
        """When it expires, if it has finished; None: never."""
        if self.finished_at is None or self.kept_for is None:
            return None
        finished = self.finished_at if timezone.is_aware(self.finished_at) else timezone.make_aware(self.finished_at)
        return finished + timedelta(seconds=self.kept_for)

    def add_error(self, kind: type[BaseException], traceback: str) -> None:
        """Add an error, and count it; the caller stores it."""
        error = [storable(f"{kind.__module__}.{kind.__qualname__}"), storable(traceback)]
        self.errors = [*self.errors, error][-MOST_ERRORS:]
        self.failures += 1


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def of_message(payload: Any) -> TaskState:
    """Return the state of a task that has not run, from the payload of a message that anyone may have published. Raises
    KeyError, TypeError or ValueError for one that is no task's: what cannot be stored would be tried for ever."""
    state = TaskState({name: payload[name] for name in NAMES})
    for name, most in LENGTHS.items():
        if not isinstance(payload[name], str):
            raise TypeError(f"{name} must be a string")
        if not 0 < len(payload[name]) <= most:
            raise ValueError(f"{name} must have 1 to {most} characters")
    if not isinstance(payload["priority"], int) or not -100 <= payload["priority"] <= 100:
        raise ValueError("priority must be a whole number from -100 to 100")
    if not isinstance(payload["args"], list) or not isinstance(payload["kwargs"], dict):
        raise TypeError("args must be a list, and kwargs an object")
    _as_text(state.task).encode()  # no half surrogates
    try:
        for moment in filter(timezone.is_aware, filter(None, (state.run_after, state.enqueued_at))):
            moment.astimezone(dt_timezone.utc)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    return state


def rows(log: Log, *ids: str) -> QuerySet[Result]:
    """Return the rows of the tasks with these ids. Index: the unique (message_id, topic, partition_key, group)."""
    return Result.objects.using(log.alias).filter(**IDENTITY, message_id__in=ids)


def stored(log: Log, id: str, *, lock: bool = False) -> TaskState | None:
    """Return the state of a task, None if there is none. lock: as it was last committed, until the caller's transaction
    ends, whatever that has read before."""
    found = rows(log, id).select_for_update() if lock else rows(log, id)
    return next(map(TaskState.of, found[:1]), None)


@dataclass(frozen=True, slots=True)
class Running:
    """Which delivery runs a task. order, attempt: as in TaskState; worker: the consumer process; after_death: the
    process before it ended, or lost its lease; most: how many errors the task may have, None for any number; keep: for
    how long the result is kept, None for ever."""

    order: tuple[int, int, int]
    attempt: int
    worker: str
    after_death: bool
    most: int | None = None
    keep: timedelta | None = None


def begin(log: Log, fresh: TaskState, running: Running, give_up: Callable[[], bool]) -> TaskState:
    """Store that a task's attempt starts, in a transaction of its own, and return the task's state.

    It is not RUNNING if there is nothing to run: an earlier delivery of this message has ended the task. The offset of
    its order is another if the task is a later message's: the replay of this one. fresh: the state to store if there is
    none any more. An attempt that has ended without an outcome counts as an error; if it was the last one, the state's
    failures say so, and the caller ends the task without an attempt. give_up: whether the delivery is lost, which ends
    the wait for a database that is unreachable. Raises LeaseLost if a later delivery has begun, and after give_up.
    """
    begun = retries.patiently(log, retries.run, log, _begin, log, fresh, running, give_up=give_up)
    if begun is None:
        raise LeaseLost
    return begun


def _begin(log: Log, fresh: TaskState, running: Running) -> TaskState:
    found = stored(log, fresh.id, lock=True)
    state = found or fresh
    offset = running.order[0]
    if state.order[0] > offset:  # its replay has begun, and this message is read again
        return state
    if state.order > running.order:
        raise LeaseLost("another delivery of this task has begun")
    again = state.order[0] == offset
    if again and state.status in FINISHED:
        return state
    if not again:  # its first delivery, or a replay's, whose errors are counted anew
        state.failures = 0
    elif state.status == RUNNING and state.attempt < running.attempt and not running.after_death:
        state.add_error(VisibilityTimeout, OVERRUN.format(running.attempt - 1))
    state.status, state.finished_at, state.return_value = RUNNING, None, None
    runs = running.most is None or state.failures < running.most
    if runs and state.order != running.order:  # else the reply to this transaction was lost, and it is run again
        state.last_attempted_at = timezone.now()
        state.started_at = state.started_at or state.last_attempted_at
        state.worker_ids = [*state.worker_ids, running.worker][-MOST_WORKERS:]
    state.order, state.attempt = running.order, running.attempt
    state.kept_for = None if running.keep is None else int(running.keep.total_seconds())
    if found is None:
        state.insert(log)
    else:
        rows(log, state.id).update(**state.columns(log))
    return state


def end(log: Log, state: TaskState, give_up: Callable[[], bool]) -> bool:
    """Store how an attempt has ended: the state's status, return value, errors and times. Return whether that is so: a
    later attempt may have begun, or the state may be gone."""
    return bool(retries.patiently(log, retries.run_statement, log, _end, log, state, give_up=give_up))


def _end(log: Log, state: TaskState) -> bool:
    offset, token, serial = state.order
    its = rows(log, state.id).filter(message_offset=offset, run_token=token, serial=serial)
    return bool(its.update(**state.columns(log)))


def mark_dead(log: Log, offset: int, payload: Any, error: str) -> None:
    """Store that a task has failed whose message becomes a dead letter, in the caller's transaction: unless its own
    attempt has said so, it ended its consumer processes. task_finished is sent after the commit."""
    try:
        id = of_message(decode(payload)).id
    except (ValueError, TypeError, KeyError):
        return  # a message that is no task's
    unfinished = rows(log, id).select_for_update().exclude(outcome__in=FINISHED).filter(message_offset__lte=offset)
    for state in map(TaskState.of, unfinished):
        state.add_error(Expired if error == TOO_LATE else WorkerEnded, error)
        state.status, state.finished_at = FAILED, timezone.now()
        state.order = offset, 0, 0  # no attempt's
        rows(log, id).update(**state.columns(log))
        log.on_commit(partial(_announce, id), robust=True)


def _announce(id: str) -> None:
    from sqlqueue.tasks.runner import announce_killed  # with the Tasks interface, which only those need that have tasks

    announce_killed(id)


class Tasks(Effect):
    """Follows the messages of tasks that run_task() is not called for."""

    topics = PREFIX

    def settle(self, log: Log, writes: Sequence[EffectWrite]) -> None:
        """Store that tasks have failed whose messages become dead letters."""
        for each in writes:
            if each.lease.ref.group == GROUP:
                mark_dead(log, each.offset, each.value.message.payload, each.value.error)

    def withdrawn(self, log: Log, topic: str, group: str, messages: Iterable[Any] | None) -> int:
        """Delete the states of tasks that are taken from the schedule, whose ids are those of their messages: they
        would wait for ever. One that has begun before, and was published again, keeps its state."""
        if messages is not None:  # else the topic is dropped, which is none of a queue
            waiting = rows(log, *messages).filter(outcome=READY, message_offset=0)
            waiting._raw_delete(waiting.db)  # nothing refers to them
        return 0


TASKS = Tasks()
