"""Results: the stored state of a task as the Tasks interface shows it."""

from __future__ import annotations

import json
import types
from contextlib import suppress
from dataclasses import fields
from typing import Any

from django.utils.module_loading import import_string

from sqlqueue.core.outcomes import message_of
from sqlqueue.database.log import home_log
from sqlqueue.tasks.interface import Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from sqlqueue.tasks.queues import may_have_tasks
from sqlqueue.tasks.states import SUCCESSFUL, TASK_ID_LENGTH, TaskState, stored

NOT_THERE = "is in no installed app's package, nor in one that OPTIONS['packages'] of TASKS names"


def result_of(id: object) -> TaskResult:
    """Return the present result of a task. Raises TaskResultDoesNotExist for an unknown id, or what is no id."""
    state = stored(home_log(), str(id)) if is_id(id) else None
    if state is None:
        raise TaskResultDoesNotExist(id)
    return result_with(state, task_of(state))


def is_id(id: object) -> bool:
    """Tell whether a task can have this id."""
    return isinstance(id, str) and 0 < len(id) <= TASK_ID_LENGTH and id.isascii() and "\0" not in id


def task_of(state: TaskState) -> Task:
    """Return a stored task as it was enqueued. Nothing of it is validated again: its queue may be gone, and so may its
    function, in whose place is one that raises ImportError."""
    values: dict[str, Any] = {"func": _missing(state.path), "takes_context": False}
    kind: type[Task] = Task
    with suppress(ImportError):
        task = found(state.path)
        kind, values = type(task), {field.name: getattr(task, field.name) for field in fields(task)}
    values |= {
        "priority": state.task["priority"],
        "queue_name": state.task["queue"],
        "run_after": state.run_after,
        "backend": state.backend,
    }
    restored = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(restored, name, value)
    return restored


def found(path: str) -> Task:
    """Return the task at a dotted path. Raises ImportError if there is none; imports only where tasks may be."""
    if not may_have_tasks(path):
        raise ImportError(f"{path} {NOT_THERE}")
    try:
        task = import_string(path)
    except ImportError:
        raise
    except (Exception, SystemExit) as error:  # its module raises, or is a script that exits
        raise ImportError(f"{path} cannot be imported: {type(error).__name__}: {message_of(error)}") from error
    if not isinstance(task, Task):
        raise ImportError(f"{path} is no task, but {type(task).__name__}: put @task back")
    return task


def _missing(path: str) -> types.FunctionType:
    def missing(*args: Any, **kwargs: Any) -> None:
        raise ImportError(f"there is no task {path}")

    missing.__module__, _, name = path.rpartition(".")
    missing.__name__ = missing.__qualname__ = name
    return missing  # type: ignore[return-value]


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))  # deepcopy() takes less deep ones


def result_with(state: TaskState, task: Task) -> TaskResult:
    """Return the result of a task whose state is known."""
    result = TaskResult(
        task=task,
        id=state.id,
        status=TaskResultStatus(state.status),
        enqueued_at=state.enqueued_at,
        started_at=state.started_at,
        last_attempted_at=state.last_attempted_at,
        finished_at=state.finished_at,
        args=_copy(state.task["args"]),
        kwargs=_copy(state.task["kwargs"]),
        backend=state.backend,
        errors=[
            TaskError(exception_class_path=path, traceback=f"{traceback}\n")  # as format_exception() ends
            for path, traceback in state.errors
        ],
        worker_ids=list(state.worker_ids),
    )
    if state.status == SUCCESSFUL:
        object.__setattr__(result, "_return_value", _copy(state.return_value))
    return result
