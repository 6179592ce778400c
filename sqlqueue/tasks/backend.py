"""The backend that `TASKS` names. Tasks are declared before the apps are ready, so what needs the models is imported at
its use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error

from sqlqueue.exceptions import ConfigurationError
from sqlqueue.tasks.interface import BaseTaskBackend, InvalidTask, Task, TaskResult, task_enqueued
from sqlqueue.twins import refuse_in_async


class SqlQueueBackend(BaseTaskBackend):
    """Tasks as messages: the queue `q` is the topic `tasks.q`, which `runconsumers` serves. OPTIONS: see
    sqlqueue.tasks.policy."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task) -> None:
        """Raise InvalidTask for a task that cannot be enqueued."""
        super().validate_task(task)
        if not self.queues:
            raise InvalidTask(
                f"TASKS[{self.alias!r}]['QUEUES'] is empty: name the queues, of which each is a topic that "
                "runconsumers serves"
            )

    def enqueue(
        self,
        task: Task,
        args: Any,
        kwargs: Any,
        *,
        id: str | None = None,
        expires: float | timedelta | None = None,
    ) -> TaskResult:
        """Enqueue a task in the caller's transaction: it runs if that commits. id, expires: see sqlqueue.tasks.enqueue.
        Raises InvalidMessage, a ValueError, for arguments that cannot be stored, and TypeError for those that are no
        JSON."""
        refuse_in_async("enqueue", "await task.aenqueue(…)")
        from sqlqueue.tasks.enqueueing import enqueue

        self.validate_task(task)
        enqueued = enqueue(self.alias, task, args, kwargs, id, expires)
        if enqueued.new:
            task_enqueued.send(type(self), task_result=enqueued.result)
        return enqueued.result

    def get_result(self, result_id: str) -> TaskResult:
        """Return the present result of a task. Raises TaskResultDoesNotExist if there is none of this id."""
        refuse_in_async("get_result", "await task.aget_result(…)` or `await result.arefresh()")
        from sqlqueue.tasks.results import result_of

        return result_of(result_id)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return an error if the app that runs the tasks is not installed; its own checks say what else is wrong."""
        if apps.is_installed("sqlqueue"):
            return []
        text = f"TASKS[{self.alias!r}] names {type(self).__name__}, but the app sqlqueue is not installed"
        return [Error(text, hint="Add 'sqlqueue' to INSTALLED_APPS.", id="sqlqueue.E027")]


def enqueue(
    task: Task,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    id: str | None = None,
    expires: float | timedelta | None = None,
) -> TaskResult:
    """Enqueue a task as task.enqueue(*args, **kwargs) does, with what that cannot say.

    id: its own id, one for all queues: if a task has it already, nothing is enqueued, and the result is that task's.
    expires (seconds or timedelta, from now, or from run_after): a task that would begin later fails, with the error
    Expired, and does not run.

    Raises what task.enqueue() does; InvalidMessage for what is no id; ConfigurationError if the task is of another
    backend.
    """
    backend = task.get_backend()
    if not isinstance(backend, SqlQueueBackend):
        raise ConfigurationError(f"the task is for the backend {task.backend!r}, which is no SqlQueueBackend")
    return backend.enqueue(task, args, kwargs or {}, id=id, expires=expires)
