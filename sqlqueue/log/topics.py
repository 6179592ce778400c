"""Topics: created at first use if they are declared; what a publisher has to know of one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import connections, transaction

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, checked_topic
from sqlqueue.core.periodic import PERIODIC_TOPIC
from sqlqueue.database.aside import aside
from sqlqueue.database.statements import dialect, execute
from sqlqueue.database.transactions import in_test_case
from sqlqueue.database.validation import CREATE_TOPIC, STORED_TOPIC, TopicInfo, refuse_dead_letters, undeclared
from sqlqueue.models import Topic, dead_letter_topic

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
    """Return the same for publish(). Raises ConfigurationError also for a dead-letter topic."""
    refuse_dead_letters(name)
    return topic_info(alias, name)


def planned(alias: str, name: str) -> TopicInfo:
    """Return the same without creating the topic: a new one as it would be created."""
    refuse_dead_letters(name)
    options = settings.topic(checked_topic(name))
    require_declared(alias, name)
    return _stored(alias, name) or TopicInfo(name, options.partitions, options.priorities)


def is_declared(alias: str, name: str) -> bool:
    """Tell whether a topic may be used: TOPICS names it, another setting declares it, it exists, it is that of periodic
    schedules, or STRICT_TOPICS is off. A dead-letter topic is declared with its topic."""
    own = name.removesuffix(DEAD_LETTER_SUFFIX)
    if not settings.STRICT_TOPICS or settings.names(name) or settings.declares(own) or own == PERIODIC_TOPIC:
        return True
    return bool(existing(alias, {name}))


def existing(alias: str, names: Collection[str]) -> set[str]:
    """Return those of the topics that exist; a dead-letter topic also counts if its topic exists."""
    own = {name: name.removesuffix(DEAD_LETTER_SUFFIX) for name in names}
    found = Topic.objects.using(alias).filter(name__in={*own, *own.values()})
    there = set(found.values_list("name", flat=True))
    return {name for name in names if name in there or own[name] in there}


def require_declared(alias: str, name: str) -> None:
    """Raise ConfigurationError for a topic that is not declared; the error suggests the nearest name."""
    if not is_declared(alias, name):
        there = Topic.objects.using(alias).exclude(name__endswith=DEAD_LETTER_SUFFIX).values_list("name", flat=True)
        raise undeclared(name, {*settings.TOPICS, *there})


def dead_letters(alias: str, topic: str) -> TopicInfo:
    """Return the topic that a topic's dead letters go to; a new one has as many partitions."""
    name = dead_letter_topic(topic)
    return _known.get((alias, name)) or _info(alias, name, topic_info(alias, topic).partitions)


def _info(alias: str, name: str, partitions: int | None) -> TopicInfo:
    info = _stored(alias, name)
    if info is None and partitions is None and not is_declared(alias, name):
        with aside(alias) as run:  # the caller's snapshot may be older than the row
            info = _topic_of(run(STORED_TOPIC, (name,)))
        if info is None:
            require_declared(alias, name)
    info = info or create(alias, name, partitions)
    connection = connections[alias]
    if not connection.in_atomic_block:
        _known[alias, name] = info
    elif not in_test_case(
        connection
    ):  # whose commit hooks may be run (captureOnCommitCallbacks), and then it rolls back
        transaction.on_commit(lambda: _known.setdefault((alias, name), info), using=alias)
    return info


def forget_topics() -> None:
    """Forget all topics, so that they are looked up again: for tests that empty the table or change settings."""
    _known.clear()


def _stored(alias: str, name: str) -> TopicInfo | None:
    return _topic_of(execute(alias, STORED_TOPIC, (name,)))


def _topic_of(cursor: Any) -> TopicInfo | None:
    row = cursor.fetchone()
    return TopicInfo(*row) if row else None


def create(alias: str, name: str, partitions: int | None = None) -> TopicInfo:
    """Insert a topic's row if there is none, and return what is stored.

    Inside a caller's transaction it uses a separate connection, so that a long transaction which happens to publish
    first does not hold up other publishers of the topic.
    """
    with aside(alias) as run:
        run(CREATE_TOPIC + dialect(alias).ignore("name"), _values(name, partitions))
        # Here, for the caller's snapshot may be older than the row.
        info = _topic_of(run(STORED_TOPIC, (name,)))
    assert info is not None
    return info


def _values(name: str, partitions: int | None) -> tuple[object, ...]:
    options = settings.topic(name)
    # Dead letters are kept until an operator replays or discards them.
    retention = None if name.endswith(DEAD_LETTER_SUFFIX) else options.retention
    return name, partitions or options.partitions, options.priorities, retention, options.history
