"""Places in the log, as people type them: an offset, a time, how long ago, earliest, latest."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from sqlqueue.conf import CENTURY
from sqlqueue.core.keys import did_you_mean
from sqlqueue.database import clock
from sqlqueue.database.horizon import highest_offset
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.groups import EARLIEST, LATEST
from sqlqueue.log.seek import offset_before, within_calendar
from sqlqueue.management.arguments import HIGHEST_OFFSET
from sqlqueue.models import ConsumerGroup, Topic

HELP = "an offset, a time (2026-01-31T12:00, in TIME_ZONE unless it names another), how long ago (90s, 15m, 2h, 3d)"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def offset_above(alias: str, word: str) -> int:
    """Return the offset below the first message that is meant: that message, and all behind it, stand above.

    Raises ConfigurationError for a word that names no place.
    """
    if word == EARLIEST:
        return 0
    if word == LATEST:
        return highest_offset(alias)
    if word.isdecimal():
        if len(word) > len(str(HIGHEST_OFFSET)) or int(word) > HIGHEST_OFFSET:
            raise ConfigurationError(f"{word[:40]!r} is no offset: the highest is {HIGHEST_OFFSET}")
        return max(0, int(word) - 1)
    return offset_before(alias, _moment(alias, word))


def _moment(alias: str, word: str) -> datetime:
    if match := AGO.fullmatch(word):
        ago = float(match[1]) * UNITS[match[2]]
        if ago > CENTURY:
            raise ConfigurationError(f"{word[:40]!r} is longer ago than any log: say how long ago, at most 100 years")
        return clock.now(alias) - timedelta(seconds=ago)
    try:
        at = parse_datetime(word)
    except ValueError:
        at = None
    if at is None:
        raise ConfigurationError(f"{word!r} is no place in the log: say {HELP}, {EARLIEST} or {LATEST}")
    try:
        return make_aware(at) if is_naive(at) else at
    except OverflowError:  # at an end of the calendar
        return within_calendar(at.replace(tzinfo=timezone.utc))


def known_topic(alias: str, name: str) -> Topic:
    """Return a topic that is there; raise ConfigurationError for another. (Asking for one must not create it.)"""
    topic = Topic.objects.using(alias).filter(name=name).first()
    if topic is None:
        names = Topic.objects.using(alias).values_list("name", flat=True)
        raise ConfigurationError(f"there is no topic {name!r}.{did_you_mean(name, names) if names else ''}")
    return topic


def known_groups(alias: str, topic: str, wanted: list[str]) -> list[str]:
    """Return the groups that are wanted of a topic, all if none is named; raise ConfigurationError for one that is not
    registered there."""
    known_topic(alias, topic)
    groups = ConsumerGroup.objects.using(alias).filter(topic=topic).order_by("consumer_group")
    names = list(groups.values_list("consumer_group", flat=True))
    for name in wanted:
        if name not in names:
            hint = did_you_mean(name, names) if names else " It has none."
            raise ConfigurationError(f"group {name!r} is not registered in topic {topic!r}.{hint}")
    return sorted(set(wanted)) or names
