"""The rows of topics: looked for, and added; and whether a topic may have one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.databases import SEPARATOR, as_stored
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.periodic import PERIODIC_TOPIC
from sqlqueue.core.relay import is_relay_topic
from sqlqueue.database import retries
from sqlqueue.database.aside import aside
from sqlqueue.database.log import Log, all_logs, logs_of
from sqlqueue.database.validation import (
    CREATE_TOPIC,
    STORED_TOPIC,
    TopicInfo,
    undeclared,
)
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import Topic


def is_declared(log: Log, name: str) -> bool:
    """Tell whether a topic may be used: TOPICS names it, another setting declares it, it exists, it is that of periodic
    schedules, or STRICT_TOPICS is off. A dead-letter topic is declared with its topic."""
    return not settings.STRICT_TOPICS or is_known(log, name)


def is_known(log: Log, name: str) -> bool:
    """Tell the same, whatever STRICT_TOPICS is."""
    own = name.removesuffix(DEAD_LETTER_SUFFIX)
    return (
        settings.names(name)
        or settings.declares(own)
        or own == PERIODIC_TOPIC
        or is_relay_topic(own)
        or bool(existing(log, {name}))
    )


def existing(log: Log, names: Collection[str]) -> set[str]:
    """Return those of the topics that exist; a dead-letter topic also counts if its topic exists."""
    own = {name: name.removesuffix(DEAD_LETTER_SUFFIX) for name in names}
    found = Topic.objects.using(log.alias).filter(name__in={*own, *own.values()})
    there = set(found.values_list("name", flat=True))
    return {name for name in names if name in there or own[name] in there}


def require_declared(log: Log, name: str) -> None:
    """Raise ConfigurationError for a topic that is not declared; the error suggests the nearest name."""
    if not is_declared(log, name):
        raise undeclared(name, known(log))


def known(log: Log) -> set[str]:
    """Return the names of the topics that exist, or that TOPICS names."""
    there = Topic.objects.using(log.alias).exclude(name__endswith=DEAD_LETTER_SUFFIX).values_list("name", flat=True)
    return {*settings.TOPICS, *there}


def stored(log: Log, name: str) -> TopicInfo | None:
    """Return a topic as this log has it, None if it has not."""
    return _topic_of(log.execute(STORED_TOPIC, (name,)))


def stored_aside(log: Log, name: str) -> TopicInfo | None:
    """Return the same as last committed: the caller's snapshot may be older than the row."""
    with aside(log) as run:
        return _topic_of(run(STORED_TOPIC, (name,)))


def insert(log: Log, name: str, partitions: int | None) -> TopicInfo:
    """Insert a topic's row if there is none, and return what is stored.

    Inside a caller's transaction it uses a separate connection, so that a long transaction which happens to publish
    first does not hold up other publishers of the topic.
    """
    info = None
    with aside(log) as run:
        while info is None:  # a row that was there may be dropped before it is read
            run(CREATE_TOPIC + log.dialect.ignore("name"), _values(name, partitions))
            # Here, for the caller's snapshot may be older than the row.
            info = _topic_of(run(STORED_TOPIC, (name,)))
    return info


def refuse_other_list(log: Log, info: TopicInfo) -> None:
    """Raise ConfigurationError if a log has a topic on other databases than the settings say: of a key some messages
    would be on one of them, and some on another."""
    wanted = settings.databases_of(info.name)
    if info.databases != as_stored(wanted):
        raise ConfigurationError(
            f"topic {info.name!r} was first used on {_told(log, info)}, as its row on {log.alias!r} says, and the"
            f" settings"
            f" say {', '.join(wanted)}: its keys would move, and their order be lost. Let TOPICS[{info.name!r}]"
            "['databases'] name the same in every process; to move the topic, see docs/databases.md"
        )


def refuse_moved(log: Log, name: str) -> None:
    """Raise ConfigurationError for a topic that is new to a log, and that another one has on other databases than the
    settings say now. Those that do not answer are not asked."""
    wanted = as_stored(settings.databases_of(name))
    for other in all_logs():
        try:
            info = None if other == log else stored_aside(other, name)
        except Error as error:
            if not retries.unreachable(other, error):
                raise
            continue
        if info is not None and (info.databases != wanted or other not in logs_of(name)):
            raise ConfigurationError(
                f"topic {name!r} is on {_told(other, info)}, as its row on {other!r} says, and the settings say"
                f" {', '.join(settings.databases_of(name))}: its keys would move, and their order be lost. Let"
                f" TOPICS[{name!r}]['databases'] name the same; to move the topic, drain it there, and `queuetopic"
                f" create {name}` on each of its new databases (docs/databases.md)"
            )


def _told(log: Log, info: TopicInfo) -> str:
    return info.databases.replace(SEPARATOR, ", ") or log.alias


def _topic_of(cursor: Any) -> TopicInfo | None:
    row = cursor.fetchone()
    return TopicInfo(*row) if row else None


def _values(name: str, partitions: int | None) -> tuple[Any, ...]:
    options = settings.topic(name)
    # Dead letters are kept until an operator replays or discards them.
    retention = None if name.endswith(DEAD_LETTER_SUFFIX) else options.retention
    databases = as_stored(settings.databases_of(name))
    return name, partitions or options.partitions, options.priorities, retention, options.history, databases
