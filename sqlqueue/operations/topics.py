"""Creates a topic before its first use, and pauses and resumes topics and groups: no handler starts until the resume;
running handlers and leases go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError

from sqlqueue.conf import settings
from sqlqueue.core.keys import checked_consumed
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.topic_options import CHANGEABLE, checked_overrides
from sqlqueue.log.topics import refuse_dead_letters
from sqlqueue.models import ConsumerGroup, Topic


def planned_topic(
    name: str, partitions: int | None = None, priorities: int | None = None, overrides: Mapping[str, Any] | None = None
) -> Topic:
    """Return a topic as create_topic() would store it: what is None, or not in `overrides`, is as in the settings.

    overrides: retention (seconds or a timedelta, None for ever) and history, which then hold whatever the settings say.
    Raises ConfigurationError for a name or an option that cannot be.
    """
    refuse_dead_letters(name)
    own = checked_overrides(checked_consumed(name), overrides or {})
    wanted = settings.topic(name)
    return Topic(
        name=name,
        partitions=partitions or wanted.partitions,
        priorities=priorities or wanted.priorities,
        databases=settings.stored_databases(name),
        **{option: own.get(option, getattr(wanted, option)) for option in CHANGEABLE},
        **{f"{option}_overridden": option in own for option in CHANGEABLE},
    )


def create_topic(log: Log, topic: Topic) -> None:
    """Store a planned topic. It is declared from then on, for STRICT_TOPICS too. Raises ConfigurationError if it is
    there already."""
    try:
        with log.atomic():
            topic.save(using=log.alias, force_insert=True)
    except IntegrityError:
        raise ConfigurationError(f"topic {topic.name!r} is there already") from None


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
