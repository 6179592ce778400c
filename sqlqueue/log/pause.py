"""Pause: of what is paused no delivery starts until it is resumed; what runs goes on to its end. Its leases stay."""

from __future__ import annotations

from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import ConsumerGroup, Topic


def pause(alias: str, topic: str, group: str = "") -> bool:
    """Pause a topic for all groups, or one group of it; return whether it was not paused yet.

    Consumers notice within a second, and hand back what they have in hand and not started. Raises ConfigurationError if
    there is no such topic or group.
    """
    return _set(alias, topic, group, True)


def resume(alias: str, topic: str, group: str = "") -> bool:
    """Resume what was paused; return whether it was."""
    return _set(alias, topic, group, False)


def _set(alias: str, topic: str, group: str, paused: bool) -> bool:
    if group:
        rows = ConsumerGroup.objects.using(alias).filter(topic=topic, consumer_group=group)
    else:
        rows = Topic.objects.using(alias).filter(name=topic)
    if not rows.exists():
        what = f"group {group!r} in topic {topic!r}" if group else f"topic {topic!r}"
        raise ConfigurationError(f"there is no {what}")
    return bool(rows.filter(paused=not paused).update(paused=paused))
