"""Publish: in the caller's transaction, one statement, through the gate."""

from __future__ import annotations

from asyncio import _get_running_loop
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlqueue.conf import settings
from sqlqueue.core.new_message import OPTIONS, NewMessage, OnConflict, PublishOptions, UniqueFor
from sqlqueue.database.gate import insert_one, row_size
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.sizes import chunks
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.adding import add_row, add_rows
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.placement import chooser, destination, destination_on_commit, publish_on_each, relay_one
from sqlqueue.log.published_topic import CREATED, IGNORED, STATUSES, Published, PublishedMany, PublishedTopic, Status
from sqlqueue.log.topics import planned, published_topic
from sqlqueue.signals import announce, message_published
from sqlqueue.tracing import spans
from sqlqueue.twins import async_twin, refuse_in_async

if TYPE_CHECKING:
    from typing_extensions import Unpack

UNTRACED = nullcontext()
MOST_AT_ONCE = 1_000  # messages of an iterator that are in memory
__all__ = ["Published", "PublishedMany", "check", "publish", "publish_many", "publish_on_commit"]

# What publishes tasks inside an app's block, such as that of a batch, whose members they are.
in_block: ContextVar[Callable[[str, NewMessage], Published] | None] = ContextVar("sqlqueue_in_block", default=None)


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
    on_conflict: OnConflict | None = None,
    content_type: str | None = None,
    expires: float | timedelta | None = None,
    unique_for: UniqueFor = None,
    relay: bool = False,
) -> Published:
    """Publish one message in the caller's transaction.

    payload: JSON, an instance of the topic's payload type, or bytes, of this content_type
    key: messages of one key keep their order
    id: the same topic, key and id again is `ignored`
    priority: 0 is delivered first
    delay, at: seconds or a timedelta, or an aware datetime
    group: the only consumer group that gets it
    on_conflict: "ignore", or "replace" a scheduled message of this id
    expires: seconds or a timedelta after which it is a dead letter instead
    unique_for: "key", seconds or a timedelta for which a pending message of the key keeps it out; False: not at all
    relay: commit on another database than the message's, and move to its own afterwards

    Raises InvalidMessage for what cannot be stored as given, and ConfigurationError for an undeclared topic.
    """
    if _get_running_loop() is not None:
        refuse_in_async("publish", "await apublish(…)")
    message = NewMessage(
        payload,
        key=key,
        id=id,
        headers=headers,
        priority=priority,
        delay=delay,
        at=at,
        group=group,
        on_conflict=on_conflict,
        content_type=content_type,
        expires=expires,
        unique_for=unique_for,
    )
    return publish_message(topic, message, relay=relay)


def publish_message(
    topic: str, message: NewMessage, reply_kept: float | None = None, relay: bool = False, log: Log | None = None
) -> Published:
    """Publish one message, as publish does.

    reply_kept: for how many seconds what comes of it is stored, for a caller that waits for a reply; None if none does
    log: the one that was chosen for it already
    """
    sending = spans.sending(topic)
    with sending or UNTRACED:
        headers = message.headers if sending is None else sending.headers(message.headers)
        if log is None and settings.several:
            to = destination(topic, message.key, message.id, relay)
            if to.relay:
                published = relay_one(topic, message, headers, to)
                if sending is not None:
                    sending.sent(published.id)
                return published
            log = to.log
        log = log or home_log()
        to_topic = published_topic(log, topic)
        row = to_topic.row(message, headers, reply_kept)
        if row.named or row.scheduled_for is not None or row.unique_for is not None:
            offset, id, status = add_row(log, row)
        else:  # as add_row does, in fewer steps
            offset, id, status = insert_one(log, row)[0], row.id, CREATED
            notify_after_commit(log, (row,))
        if status != IGNORED and row.scheduled_for is None:
            announce(message_published, publish, topic=topic, count=1, database=to_topic.label)
        if sending is not None:
            sending.sent(id)
        return Published(offset, id, status, to_topic.label)


def publish_many(topic: str, messages: Iterable[NewMessage | Any], *, relay: bool = False) -> PublishedMany:
    """Publish many messages to one topic, all or none of them, in one transaction.

    messages: NewMessages, or payloads; an iterator is read in constant memory while the transaction is open, and the
        result has counts only
    relay: as in publish

    Of a topic on several databases, all or none of those of each are published, and an iterator is refused.

    Raises InvalidMessage, and has published none then, and PartlyPublished if some databases have failed and others
    have not.
    """
    refuse_in_async("publish_many", "await apublish_many(…)")
    sending = spans.sending(topic)
    if sending is None:
        return _publish_many(topic, messages, lambda headers: headers, relay)
    with sending:
        published = _publish_many(topic, messages, sending.headers, relay)
        sending.sent(None, published.created + published.updated + published.ignored)
    return published


def _publish_many(
    topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any], relay: bool
) -> PublishedMany:
    """traced: returns the headers to store for those of a message."""
    new = (message if isinstance(message, NewMessage) else NewMessage(message) for message in messages)
    log = home_log()
    if settings.several:
        to = chooser(topic, relay)("", None) if len(settings.databases_of(topic)) == 1 else None
        if to is None or to.relay:
            if isinstance(messages, Iterator):
                raise InvalidMessage(
                    f"topic {topic!r} is on several databases, so an iterator cannot be published in one transaction:"
                    " give lists"
                )
            return publish_on_each(topic, list(new), traced, relay, publish_many)
        log = to.log
    to_topic = published_topic(log, topic)
    rows = (to_topic.row(message, traced(message.headers)) for message in new)
    if isinstance(messages, Iterator):
        published, entered = _publish_stream(log, rows)
    else:
        statuses, ids, entered = add_rows(log, list(rows))
        published = PublishedMany.of(statuses, ids)
    if entered:
        announce(message_published, publish_many, topic=topic, count=entered, database=to_topic.label)
    return published


def _publish_stream(log: Log, rows: Iterable[LogRow]) -> tuple[PublishedMany, int]:
    entered = 0
    counts: Counter[Status] = Counter()
    with log.atomic():
        for some in chunks(log, rows, MOST_AT_ONCE, row_size):
            statuses, _, of_these = add_rows(log, some)
            counts.update(statuses)
            entered += of_these
    return PublishedMany(None, None, *(counts[status] for status in STATUSES)), entered


def publish_in_block(topic: str, message: NewMessage) -> Published:
    """Publish a message in the transaction that is open on DATABASE, as an app's block around the call wants it: see
    in_block."""
    publish_it = in_block.get()
    return publish_message(topic, message, log=home_log()) if publish_it is None else publish_it(topic, message)


apublish = async_twin(publish)
apublish_many = async_twin(publish_many)


def check(topic: str, messages: Iterable[NewMessage | Any]) -> None:
    """Raise what publish_many would raise for these messages; publish none, and create no topic."""
    log = home_log()
    row = PublishedTopic(log, planned(log, topic)).row
    for message in messages:
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        row(new, new.headers)


def publish_on_commit(topic: str, payload: Any, **options: Unpack[PublishOptions]) -> None:
    """Publish once the caller's transaction has committed; at once if there is none.

    options: as in publish

    An invalid message is refused now. If the process dies between the commit and the publish, or the database fails
    then (which is logged), the message is not published.
    """
    refuse_in_async("publish_on_commit", "await apublish(…)")  # of no transaction: async code has none
    if unknown := set(options) - OPTIONS:
        raise TypeError(f"publish_on_commit has no option {sorted(unknown)[0]!r}")
    message = NewMessage(payload, **options)
    log = committed = home_log()
    if settings.several:
        log, committed = destination_on_commit(topic, message.key, message.id)
        info = planned(log, topic)
        hook = spans.bound(lambda: publish_message(topic, message, log=log))
    else:
        info = published_topic(log, topic).info
        hook = spans.bound(lambda: publish(topic, payload, **options))
    PublishedTopic(committed, info).row(message, message.headers)
    # An error would keep the caller's later hooks from running, after its commit: Django logs it instead.
    committed.on_commit(hook, robust=committed.connection.in_atomic_block)
