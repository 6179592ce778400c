"""Publish: in the caller's transaction, one statement, through the gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db import connections, transaction

from sqlqueue.conf import settings
from sqlqueue.core.codec import encode, encode_headers
from sqlqueue.database.admission import TopicInfo, log_row
from sqlqueue.database.clock import EPOCH
from sqlqueue.database.dialects import dialect
from sqlqueue.database.entry import LogRow
from sqlqueue.database.gate import insert_many, insert_one
from sqlqueue.database.limits import check_sendable, check_storable
from sqlqueue.database.words import Dialect
from sqlqueue.exceptions import LONGEST_DELAY, InvalidMessage, seconds
from sqlqueue.log.bell import ring_after_commit
from sqlqueue.log.schedule import schedule
from sqlqueue.log.topics import planned, topic_info
from sqlqueue.observe import tracing
from sqlqueue.signals import announce, message_published


@dataclass(frozen=True, slots=True)
class Published:
    """What publish returns. offset: where the message stands (None: it is scheduled, and has no place yet); created:
    False if a message with this id was there already."""

    offset: int | None
    id: str
    created: bool


@dataclass(frozen=True, slots=True)
class PublishedMany:
    """What publish_many returns: the ids in the order given, and how many of the messages were new."""

    ids: list[str]
    created: int


class NewMessage:
    """A message for publish_many: payload, and optionally key, id, headers and priority as in publish."""

    __slots__ = ("headers", "id", "key", "payload", "priority")

    def __init__(
        self,
        payload: Any,
        *,
        key: str = "",
        id: str | None = None,
        headers: dict[str, Any] | None = None,
        priority: int = 0,
    ):
        self.payload, self.key, self.id, self.headers, self.priority = payload, key, id, headers, priority

    def __repr__(self) -> str:
        return f"NewMessage({self.payload!r}, key={self.key!r}, id={self.id!r})"


def publish(
    topic: str,
    payload: Any,
    *,
    key: str = "",
    id: str | None = None,
    headers: dict[str, Any] | None = None,
    priority: int = 0,
    delay: float | timedelta | None = None,
    at: datetime | None = None,
    group: str = "",
) -> Published:
    """Publish one message in the caller's transaction: it is delivered once that commits, or never was.

    key: what keeps its order; id: a second message of this id (and key) is no message; headers: for whoever handles it;
    priority: lower first, below the topic's number of priorities; delay (seconds or timedelta) or at (aware datetime):
    not before; group: for this consumer group only.

    Raises InvalidMessage if anything cannot be stored as given; nothing is cut.
    """
    sending = tracing.sending(topic)
    if sending is None:
        return _publish(topic, payload, key, id, headers, priority, delay, at, group)
    with sending:
        published = _publish(topic, payload, key, id, sending.headers(headers), priority, delay, at, group)
        sending.sent(published.id)
    return published


def _publish(
    topic: str,
    payload: Any,
    key: str,
    id: str | None,
    headers: dict[str, Any] | None,
    priority: int,
    delay: float | timedelta | None,
    at: datetime | None,
    group: str,
) -> Published:
    alias = settings.DATABASE
    info = topic_info(alias, topic)
    row = _row(alias, dialect(alias), info, payload, key, id, headers, priority, group)
    if delay is not None or at is not None:
        due_in = _due(delay, at)
        schedule(alias, row, due_in, at)
        if at is not None:
            due_in = (at - datetime.now(timezone.utc)).total_seconds()
        assert due_in is not None
        if due_in < 2 * settings.IDLE_POLL_INTERVAL:  # idle consumers might not look in time
            ring_after_commit(alias)
        return Published(None, row.id, True)
    offset, created = insert_one(alias, row, id is not None)
    if created:
        ring_after_commit(alias)
        announce(message_published, publish, topic=topic, count=1)
    return Published(offset, row.id, created)


def publish_many(topic: str, messages: Iterable[NewMessage | Any]) -> PublishedMany:
    """Publish many messages to one topic, all or none of them, up to 1,000 or about 1 MB a statement.

    A message is a NewMessage, or just a payload. Raises InvalidMessage, and then has published none.
    """
    sending = tracing.sending(topic)
    if sending is None:
        return _publish_many(topic, messages, None)
    with sending:
        published = _publish_many(topic, messages, sending.headers)
        sending.sent(None, len(published.ids))
    return published


def _publish_many(
    topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None
) -> PublishedMany:
    """traced: what makes the headers that are carried of those that were given."""
    alias = settings.DATABASE
    words, info = dialect(alias), topic_info(alias, topic)
    rows: list[LogRow] = []
    may_repeat = False
    for message in messages:
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        may_repeat = may_repeat or new.id is not None
        headers = new.headers if traced is None else traced(new.headers)
        rows.append(_row(alias, words, info, new.payload, new.key, new.id, headers, new.priority, ""))
    if not rows:
        return PublishedMany([], 0)
    created = insert_many(alias, rows, may_repeat)
    if created:
        ring_after_commit(alias)
    announce(message_published, publish_many, topic=topic, count=created)
    return PublishedMany([row.id for row in rows], created)


def check(topic: str, messages: Iterable[NewMessage | Any]) -> None:
    """Raise what publish_many would raise for these messages; publish none, and create no topic."""
    alias = settings.DATABASE
    words, info = dialect(alias), planned(alias, topic)
    for message in messages:
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        _row(alias, words, info, new.payload, new.key, new.id, new.headers, new.priority, "")


def publish_on_commit(topic: str, payload: Any, **options: Any) -> None:
    """Publish once the caller's transaction has committed; at once if there is none. Options as in publish.

    What cannot be published is refused now, not then. If the process dies between the commit and the publish, or the
    database fails then (which is logged, and does not keep later hooks from running), the message was never published:
    where that matters, use publish, which is part of the transaction.
    """
    alias = settings.DATABASE
    unknown = set(options) - {"key", "id", "headers", "priority", "delay", "at", "group"}
    if unknown:
        raise TypeError(f"publish_on_commit has no option {sorted(unknown)[0]!r}")
    info = topic_info(alias, topic)
    plain = {name: value for name, value in options.items() if name not in ("delay", "at")}
    _row(alias, dialect(alias), info, payload, *(plain.get(name, default) for name, default in _ROW_OPTIONS))
    _due(options.get("delay"), options.get("at"))
    hook = tracing.bound(lambda: publish(topic, payload, **options))
    # An error would keep the caller's later hooks from running, after its commit: Django logs it instead.
    transaction.on_commit(hook, using=alias, robust=connections[alias].in_atomic_block)


_ROW_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("key", ""),
    ("id", None),
    ("headers", None),
    ("priority", 0),
    ("group", ""),
)


def _row(
    alias: str,
    words: Dialect,
    info: TopicInfo,
    payload: Any,
    key: str,
    id: str | None,
    headers: dict[str, Any] | None,
    priority: int,
    group: str,
) -> LogRow:
    row = log_row(words, info, encode(payload), key, id, encode_headers(headers), priority, group)
    check_storable(alias, row, settings.MAX_PAYLOAD_BYTES)
    check_sendable(alias, row)
    return row


def _due(delay: float | timedelta | None, at: datetime | None) -> float | None:
    if delay is not None and at is not None:
        raise InvalidMessage("give delay or at, not both")
    if at is not None:
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise InvalidMessage(f"at must be an aware datetime (with a time zone), not {at!r}")
        if not EPOCH <= at <= datetime.now(timezone.utc) + timedelta(seconds=LONGEST_DELAY):
            raise InvalidMessage(f"at must lie between 1970 and ten years from now, not {at!r}")
    return None if delay is None else seconds(delay)
