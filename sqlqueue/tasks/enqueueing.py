"""Enqueue: a task's state and its message, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import IntegrityError
from django.utils import timezone

from sqlqueue.conf import settings
from sqlqueue.core.keys import new_id
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.placement import open_logs
from sqlqueue.log.publish import publish_in_block
from sqlqueue.log.published_topic import IGNORED
from sqlqueue.log.topics import published_topic
from sqlqueue.tasks.interface import InvalidTask, Task, TaskResult, normalize_json
from sqlqueue.tasks.queues import PRIORITY_HEADER, may_have_tasks
from sqlqueue.tasks.results import NOT_THERE, is_id, result_with, task_of
from sqlqueue.tasks.states import PATH_LENGTH, TASK_ID_LENGTH, TaskState, stored, topic_of

LOWEST, HIGHEST = -100, 100  # a task's priority


class Enqueued(NamedTuple):
    """The result of a task; new: it was enqueued now, and not before under the same id."""

    result: TaskResult
    new: bool


def enqueue(
    backend: str,
    task: Task,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    id: str | None = None,
    expires: float | timedelta | None = None,
) -> Enqueued:
    """Store a task and publish its message, whose id is the task's; id: the caller's own, which may be known already.
    Raises InvalidMessage for what cannot be stored."""
    if id is not None and not is_id(id):
        raise InvalidMessage(f"a task's id is 1 to {TASK_ID_LENGTH} characters of ASCII, not {id!r}")
    path = task.module_path
    if len(path) > PATH_LENGTH:
        raise InvalidMessage(f"the task's path has {len(path)} characters; {PATH_LENGTH} is the most: {path[:80]}…")
    if not may_have_tasks(path):
        raise InvalidTask(f"no consumer process would run it: {path} {NOT_THERE}")
    log = home_log()
    if id is not None and (known := stored(log, id)) is not None:
        return Enqueued(result_with(known, task_of(known)), False)
    topic = topic_of(task.queue_name)
    _refuse_other_transactions(topic)
    priority, now = int(task.priority), timezone.now()
    payload = {
        "id": new_id() if id is None else id,
        "task": path,
        "args": normalize_json(list(args)),
        "kwargs": normalize_json(dict(kwargs)),
        "backend": backend,
        "queue": task.queue_name,
        "priority": priority,
        "run_after": None if task.run_after is None else task.run_after.isoformat(),
        "enqueued_at": now.isoformat(),
    }
    at = task.run_after
    if at is not None and timezone.is_naive(at):  # USE_TZ is off
        at = timezone.make_aware(at)
    # In the caller's transaction what is refused must not end it.
    alone = not log.connection.in_atomic_block
    with log.atomic() if alone else nullcontext():
        stream = stream_of(priority, published_topic(log, topic).info.priorities)
        message = NewMessage(
            payload, id=payload["id"], headers={PRIORITY_HEADER: priority}, priority=stream, at=at, expires=expires
        )
        message.fresh = id is None
        state = TaskState(payload)
        if id is None:
            publish_in_block(topic, message)
            state.insert(log)
        elif (other := _store_named(log, state, topic, message)) is not None:
            return Enqueued(result_with(other, task_of(other)), False)
    return Enqueued(result_with(state, task), True)


def _store_named(log: Log, state: TaskState, topic: str, message: NewMessage) -> TaskState | None:
    """Store a task under an id that another transaction may be storing, too, and publish its message; return the state
    of that other one if it is there. Nothing is left of what is refused."""
    try:
        with log.atomic():
            state.insert(log)
            if publish_in_block(topic, message).status == IGNORED:
                raise InvalidMessage(
                    f"the id {state.id!r} was that of a task whose result is deleted, and whose message is still there:"
                    " give another one"
                )
    except IntegrityError:
        return stored(log, state.id, lock=True)
    return None


def _refuse_other_transactions(topic: str) -> None:
    """Raise InvalidMessage if transactions are open, and none on DATABASE, where tasks are."""
    opened = open_logs() if settings.several else []
    if opened and home_log() not in opened:
        raise InvalidMessage(
            f"the tasks of topic {topic!r} are on DATABASE, {home_log().alias!r}, and the open transaction is on "
            f"{opened[0]!r}: they would not commit together. Enqueue it with transaction.on_commit(…, using=…)"
        )


def stream_of(priority: int, streams: int) -> int:
    """Return which of a topic's priorities a task's belongs to: 0 is the most urgent."""
    return (HIGHEST - priority) * streams // (HIGHEST - LOWEST + 1)
