"""What the arguments of commands are: numbers and texts, checked where they are read; offsets (a number, a time, how
long ago, `earliest`, `latest`), topics, groups and databases, by their names."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from math import nan
from typing import Any, Literal

from django.core.management.base import CommandError
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from sqlqueue.conf import settings
from sqlqueue.core.bounds import CENTURY
from sqlqueue.core.keys import did_you_mean, numbers_of
from sqlqueue.core.new_message import KEY
from sqlqueue.core.settings import MOST_PARTITIONS
from sqlqueue.database import clock
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log, all_logs, home_log, logs_of
from sqlqueue.exceptions import LONGEST_DELAY, SHORTEST_LIFE, ConfigurationError
from sqlqueue.log import layouts
from sqlqueue.log.groups import EARLIEST, LATEST
from sqlqueue.log.status import offset_before, within_calendar
from sqlqueue.models import ConsumerGroup, Topic

HIGHEST_OFFSET = 2**63 - 1  # what the columns hold
MOST_PROCESSES = 1_000
FOREVER = "forever"
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SHOWN = 40  # characters of what is refused
SURROGATE = re.compile("[\ud800-\udfff]")
FILES = frozenset(("archive", "folder", "messages", "output", "paths"))  # their names are bytes


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a function for argparse that reads a whole number from `least` to `most`; it raises ArgumentTypeError."""
    return partial(_number, int, f"a whole number from {least} to {most}", least, most)


def decimal(least: float, most: float) -> Callable[[str], float]:
    """Return a function for argparse that reads a number from `least` to `most`; it raises ArgumentTypeError."""
    return partial(_number, float, f"a number from {least:g} to {most:,.0f}", least, most)


def _number(kind: Callable[[str], Any], what: str, least: float, most: float, text: str) -> Any:
    try:
        number = kind(text[:SHOWN])  # more digits are no number in bounds, and take long to read
    except ValueError:
        number = nan
    if not least <= number <= most:
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not {what}")
    return number


def retention(text: str) -> float | str:
    """Read a length of time with its unit (90s, 15m, 2h, 3d), in seconds, or FOREVER; raises ArgumentTypeError."""
    if text == FOREVER:
        return FOREVER
    try:
        seconds = float(text[:-1]) * UNITS[text[-1:]]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0 <= seconds <= CENTURY:
        raise ArgumentTypeError(
            f"{text[:SHOWN]!r} is not a number from 0 with a unit (90s, 15m, 2h, 3d), nor {FOREVER!r}"
        )
    return seconds


def unique_for(text: str) -> float | Literal["key", False]:
    """Read `key`, seconds, or `no` for not at all; raises ArgumentTypeError."""
    if text == KEY:
        return KEY
    return False if text == "no" else decimal(SHORTEST_LIFE, LONGEST_DELAY)(text)


def moment(text: str) -> datetime:
    """Read a time of ISO 8601 with its zone; raises ArgumentTypeError."""
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 knows no Z
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None:
        raise ArgumentTypeError(f"{text[:SHOWN]!r} is not a time with a zone, such as 2030-12-24T18:00:00+01:00")
    return at


def refuse_broken_texts(options: Mapping[str, object]) -> None:
    """Raise CommandError if an argument is not text in the terminal's encoding.

    Python keeps the bytes of such an argument as lone surrogates, which no database stores.
    """
    for name, value in options.items():
        for text in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(text, str) and name not in FILES and SURROGATE.search(text):
                raise CommandError(f"{text[:SHOWN]!r} is not text in UTF-8")


offset = whole(0, HIGHEST_OFFSET)
partition = whole(0, MOST_PARTITIONS - 1)


HELP = "an offset, a time (2026-01-31T12:00, in TIME_ZONE unless it names another), how long ago (90s, 15m, 2h, 3d)"
AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def offset_above(log: Log, expression: str) -> int:
    """Return the offset above which the messages lie that an offset expression names.

    Raises ConfigurationError for a text that is not an offset expression.
    """
    if expression == EARLIEST:
        return 0
    if expression == LATEST:
        return highest_offset(log)
    if expression.isdecimal():
        if len(expression) > len(str(HIGHEST_OFFSET)) or int(expression) > HIGHEST_OFFSET:
            raise ConfigurationError(f"{expression[:40]!r} is not an offset: the highest is {HIGHEST_OFFSET}")
        return max(0, int(expression) - 1)
    return offset_before(log, _moment(log, expression))


def _moment(log: Log, expression: str) -> datetime:
    if match := AGO.fullmatch(expression):
        ago = float(match[1]) * UNITS[match[2]]
        if ago > CENTURY:
            raise ConfigurationError(f"{expression[:40]!r} is longer ago than 100 years, which is the most")
        return clock.now(log) - timedelta(seconds=ago)
    try:
        at = parse_datetime(expression)
    except ValueError:
        at = None
    if at is None:
        raise ConfigurationError(f"{expression!r} names no offset: give {HELP}, {EARLIEST} or {LATEST}")
    try:
        return make_aware(at) if is_naive(at) else at
    except OverflowError:  # at an end of the calendar
        return within_calendar(at.replace(tzinfo=timezone.utc))


def known_topic(log: Log, name: str) -> Topic:
    """Return a topic that exists, and never create one; raise ConfigurationError for a name that no topic has."""
    topic = Topic.objects.using(log.alias).filter(name=name).first()
    if topic is None:
        names = Topic.objects.using(log.alias).values_list("name", flat=True)
        raise ConfigurationError(f"there is no topic {name!r}.{did_you_mean(name, names) if names else ''}")
    return topic


def known_groups(log: Log, topic: str, wanted: list[str]) -> list[str]:
    """Return the names of a topic's groups, sorted: those in `wanted`, or all if it is empty.

    Raises ConfigurationError for a group that is not registered in the topic.
    """
    known_topic(log, topic)
    groups = ConsumerGroup.objects.using(log.alias).filter(topic=topic).order_by("consumer_group")
    names = list(groups.values_list("consumer_group", flat=True))
    for name in wanted:
        if name not in names:
            hint = did_you_mean(name, names) if names else " It has none."
            raise ConfigurationError(f"group {name!r} is not registered in topic {topic!r}.{hint}")
    return sorted(set(wanted)) or names


def checked_partition(log: Log, topic: Topic, partition: int | None) -> int | None:
    """Return the partition, by its number in the log; None stays None. Raises ConfigurationError if no epoch of the
    topic has it."""
    if partition is None:
        return None
    epochs = layouts.epochs(log, topic.name)
    if partition not in numbers_of(epochs):
        ranges = ", ".join(f"{epoch.numbers[0]} to {epoch.numbers[-1]}" for epoch in epochs)
        raise ConfigurationError(f"topic {topic.name!r} has the partitions {ranges}, not {partition}")
    return partition


def chosen(options: dict[str, Any], every: Collection[str], home: Collection[str]) -> list[Log]:
    """Return the logs that a command works on: the one that --database names; else those of its
    topic, if the operation may be done on several. every, home: the operations ("": a command without operations) that
    are done on all of them, or on DATABASE.

    Raises CommandError for a database without a log, and if one has to be named.
    """
    name, operation = options.get("database"), options.get("operation") or ""
    if name is not None:
        if name not in settings.aliases:
            hint = did_you_mean(name, settings.aliases)
            raise CommandError(f"--database {name}: neither DATABASE nor a topic's 'databases' name it.{hint}")
        return [Log.of(name)]
    if not settings.several or operation in home or options.get("id") is not None:  # where a message is is looked for
        return [home_log()]
    topic = options.get("topic")
    logs = logs_of(topic) if isinstance(topic, str) and topic else all_logs()
    if len(logs) == 1 or operation in every:
        return list(logs)
    raise CommandError(f"say on which database with --database: {', '.join(log.alias for log in logs)}")


def has_nothing_of(log: Log, topic: str, reading: Log | None = None) -> bool:
    """Tell whether a topic is on this database, and has no row there, for nothing of it has come to it yet. reading:
    the log to look with, if it is another."""
    if not settings.several or log not in logs_of(topic):
        return False
    return not Topic.objects.using((reading or log).alias).filter(name=topic).exists()
