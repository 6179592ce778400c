"""The backend that `TASKS` names. Tasks are declared before the apps are ready, so what needs the models is imported at
its use."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error

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

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Enqueue a task in the caller's transaction: it runs if that commits. Raises InvalidMessage, a ValueError, for
        arguments that cannot be stored, and TypeError for those that are no JSON."""
        refuse_in_async("enqueue", "await task.aenqueue(…)")
        from sqlqueue.tasks.enqueueing import enqueue

        self.validate_task(task)
        result = enqueue(self.alias, task, args, kwargs)
        task_enqueued.send(type(self), task_result=result)
        return result

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
