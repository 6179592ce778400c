"""Pauses and resumes topics and groups: no handler starts until the resume; running handlers and leases go on."""

from __future__ import annotations

from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import ConsumerGroup, Topic


def pause(log: Log, topic: str, group: str = "") -> bool:
    """Pause a topic for all groups, or one group of it; return whether it was not paused yet.

    Consumers notice within a second, and release what is dispatched and not started. Raises ConfigurationError if there
    is no such topic or group.
    """
    return _set(log, topic, group, True)


def resume(log: Log, topic: str, group: str = "") -> bool:
    """Resume a topic or a group; return whether it was paused."""
    return _set(log, topic, group, False)


def _set(log: Log, topic: str, group: str, paused: bool) -> bool:
    if group:
        rows = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    else:
        rows = Topic.objects.using(log.alias).filter(name=topic)
    if not rows.exists():
        what = f"group {group!r} in topic {topic!r}" if group else f"topic {topic!r}"
        raise ConfigurationError(f"there is no {what}")
    return bool(rows.filter(paused=not paused).update(paused=paused))
