"""Topics: created at first use if they are declared; what a publisher has to know of one."""

from __future__ import annotations

from sqlqueue.conf import settings
from sqlqueue.core.keys import checked_topic
from sqlqueue.core.relay import is_relay_topic
from sqlqueue.database.known_layouts import forget_layouts
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import forget_named
from sqlqueue.database.session_guard import refuse_changing_session
from sqlqueue.database.transactions import remember_once_committed
from sqlqueue.database.validation import TopicInfo, refuse_dead_letters
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.stored_topics import (
    existing,
    insert,
    is_declared,
    refuse_moved,
    refuse_other_list,
    require_declared,
    stored,
    stored_aside,
)
from sqlqueue.models import dead_letter_topic

__all__ = [
    "dead_letters",
    "existing",
    "forget_topics",
    "is_declared",
    "planned",
    "require_declared",
    "to_publish",
    "topic_info",
]

_known: dict[tuple[Log, str], TopicInfo] = {}
_to_publish: dict[tuple[Log, str], TopicInfo] = {}


def topic_info(log: Log, name: str) -> TopicInfo:
    """Return a topic's partitions and priorities; create it from the settings if it is new. Remembered once
    committed. Raises ConfigurationError for one that is not declared."""
    try:
        return _known[log, name]
    except (KeyError, TypeError):
        pass
    checked_topic(name)
    return _info(log, name, None)


def to_publish(log: Log, name: str) -> TopicInfo:
    """Return the same for publish(). Raises ConfigurationError also for a dead-letter topic, for a connection that
    changes values, and for a topic that was first used on other databases than the settings say."""
    refuse_changing_session(log)
    try:
        return _to_publish[log, name]
    except (KeyError, TypeError):
        pass
    refuse_own(name)
    info = topic_info(log, name)
    refuse_other_list(log, info)
    remember_once_committed(log, _to_publish, (log, name), info)
    return info


def planned(log: Log, name: str) -> TopicInfo:
    """Return the same without creating the topic: a new one as it would be created."""
    refuse_own(name)
    options = settings.topic(checked_topic(name))
    require_declared(log, name)
    return stored(log, name) or TopicInfo(name, options.partitions, options.priorities)


def refuse_own(name: str) -> None:
    """Raise ConfigurationError for a topic to which only the queue itself publishes."""
    refuse_dead_letters(name)
    if isinstance(name, str) and is_relay_topic(name):
        raise ConfigurationError(f"topic {name!r} has what is on its way to another database: publish with relay=True")


def dead_letters(log: Log, topic: str) -> TopicInfo:
    """Return the topic that a topic's dead letters go to; a new one has as many partitions."""
    name = dead_letter_topic(topic)
    return _known.get((log, name)) or _info(log, name, topic_info(log, topic).partitions)


def _info(log: Log, name: str, partitions: int | None) -> TopicInfo:
    info = stored(log, name)
    if info is None and partitions is None and (settings.several or not is_declared(log, name)):
        info = stored_aside(log, name)  # the caller's snapshot may be older than the row
        if info is None:
            require_declared(log, name)
            if settings.several and not is_relay_topic(name):
                refuse_moved(log, name)
    info = info or insert(log, name, partitions)
    remember_once_committed(log, _known, (log, name), info)
    return info


def forget_topics() -> None:
    """Forget all topics, so that they are looked up again: for tests that empty the table or change settings."""
    _known.clear()
    _to_publish.clear()
    forget_layouts()
    forget_named()
