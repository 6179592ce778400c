"""Creates a topic before its first use, with options of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError

from sqlqueue.conf import settings
from sqlqueue.core.databases import as_stored
from sqlqueue.core.keys import checked_consumed
from sqlqueue.database.log import Log
from sqlqueue.database.validation import refuse_dead_letters
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.topic_options import CHANGEABLE, checked_overrides
from sqlqueue.models import Topic


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
        databases=as_stored(settings.databases_of(name)),
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
