"""Django Tasks on sqlqueue: `TASKS = {"default": {"BACKEND": "sqlqueue.tasks.SqlQueueBackend"}}`.

The interface is Django's own, or on Django 5.2 that of the package django-tasks, which is imported when the backend is;
`task` is its decorator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue.tasks.backend import SqlQueueBackend, enqueue
    from sqlqueue.tasks.interface import task
    from sqlqueue.tasks.policy import task_options

__all__ = ["SqlQueueBackend", "enqueue", "task", "task_options"]


def __getattr__(name: str) -> Any:
    if name == "SqlQueueBackend":
        from sqlqueue.tasks.backend import SqlQueueBackend

        return SqlQueueBackend
    if name == "enqueue":
        from sqlqueue.tasks.backend import enqueue

        return enqueue
    if name == "task":
        from sqlqueue.tasks.interface import task

        return task
    if name == "task_options":
        from sqlqueue.tasks.policy import task_options

        return task_options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
