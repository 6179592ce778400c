"""Enqueue: a task's state and its message, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from django.db import connections, transaction
from django.utils import timezone

from sqlqueue.conf import settings
from sqlqueue.core.new_message import NewMessage
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log import task_states
from sqlqueue.log.publish import publish_message
from sqlqueue.log.shard_publish import until_placed
from sqlqueue.log.topics import to_publish
from sqlqueue.models.task_state import PATH_LENGTH
from sqlqueue.tasks.interface import InvalidTask, Task, TaskResult, normalize_json
from sqlqueue.tasks.queues import PRIORITY_HEADER, may_have_tasks
from sqlqueue.tasks.results import NOT_THERE, result_with
from sqlqueue.tasks.shards import chosen, id_at

LOWEST, HIGHEST = -100, 100  # a task's priority


def enqueue(backend: str, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
    """Store a task and publish its message. Raises InvalidMessage for what cannot be stored."""
    if settings.sharded:
        return until_placed(lambda: _enqueue(backend, task, args, kwargs))
    return _enqueue(backend, task, args, kwargs)


def _enqueue(backend: str, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
    path = task.module_path
    if len(path) > PATH_LENGTH:
        raise InvalidMessage(f"the task's path has {len(path)} characters; {PATH_LENGTH} is the most: {path[:80]}…")
    if not may_have_tasks(path):
        raise InvalidTask(f"no consumer process would run it: {path} {NOT_THERE}")
    topic = task_states.topic_of(task.queue_name)
    alias = chosen(topic)
    priority, now = int(task.priority), timezone.now()
    payload = {
        "id": id_at(alias),
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
    alone = not connections[alias].in_atomic_block
    with transaction.atomic(using=alias) if alone else nullcontext():
        stream = stream_of(priority, to_publish(alias, topic).priorities)
        message = NewMessage(payload, headers={PRIORITY_HEADER: priority}, priority=stream, at=at)
        publish_message(topic, message, alias=alias)
        state = task_states.new(payload)
        state.save(using=alias, force_insert=True)
    return result_with(state, task)


def stream_of(priority: int, streams: int) -> int:
    """Return which of a topic's priorities a task's belongs to: 0 is the most urgent."""
    return (HIGHEST - priority) * streams // (HIGHEST - LOWEST + 1)
