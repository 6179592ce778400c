"""The relay: messages that a transaction on one database publishes, and that belong on another.

They are published to a topic of their target (core.relay) in the transaction's log, and a built-in consumer of that log
brings them. Two databases do not commit together, so the target knows how far it has got: the transaction that adds
messages there raises a position, on the condition that it is still what it was. A message at or below it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.codec import decode, encode, encode_headers
from sqlqueue.core.new_message import NewMessage
from sqlqueue.core.relay import Relayed, id_prefix, relay_id, relay_topic, with_relayed, without_relayed
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.database import clock, retries
from sqlqueue.database.gate import insert_many
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.limits import check_row
from sqlqueue.database.log import Log, all_logs, logs_of
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.conflicts import add_many
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published_topic import log_row
from sqlqueue.log.topics import published_topic, topic_info
from sqlqueue.models import Message

# Index: the unique key of both.
POSITION = 'SELECT "offset", message_id FROM sqlqueue_relay_position WHERE source = %s AND "partition" = %s'
FIRST = 'INSERT INTO sqlqueue_relay_position (source, "partition", "offset", message_id) VALUES (%s, %s, 0, \'\') '
RAISE = """
    UPDATE sqlqueue_relay_position SET "offset" = %s, message_id = %s
    WHERE source = %s AND "partition" = %s AND "offset" = %s AND message_id = %s
"""
PARTITION = 0  # a relay topic has one: its messages arrive in their order


class Position(NamedTuple):
    """The last message that has come from a database: its offset and id there."""

    offset: int
    id: str


class Waiting(NamedTuple):
    """A message on its way, and the databases between which it is."""

    source: Log
    target: Log
    message: Message
    group: str


# -- where it begins --------------------------------------------------------------------------------------------------


def add(source: Log, target: Log, messages: Sequence[LogRow]) -> None:
    """Let messages go their way to a database, in the caller's transaction.

    Raises InvalidMessage for what only their own database could answer."""
    rows = [_on_its_way(target, row) for row in messages]
    topic_info(source, relay_topic(target.alias))
    insert_many(source, rows)
    notify_after_commit(source, rows)


def _on_its_way(target: Log, row: LogRow) -> LogRow:
    if row.unique_for is not None:
        raise InvalidMessage(
            f"topic {row.topic!r}: unique_for cannot be relayed, for only the key's own database knows what is pending:"
            " give unique_for=False, or use publish_on_commit"
        )
    if row.replace:
        raise InvalidMessage(
            f"topic {row.topic!r}: on_conflict='replace' cannot be relayed, for only the key's own database knows what "
            "is scheduled: leave it out, or use publish_on_commit"
        )
    at = row.scheduled_for
    due, delay = (at.isoformat(), None) if isinstance(at, datetime) else (None, at)
    relayed = Relayed(row.topic, row.id, row.key, row.priority, row.target_group, due, delay, row.expires)
    return row._replace(
        topic=relay_topic(target.alias),
        partition=PARTITION,
        priority=0,
        id=relay_id(row.topic, row.key, row.id),
        headers=encode_headers(with_relayed(decode(row.headers), relayed)),
        target_group="",
        expires=None,
        scheduled_for=None,
        named=False,
    )


# -- where it ends ----------------------------------------------------------------------------------------------------


def arrive(source: Log, target: Log, messages: Sequence[FetchedMessage]) -> None:
    """Publish relayed messages on their database, in their order: each once, however often this is called with it, and
    by however many processes at once.

    Raises InvalidMessage or ConfigurationError for what their topic refuses: none of them is published then.
    """
    while True:
        position = _position(source, target)
        new = _not_arrived(source, position, messages)
        if not new:
            return
        rows = _rows(source, target, new)
        if retries.run(target, _arrive, source, target, position, Position(new[-1].offset, new[-1].id), rows):
            return


def _arrive(source: Log, target: Log, before: Position, after: Position, rows: Sequence[LogRow]) -> bool:
    if not target.execute(RAISE, (*after, source.alias, PARTITION, *before)).rowcount:
        return False  # another process has brought some
    add_many(target, rows)
    notify_after_commit(target, [row for row in rows if row.scheduled_for is None])
    return True


def _position(source: Log, target: Log) -> Position:
    found = target.execute(POSITION, (source.alias, PARTITION)).fetchone()
    if found is None:
        target.execute(FIRST + target.dialect.ignore('source, "partition"'), (source.alias, PARTITION))
        found = target.execute(POSITION, (source.alias, PARTITION)).fetchone()
    return Position(*found)


def _not_arrived(source: Log, position: Position, messages: Sequence[FetchedMessage]) -> list[FetchedMessage]:
    """Return those of the messages that have not arrived yet.

    Offsets only rise, unless the source has lost its last messages in a failover: then the message of the position is
    not in its log, and what is there was published since.
    """
    behind = [one for one in messages if one.offset <= position.offset]
    if not behind:
        return list(messages)
    there_now = Message.objects.using(source.alias)
    if there_now.filter(offset=position.offset, message_id=position.id).exists():
        there: set[str] = set()
    else:  # collected with all that is behind it, or lost
        offsets = [one.offset for one in behind]
        there = set(there_now.filter(offset__in=offsets).values_list("message_id", flat=True))
    return [one for one in messages if one.offset > position.offset or one.id in there]


def _rows(source: Log, target: Log, messages: Sequence[FetchedMessage]) -> list[LogRow]:
    """Return messages as they are published on their database."""
    found: list[LogRow] = []
    now: datetime | None = None
    for one in messages:
        relayed, headers = without_relayed(decode(one.headers))
        info = published_topic(target, relayed.topic).info
        created = clock.moment(one.created)
        due = None if relayed.due is None else datetime.fromisoformat(relayed.due)
        if relayed.delay is not None:
            due = created + timedelta(seconds=relayed.delay)
        expires = relayed.expires
        if expires is not None and due is None:  # it counts from the publish
            now = now or clock.now(source)
            expires = round((expires - (now - created) / timedelta(microseconds=1)) / 1_000) * 1_000
        payload = one.payload if isinstance(one.payload, str) else encode(one.payload)
        message = NewMessage(None, key=relayed.key, id=relayed.id, priority=relayed.priority, group=relayed.group)
        row = log_row(info, message, payload, None if headers is None else encode_headers(headers))
        body = None if one.body is None else bytes(one.body)
        row = row._replace(body=body, expires=expires, scheduled_for=due, named=True)
        check_row(target, row, settings.MAX_PAYLOAD_BYTES)
        found.append(row)
    return found


# -- in between -------------------------------------------------------------------------------------------------------


def waiting(topic: str, key: str, id: str) -> Waiting | None:
    """Return a message that is on its way to its database; None if there is none. A database that does not answer is
    left out."""
    first = id_prefix(topic, key, id)
    for source in all_logs():
        for target in logs_of(topic):
            if source == target:
                continue
            try:
                rows = Message.objects.using(source.alias).filter(
                    topic=relay_topic(target.alias), message_id__gt=f"{first}-", message_id__lt=f"{first}."
                )
                message = rows.order_by("message_id").last()
                if message is not None and message.offset > _position(source, target).offset:
                    return Waiting(source, target, message, without_relayed(message.headers)[0].group)
            except Error as error:
                if not retries.unreachable(source, error) and not retries.unreachable(target, error):
                    raise
    return None
