"""Topics: created on first use, and what a publisher has to know of one."""

from __future__ import annotations

from django.db import connections, transaction

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, checked_topic
from sqlqueue.database.admission import CREATE_TOPIC, STORED_TOPIC, TopicInfo
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.transactions import in_test_case
from sqlqueue.models import dead_letter_topic

_known: dict[tuple[str, str], TopicInfo] = {}


def topic_info(alias: str, name: str) -> TopicInfo:
    """Return a topic's partitions and priorities; create it from the settings if it is new. Remembered once
    committed."""
    try:
        return _known[alias, name]
    except (KeyError, TypeError):
        pass
    checked_topic(name)
    return _info(alias, name, None)


def planned(alias: str, name: str) -> TopicInfo:
    """Return the same, and create nothing: a topic that is new as it would be created."""
    options = settings.topic(checked_topic(name))
    return _stored(alias, name) or TopicInfo(name, options.partitions, options.priorities)


def dead_letters(alias: str, topic: str) -> TopicInfo:
    """Return the topic that a topic's dead letters go to; a new one has as many partitions."""
    name = dead_letter_topic(topic)
    return _known.get((alias, name)) or _info(alias, name, topic_info(alias, topic).partitions)


def _info(alias: str, name: str, partitions: int | None) -> TopicInfo:
    info = _stored(alias, name) or create(alias, name, partitions)
    connection = connections[alias]
    if not connection.in_atomic_block:
        _known[alias, name] = info
    elif not in_test_case(
        connection
    ):  # whose commit hooks may be run (captureOnCommitCallbacks), and then it rolls back
        transaction.on_commit(lambda: _known.setdefault((alias, name), info), using=alias)
    return info


def forget_topics() -> None:
    """Look topics up again: after their table was emptied (tests), or the settings changed."""
    _known.clear()


def _stored(alias: str, name: str) -> TopicInfo | None:
    row = execute(alias, STORED_TOPIC, (name,)).fetchone()
    return TopicInfo(*row) if row else None


def create(alias: str, name: str, partitions: int | None = None) -> TopicInfo:
    """Insert a topic's row if there is none, and return what stands there.

    Inside somebody's transaction it is done on a connection of its own, so that a long transaction which happens to
    publish first holds up no other publisher of the topic.
    """
    connection = connections[alias]
    if not connection.in_atomic_block or not dialect(alias).gated or in_test_case(connection):
        execute(alias, CREATE_TOPIC + dialect(alias).ignore("name"), _values(name, partitions))
        info = _stored(alias, name)
        assert info is not None
        return info
    separate = connection.copy()
    try:
        with separate.cursor() as cursor:
            cursor.execute(dialect(alias).sql(CREATE_TOPIC + dialect(alias).ignore("name")), _values(name, partitions))
            # Here, for the caller's snapshot may be older than the row.
            cursor.execute(dialect(alias).sql(STORED_TOPIC), (name,))
            return TopicInfo(*cursor.fetchone())
    finally:
        separate.close()


def _values(name: str, partitions: int | None) -> tuple[object, ...]:
    options = settings.topic(name)
    # Dead letters are kept until a person replays or discards them.
    retention = None if name.endswith(DEAD_LETTER_SUFFIX) else options.retention
    return name, partitions or options.partitions, options.priorities, retention, options.history
