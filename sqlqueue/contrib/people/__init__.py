"""Work done by people: messages become work items, which people decide in the admin. `INSTALLED_APPS` has
"sqlqueue.contrib.people" for it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue.contrib.people.exceptions import HandOver, WorkItemChanged
    from sqlqueue.contrib.people.topics import work_on

# Names resolve at their first use, before the apps are ready too.
_MODULES = {
    "HandOver": "sqlqueue.contrib.people.exceptions",
    "WorkItemChanged": "sqlqueue.contrib.people.exceptions",
    "work_on": "sqlqueue.contrib.people.topics",
}

__all__ = ["HandOver", "WorkItemChanged", "work_on"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
