"""Django Tasks on sqlqueue: `TASKS = {"default": {"BACKEND": "sqlqueue.tasks.SqlQueueBackend"}}`.

The interface is Django's own, or on Django 5.2 that of the package django-tasks, which is imported when the backend is;
`task` is its decorator.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue.tasks.backend import SqlQueueBackend, enqueue
    from sqlqueue.tasks.interface import task
    from sqlqueue.tasks.policy import task_options

_MODULES = {
    "SqlQueueBackend": "sqlqueue.tasks.backend",
    "enqueue": "sqlqueue.tasks.backend",
    "task": "sqlqueue.tasks.interface",
    "task_options": "sqlqueue.tasks.policy",
}

__all__ = ["SqlQueueBackend", "enqueue", "task", "task_options"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
