"""A durable, partitioned, replayable message log with consumer groups in your Django project's own database."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqlqueue.version import __version__ as __version__

if TYPE_CHECKING:
    from sqlqueue.consumers.delivery import Delivery
    from sqlqueue.consumers.pull import subscribe
    from sqlqueue.consumers.registry import consumer
    from sqlqueue.exceptions import (
        ConfigurationError,
        InvalidMessage,
        LeaseLost,
        Postpone,
        Reject,
        Retry,
        SqlqueueError,
    )
    from sqlqueue.log.publish import NewMessage, Published, PublishedMany, publish, publish_many, publish_on_commit
    from sqlqueue.log.redrive import discard, redrive

# Names resolve at their first use, so that `from sqlqueue import publish` works in models.py too, before the apps are
# ready.
_HOMES = {
    "ConfigurationError": "sqlqueue.exceptions",
    "Delivery": "sqlqueue.consumers.delivery",
    "InvalidMessage": "sqlqueue.exceptions",
    "LeaseLost": "sqlqueue.exceptions",
    "NewMessage": "sqlqueue.log.publish",
    "Postpone": "sqlqueue.exceptions",
    "Published": "sqlqueue.log.publish",
    "PublishedMany": "sqlqueue.log.publish",
    "Reject": "sqlqueue.exceptions",
    "Retry": "sqlqueue.exceptions",
    "SqlqueueError": "sqlqueue.exceptions",
    "consumer": "sqlqueue.consumers.registry",
    "discard": "sqlqueue.log.redrive",
    "publish": "sqlqueue.log.publish",
    "publish_many": "sqlqueue.log.publish",
    "publish_on_commit": "sqlqueue.log.publish",
    "redrive": "sqlqueue.log.redrive",
    "subscribe": "sqlqueue.consumers.pull",
}

__all__ = [
    "ConfigurationError",
    "Delivery",
    "InvalidMessage",
    "LeaseLost",
    "NewMessage",
    "Postpone",
    "Published",
    "PublishedMany",
    "Reject",
    "Retry",
    "SqlqueueError",
    "consumer",
    "discard",
    "publish",
    "publish_many",
    "publish_on_commit",
    "redrive",
    "subscribe",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
