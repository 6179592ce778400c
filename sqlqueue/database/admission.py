"""What may enter the log: a message, checked and placed, as a row. Needs no Django."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlqueue.core.codec import check_depth
from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH, checked_name, checked_text, new_id, partition_of
from sqlqueue.database.entry import LogRow
from sqlqueue.database.words import Dialect
from sqlqueue.exceptions import InvalidMessage

DEEPEST_OF_MARIADB, DEEPEST_OF_MYSQL = 31, 100  # JSON_DEPTH_LIMIT; JSON_DOCUMENT_MAX_DEPTH
CREATE_TOPIC = (
    "INSERT INTO sqlqueue_topic (name, partitions, priorities, retention, history) VALUES (%s, %s, %s, %s, %s) "
)
STORED_TOPIC = "SELECT name, partitions, priorities FROM sqlqueue_topic WHERE name = %s"  # index: the primary key
SCHEDULE = (
    "INSERT INTO sqlqueue_scheduled_message"
    " (topic, partition_key, message_id, payload, headers, priority, target_group, due_at)"
)
# Index: that of the source's key.
SCHEDULE_COPY = (
    f"{SCHEDULE} SELECT %s, %s, %s, original.payload, original.headers, %s, %s, {{later}} FROM {{table}} AS original"
    ' WHERE original."{key}" = %s'
)
SCHEDULE_LATER = f"{SCHEDULE} VALUES (%s, %s, %s, %s, %s, %s, %s, {{later}})"


class TopicInfo(NamedTuple):
    """What never changes of a topic."""

    name: str
    partitions: int
    priorities: int


def log_row(
    words: Dialect,
    info: TopicInfo,
    payload: str,
    key: str = "",
    id: str | None = None,
    headers: str | None = None,
    priority: int = 0,
    group: str = "",
) -> LogRow:
    """Return a message as a row of the log; payload and headers are JSON text. id None: a fresh one.

    Raises InvalidMessage for what cannot be stored as it is.
    """
    if key != "":
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
    # A message without a key goes where its id belongs: evenly spread, and a repeated id meets its first.
    partition = partition_of(key or id, info.partitions)
    words.check_json(payload, "payload")
    if headers is not None:
        words.check_json(headers, "headers")
    return LogRow(info.name, partition, priority, key, id, payload, headers, group)


def check_storable(row: LogRow, most: int, deepest: Callable[[], int]) -> None:
    """Raise InvalidMessage for a message of more bytes than `most`, and for one whose JSON is nested deeper than the
    server keeps it; `deepest` is asked only if that is possible."""
    size = 0
    for text, kind in ((row.payload, "payload"), (row.headers, "headers")):
        if not isinstance(text, str):
            continue
        size += len(text) if text.isascii() else len(text.encode())
        if text.count("[") + text.count("{") > DEEPEST_OF_MARIADB:
            check_depth(text, kind, deepest())
    check_size(size, most)


def check_size(size: int, most: int) -> None:
    """Raise InvalidMessage for a message of too many bytes."""
    if size > most:
        raise InvalidMessage(
            f"payload and headers have {size} bytes; {most} is the most (SQLQUEUE['MAX_PAYLOAD_BYTES']): keep what is "
            "large elsewhere, and publish where it is"
        )


def scheduled(row: LogRow) -> tuple[object, ...]:
    """Return a row's values in the order of SCHEDULE."""
    return (row.topic, row.key, row.id, row.payload, row.headers, row.priority, row.target_group)
