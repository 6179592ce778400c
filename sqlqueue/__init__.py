"""A durable, partitioned, replayable message log with consumer groups in your Django project's own database."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqlqueue.version import __version__ as __version__

if TYPE_CHECKING:
    from sqlqueue.consumers.declare.periodic import periodic
    from sqlqueue.consumers.declare.registry import consumer
    from sqlqueue.consumers.handlers.delivery import Delivery
    from sqlqueue.consumers.pull.subscribe import asubscribe, subscribe
    from sqlqueue.contrib.batches.batch import Batch
    from sqlqueue.contrib.batches.status import BatchStatus, cancel_batch, get_batch
    from sqlqueue.contrib.people.exceptions import HandOver
    from sqlqueue.core.new_message import NewMessage
    from sqlqueue.database.index_header import IndexHeader
    from sqlqueue.exceptions import (
        CallFailed,
        ConfigurationError,
        InvalidMessage,
        InvalidResult,
        LeaseLost,
        PartlyPublished,
        PayloadMismatch,
        Postpone,
        Reject,
        Retry,
        SqlqueueError,
    )
    from sqlqueue.log.calls import acall, call
    from sqlqueue.log.publish import apublish, apublish_many, publish, publish_many, publish_on_commit
    from sqlqueue.log.published_topic import Published, PublishedMany
    from sqlqueue.log.scheduled import Scheduled, acancel, aget_scheduled, cancel, cancel_all, get_scheduled
    from sqlqueue.operations.messages import acknowledge
    from sqlqueue.operations.replay import discard, replay
    from sqlqueue.stats.group_status import GroupStatus
    from sqlqueue.stats.message_status import MessageStatus, aget_status, get_status

# Names resolve at their first use, so that `from sqlqueue import publish` works in models.py too, before the apps are
# ready.
_MODULES = {
    "Batch": "sqlqueue.contrib.batches.batch",
    "BatchStatus": "sqlqueue.contrib.batches.status",
    "CallFailed": "sqlqueue.exceptions",
    "ConfigurationError": "sqlqueue.exceptions",
    "Delivery": "sqlqueue.consumers.handlers.delivery",
    "GroupStatus": "sqlqueue.stats.group_status",
    "HandOver": "sqlqueue.contrib.people.exceptions",
    "IndexHeader": "sqlqueue.database.index_header",
    "InvalidMessage": "sqlqueue.exceptions",
    "InvalidResult": "sqlqueue.exceptions",
    "LeaseLost": "sqlqueue.exceptions",
    "MessageStatus": "sqlqueue.stats.message_status",
    "NewMessage": "sqlqueue.core.new_message",
    "PartlyPublished": "sqlqueue.exceptions",
    "PayloadMismatch": "sqlqueue.exceptions",
    "Postpone": "sqlqueue.exceptions",
    "Published": "sqlqueue.log.published_topic",
    "PublishedMany": "sqlqueue.log.published_topic",
    "Reject": "sqlqueue.exceptions",
    "Retry": "sqlqueue.exceptions",
    "Scheduled": "sqlqueue.log.scheduled",
    "SqlqueueError": "sqlqueue.exceptions",
    "acall": "sqlqueue.log.calls",
    "acancel": "sqlqueue.log.scheduled",
    "acknowledge": "sqlqueue.operations.messages",
    "aget_scheduled": "sqlqueue.log.scheduled",
    "aget_status": "sqlqueue.stats.message_status",
    "apublish": "sqlqueue.log.publish",
    "apublish_many": "sqlqueue.log.publish",
    "asubscribe": "sqlqueue.consumers.pull.subscribe",
    "call": "sqlqueue.log.calls",
    "cancel": "sqlqueue.log.scheduled",
    "cancel_all": "sqlqueue.log.scheduled",
    "cancel_batch": "sqlqueue.contrib.batches.status",
    "consumer": "sqlqueue.consumers.declare.registry",
    "discard": "sqlqueue.operations.replay",
    "get_batch": "sqlqueue.contrib.batches.status",
    "get_scheduled": "sqlqueue.log.scheduled",
    "get_status": "sqlqueue.stats.message_status",
    "periodic": "sqlqueue.consumers.declare.periodic",
    "publish": "sqlqueue.log.publish",
    "publish_many": "sqlqueue.log.publish",
    "publish_on_commit": "sqlqueue.log.publish",
    "replay": "sqlqueue.operations.replay",
    "subscribe": "sqlqueue.consumers.pull.subscribe",
}

# The names of apps beside the core.
_APPS = {
    "Batch": "sqlqueue.contrib.batches",
    "BatchStatus": "sqlqueue.contrib.batches",
    "HandOver": "sqlqueue.contrib.people",
    "cancel_batch": "sqlqueue.contrib.batches",
    "get_batch": "sqlqueue.contrib.batches",
}

__all__ = [
    "Batch",
    "BatchStatus",
    "CallFailed",
    "ConfigurationError",
    "Delivery",
    "GroupStatus",
    "HandOver",
    "IndexHeader",
    "InvalidMessage",
    "InvalidResult",
    "LeaseLost",
    "MessageStatus",
    "NewMessage",
    "PartlyPublished",
    "PayloadMismatch",
    "Postpone",
    "Published",
    "PublishedMany",
    "Reject",
    "Retry",
    "Scheduled",
    "SqlqueueError",
    "acall",
    "acancel",
    "acknowledge",
    "aget_scheduled",
    "aget_status",
    "apublish",
    "apublish_many",
    "asubscribe",
    "call",
    "cancel",
    "cancel_all",
    "cancel_batch",
    "consumer",
    "discard",
    "get_batch",
    "get_scheduled",
    "get_status",
    "periodic",
    "publish",
    "publish_many",
    "publish_on_commit",
    "replay",
    "subscribe",
]


def __getattr__(name: str) -> Any:
    try:
        module = _MODULES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    if name in _APPS:
        _require_app(name, _APPS[name])
    value = globals()[name] = getattr(import_module(module), name)
    return value


def _require_app(name: str, app: str) -> None:
    """Raise ConfigurationError if the app that a name belongs to is not installed."""
    from django.apps import apps

    from sqlqueue.exceptions import ConfigurationError

    if apps.apps_ready and not apps.is_installed(app):
        raise ConfigurationError(f"sqlqueue.{name} needs {app!r} in INSTALLED_APPS")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
