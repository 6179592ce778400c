"""Validation: a message, checked and assigned to a partition, as a row of the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlqueue.core.keys import (
    DEAD_LETTER_SUFFIX,
    GROUP_LENGTH,
    ID_LENGTH,
    KEY_LENGTH,
    checked_name,
    checked_text,
    did_you_mean,
    new_id,
    partition_of,
)
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

CREATE_TOPIC = (
    "INSERT INTO sqlqueue_topic (name, partitions, priorities, retention, history, databases)"
    " VALUES (%s, %s, %s, %s, %s, %s) "
)
# Index: the primary key.
STORED_TOPIC = "SELECT name, partitions, priorities, databases FROM sqlqueue_topic WHERE name = %s"


class TopicInfo(NamedTuple):
    """The fixed options of a topic. databases: see core.databases.as_stored."""

    name: str
    partitions: int
    priorities: int
    databases: str = ""


def refuse_dead_letters(topic: object) -> None:
    """Raise ConfigurationError for the topic of dead letters, which only the queue itself writes."""
    if isinstance(topic, str) and topic.endswith(DEAD_LETTER_SUFFIX):
        own = topic.removesuffix(DEAD_LETTER_SUFFIX)
        raise ConfigurationError(
            f"topic {topic!r} is for the dead letters of {own!r}, and only the queue itself writes them: publish to "
            f"{own!r}, or to a topic whose name does not end with {DEAD_LETTER_SUFFIX!r}"
        )


def undeclared(topic: str, known: Iterable[str]) -> ConfigurationError:
    """Return the error for a topic that is neither in SQLQUEUE['TOPICS'] nor there already. known: those that are."""
    return ConfigurationError(
        f"topic {topic!r} is not declared.{did_you_mean(topic, known)} A new one is declared in SQLQUEUE['TOPICS']: "
        f"{{{topic!r}: {{}}}} (STRICT_TOPICS = False lets the first use of a name create its topic)"
    )


def log_row(info: TopicInfo, message: NewMessage, payload: str, headers: str | None) -> LogRow:
    """Return a message as a row of the log; payload and headers: its own, as JSON text. Without an id it gets one.

    Raises InvalidMessage for a key, id, priority or group that cannot be stored as it is. What the server refuses of
    payload and headers, limits.check_row says.
    """
    key, id, priority, group = message.key, message.id, message.priority, message.group
    if type(key) is not str or len(key) > KEY_LENGTH or not key.isascii() or "\0" in key:  # most are
        checked_text(key, "key", KEY_LENGTH)
    if id is None:
        id = new_id()
    elif id == "":
        raise InvalidMessage("id is empty: leave it out to get a fresh one")
    else:
        checked_text(id, "id", ID_LENGTH)
    if priority != 0 and (not isinstance(priority, int) or not 0 <= priority < info.priorities):
        raise InvalidMessage(
            f"priority {priority!r} is not one of topic {info.name!r}, which has {info.priorities} (0 is the first): "
            f"set SQLQUEUE['TOPICS'][{info.name!r}]['priorities'] before the topic is first used"
        )
    if group:
        checked_name(group, "group", GROUP_LENGTH)
    # A message without a key goes to the partition of its id: evenly spread, and a repeated id to the same one.
    partition = partition_of(key or id, info.partitions)
    return LogRow(info.name, partition, priority, key, id, payload, headers, group or "")
