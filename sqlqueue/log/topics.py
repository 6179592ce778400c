"""Topics: created at first use if they are declared; what a publisher has to know of one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, SEPARATOR, checked_topic, did_you_mean
from sqlqueue.core.periodic import PERIODIC_TOPIC
from sqlqueue.core.relay import is_relay_topic
from sqlqueue.database import retries
from sqlqueue.database.log import Log, all_logs, forget_layouts, logs_of
from sqlqueue.database.session import refuse_changing_session
from sqlqueue.database.transactions import aside, remember_once_committed
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.published_topic import PublishedTopic, TopicInfo
from sqlqueue.models import Topic, dead_letter_topic

CREATE_TOPIC = (
    "INSERT INTO sqlqueue_topic (name, partitions, priorities, retention, history, databases)"
    " VALUES (%s, %s, %s, %s, %s, %s) "
)
# Index: the primary key.
STORED_TOPIC = "SELECT name, partitions, priorities, databases FROM sqlqueue_topic WHERE name = %s"

_known: dict[tuple[Log, str], TopicInfo] = {}
_published: dict[tuple[Log, str], PublishedTopic] = {}


def published_topic(log: Log, name: str) -> PublishedTopic:
    """Return what a publisher knows of a topic; create it from the settings if it is new. Remembered once committed,
    until the settings are read again.

    Raises ConfigurationError for a topic that is not declared, or that only the queue itself publishes to, or that was
    first used on other databases than the settings say, and for a connection that changes values.
    """
    refuse_changing_session(log)
    try:
        found = _published.get((log, name))
    except TypeError:  # the name is a list, for example
        found = None
    if found is not None and found.reading is settings.reading:
        return found
    refuse_own(name)
    info = topic_info(log, name)
    if info.databases != settings.stored_databases(name):  # messages of a key would be on one and on another
        raise _other_list(log, info)
    found = PublishedTopic(log, info)
    remember_once_committed(log, _published, (log, name), found)
    return found


def topic_info(log: Log, name: str) -> TopicInfo:
    """Return a topic's partitions and priorities; create it from the settings if it is new. Remembered once
    committed. Raises ConfigurationError for one that is not declared."""
    try:
        return _known[log, name]
    except (KeyError, TypeError):
        pass
    checked_topic(name)
    return _info(log, name, None)


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
    if (
        info is None
        and partitions is None
        and (settings.several or (settings.STRICT_TOPICS and not is_known(log, name)))
    ):
        info = stored(log, name, committed=True)  # the caller's snapshot may be older than the row
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
    _published.clear()
    forget_layouts()


def refuse_dead_letters(topic: object) -> None:
    """Raise ConfigurationError for the topic of dead letters, which only the queue itself writes."""
    if isinstance(topic, str) and topic.endswith(DEAD_LETTER_SUFFIX):
        own = topic.removesuffix(DEAD_LETTER_SUFFIX)
        raise ConfigurationError(
            f"topic {topic!r} is for the dead letters of {own!r}, and only the queue itself writes them: publish to "
            f"{own!r}, or to a topic whose name does not end with {DEAD_LETTER_SUFFIX!r}"
        )


# -- rows -------------------------------------------------------------------------------------------------------------


def is_known(log: Log, name: str) -> bool:
    """Tell whether TOPICS names a topic, another setting declares it, it exists, or is that of periodic schedules. A
    dead-letter topic is known with its topic."""
    own = name.removesuffix(DEAD_LETTER_SUFFIX)
    return (
        name in settings.TOPICS
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
    """Raise ConfigurationError for a topic that is not known, unless STRICT_TOPICS is off; it suggests the nearest
    name."""
    if settings.STRICT_TOPICS and not is_known(log, name):
        raise ConfigurationError(
            f"topic {name!r} is not declared.{did_you_mean(name, known(log))} A new one is declared in "
            f"SQLQUEUE['TOPICS']: {{{name!r}: {{}}}} (STRICT_TOPICS = False lets the first use of a name create its "
            "topic)"
        )


def known(log: Log) -> set[str]:
    """Return the names of the topics that exist, or that TOPICS names."""
    there = Topic.objects.using(log.alias).exclude(name__endswith=DEAD_LETTER_SUFFIX).values_list("name", flat=True)
    return {*settings.TOPICS, *there}


def stored(log: Log, name: str, committed: bool = False) -> TopicInfo | None:
    """Return a topic as this log has it, None if it has not. committed: as last committed, where the caller's snapshot
    may be older than the row."""
    if not committed:
        return _topic_of(log.execute(STORED_TOPIC, (name,)))
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


def refuse_moved(log: Log, name: str) -> None:
    """Raise ConfigurationError for a topic that is new to a log, and that another one has on other databases than the
    settings say now. Those that do not answer are not asked."""
    wanted = settings.stored_databases(name)
    for other in all_logs():
        try:
            info = None if other == log else stored(other, name, committed=True)
        except Error as error:
            if not retries.unreachable(other, error):
                raise
            continue
        if info is not None and (info.databases != wanted or other not in logs_of(name)):
            raise _other_list(other, info)


def _other_list(log: Log, info: TopicInfo) -> ConfigurationError:
    used = info.databases.replace(SEPARATOR, ", ") or log.alias
    name, wanted = info.name, ", ".join(settings.databases_of(info.name))
    return ConfigurationError(
        f"topic {name!r} was first used on {used}, as its row on {log.alias!r} says, and the settings say {wanted}: its"
        f" keys would move, and their order be lost. Let TOPICS[{name!r}]['databases'] name the same in every process;"
        f" to move the topic, drain it there, and `queuetopic create {name}` on each of its new databases"
        " (docs/databases.md)"
    )


def _topic_of(cursor: Any) -> TopicInfo | None:
    row = cursor.fetchone()
    return TopicInfo(*row) if row else None


def _values(name: str, partitions: int | None) -> tuple[Any, ...]:
    options = settings.topic(name)
    # Dead letters are kept until an operator replays or discards them.
    retention = None if name.endswith(DEAD_LETTER_SUFFIX) else options.retention
    databases = settings.stored_databases(name)
    return name, partitions or options.partitions, options.priorities, retention, options.history, databases
