"""What connects tasks with the queue when the app is ready: topics, consumers, the check of TASKS, and a signal."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, register

from sqlqueue.checks import TAG
from sqlqueue.conf import settings
from sqlqueue.consumers.registry import registry
from sqlqueue.signals import task_killed
from sqlqueue.tasks import queues


def connect() -> None:
    """Connect them. Nothing of the Tasks interface is imported yet."""
    settings.declared_elsewhere = queues.topics
    if queues.add_consumers not in registry.sources:
        registry.sources.append(queues.add_consumers)
    task_killed.connect(_announce_killed, dispatch_uid="sqlqueue.tasks")


def _announce_killed(**arguments: Any) -> None:
    from sqlqueue.tasks.runner import announce_killed

    announce_killed(**arguments)


@register(TAG)
def check_tasks(**kwargs: Any) -> list[CheckMessage]:
    """E027: an entry of TASKS that names this backend is wrong."""
    hint = "Correct TASKS in the settings: docs/tasks.md has the options."
    return [Error(problem, hint=hint, id="sqlqueue.E027") for problem in queues.problems()]
