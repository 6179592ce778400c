"""Publishing to topics on several databases: many messages at once, and what another database relays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import Error

from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.retries import ErrorKind
from sqlqueue.exceptions import PartlyPublished
from sqlqueue.log import relay as relays
from sqlqueue.log.adding import add_rows
from sqlqueue.log.placement import Destination, chooser, open_logs
from sqlqueue.log.published import CREATED, Published, PublishedMany, Status
from sqlqueue.log.published_topic import PublishedTopic
from sqlqueue.log.topics import planned, published_topic
from sqlqueue.signals import announce, message_published


def relay_one(topic: str, message: NewMessage, headers: Any, to: Destination) -> Published:
    """Let a message wait in the caller's transaction for its way to its database."""
    row = _topic(topic, to).row(message, headers)
    _add(to, [row])
    return Published(None, row.id, CREATED, to.log.alias)


def publish_many(
    topic: str, messages: Sequence[NewMessage], traced: Callable[[Any], Any], relay: bool, sender: object
) -> PublishedMany:
    """Publish many messages, each on its database: all or none of those of each.

    traced: returns the headers to store for those of a message
    sender: of the signal

    A database that does not answer fails alone. Raises InvalidMessage before one is published, and PartlyPublished if
    some databases have failed and others not.
    """
    choose, opened = chooser(topic, relay), open_logs()
    parts: dict[Destination, list[int]] = {}
    for index, message in enumerate(messages):
        parts.setdefault(choose(message.key, message.id), []).append(index)
    if relay and len(parts) > 1 and not opened:
        with next(iter(parts)).log.atomic():
            return publish_many(topic, messages, traced, relay, sender)

    rows: dict[Destination, list[LogRow]] = {}
    published: dict[int, tuple[Status, str]] = {}
    failed: dict[Destination, Error] = {}

    @contextmanager
    def failing_alone(to: Destination) -> Iterator[None]:
        """Note an error of a database, unless the caller has a transaction open, or there is no other database."""
        try:
            yield
        except Error as error:
            if opened or len(parts) == 1:
                raise
            if retries.classify(error) is ErrorKind.GONE:
                retries.drop_connection(to.log)
            failed[to] = error

    for to, indexes in parts.items():
        with failing_alone(to):
            row = _topic(topic, to).row
            rows[to] = [row(messages[index], traced(messages[index].headers)) for index in indexes]
    for to, some in rows.items():
        with failing_alone(to):
            statuses, ids, entered = _add(to, some)
            published.update(zip(parts[to], zip(statuses, ids)))
            if entered:
                announce(message_published, sender, topic=topic, count=entered, database=to.log.label)
    if len(failed) == len(parts) and failed:
        raise next(iter(failed.values()))
    if failed:
        unpublished = sorted(index for to in failed for index in parts[to])
        raise PartlyPublished(topic, {to.log.alias: error for to, error in failed.items()}, unpublished)
    return PublishedMany.of(*zip(*(published[index] for index in range(len(messages)))))


def _topic(name: str, to: Destination) -> PublishedTopic:
    return PublishedTopic(to.relay, planned(to.relay, name)) if to.relay else published_topic(to.log, name)


def _add(to: Destination, rows: Sequence[LogRow]) -> tuple[list[Status], list[str], int]:
    if not to.relay:
        return add_rows(to.log, rows)
    relays.add(to.relay, to.log, rows)
    return [CREATED] * len(rows), [row.id for row in rows], 0
