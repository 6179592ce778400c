"""Topics: created at first use if they are declared; what a publisher has to know of one."""

from __future__ import annotations

from sqlqueue.conf import settings
from sqlqueue.core.keys import checked_topic
from sqlqueue.database.known_layouts import forget_layouts
from sqlqueue.database.server_identity import forget_named
from sqlqueue.database.session_guard import refuse_changing_session
from sqlqueue.database.transactions import remember_once_committed
from sqlqueue.database.validation import TopicInfo, refuse_dead_letters
from sqlqueue.log.placement import existing_placement, forget_placements, placement
from sqlqueue.log.stored_topics import (
    existing,
    insert,
    insert_placed,
    is_declared,
    require_declared,
    stored,
    stored_aside,
)
from sqlqueue.models import dead_letter_topic

__all__ = [
    "create",
    "dead_letters",
    "existing",
    "forget_topics",
    "is_declared",
    "planned",
    "require_declared",
    "to_publish",
    "topic_info",
]

_known: dict[tuple[str, str], TopicInfo] = {}


def topic_info(alias: str, name: str) -> TopicInfo:
    """Return a topic's partitions and priorities; create it from the settings if it is new. Remembered once
    committed. Raises ConfigurationError for one that is not declared."""
    try:
        return _known[alias, name]
    except (KeyError, TypeError):
        pass
    checked_topic(name)
    return _info(alias, name, None)


def to_publish(alias: str, name: str) -> TopicInfo:
    """Return the same for publish(). Raises ConfigurationError also for a dead-letter topic, and for a connection that
    changes values."""
    refuse_dead_letters(name)
    refuse_changing_session(alias)
    return topic_info(alias, name)


def planned(alias: str, name: str) -> TopicInfo:
    """Return the same without creating the topic: a new one as it would be created."""
    refuse_dead_letters(name)
    options = settings.topic(checked_topic(name))
    if settings.sharded and (placed := existing_placement(name)):
        return TopicInfo(name, placed.partitions, placed.priorities)
    require_declared(alias, name)
    return stored(alias, name) or TopicInfo(name, options.partitions, options.priorities)


def dead_letters(alias: str, topic: str) -> TopicInfo:
    """Return the topic that a topic's dead letters go to; a new one has as many partitions."""
    name = dead_letter_topic(topic)
    return _known.get((alias, name)) or _info(alias, name, topic_info(alias, topic).partitions)


def _info(alias: str, name: str, partitions: int | None) -> TopicInfo:
    info = stored(alias, name)
    if info is None and partitions is None and not settings.sharded and not is_declared(alias, name):
        info = stored_aside(alias, name)  # the caller's snapshot may be older than the row
        if info is None:
            require_declared(alias, name)
    info = info or create(alias, name, partitions)
    remember_once_committed(alias, _known, (alias, name), info)
    return info


def forget_topics() -> None:
    """Forget all topics, so that they are looked up again: for tests that empty the table or change settings."""
    _known.clear()
    forget_placements()
    forget_layouts()
    forget_named()


def create(alias: str, name: str, partitions: int | None = None) -> TopicInfo:
    """Insert a topic's row if there is none, and return what is stored. With several shards each gets what is fixed on
    DATABASE's."""
    if not settings.sharded:
        return insert(alias, name, partitions)
    placed = insert_placed(alias, name, placement(name))
    return TopicInfo(name, placed.partitions, placed.priorities)
