"""Publish: in the caller's transaction, one statement, through the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

from sqlqueue.conf import settings
from sqlqueue.core.new_message import OPTIONS, NewMessage, OnConflict, PublishOptions
from sqlqueue.core.unique_for import UniqueFor
from sqlqueue.database import weight
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log, current_log, home_log
from sqlqueue.log import spread_publish
from sqlqueue.log.adding import add_all, add_offer, add_row, notify_of
from sqlqueue.log.conflicts import Offer
from sqlqueue.log.offers import OfferMaker, checked_due, offer_maker
from sqlqueue.log.placement import destination, destination_on_commit
from sqlqueue.log.published import CREATED, IGNORED, Published, PublishedMany, Status
from sqlqueue.log.topics import planned, to_publish
from sqlqueue.signals import announce, message_published
from sqlqueue.tracing import propagation
from sqlqueue.twins import async_twin, refuse_in_async

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_AT_ONCE = 1_000  # messages of an iterator that are in memory
STATUSES: tuple[Status, ...] = get_args(Status)
__all__ = ["Published", "PublishedMany", "check", "checked_due", "publish", "publish_many", "publish_on_commit"]


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
    """Publish one message, as publish does. reply_kept: for how many seconds what comes of it is stored, for a caller
    that waits for a reply; None if none does. log: the one that was chosen for it already."""
    sending = propagation.sending(topic)
    if sending is None:
        return _publish(topic, message, message.headers, reply_kept, relay, log)
    with sending:
        published = _publish(topic, message, sending.headers(message.headers), reply_kept, relay, log)
        sending.sent(published.id)
    return published


def _publish(
    topic: str, message: NewMessage, headers: Any, reply_kept: float | None, relay: bool, log: Log | None
) -> Published:
    if log is not None or not settings.several:
        return _publish_at(log or current_log(), topic, message, headers, reply_kept)

    to = destination(topic, message.key, message.id, relay)
    if to.relay:
        return spread_publish.relay_one(topic, message, headers, to)
    return _publish_at(to.log, topic, message, headers, reply_kept)


def _publish_at(log: Log, topic: str, message: NewMessage, headers: Any, reply_kept: float | None) -> Published:
    maker = offer_maker(log, to_publish(log, topic))
    row = maker.plain_row(message, headers) if reply_kept is None else None
    if row is not None:
        published = Published(add_row(log, row), row.id, CREATED, log.label)
        announce(message_published, publish, topic=topic, count=1, database=published.database)
        return published
    offer = maker.offer(message, headers, reply_kept)
    offset, id, status = add_offer(log, offer)
    database = log.label
    if status != IGNORED and notify_of(log, [offer]):
        announce(message_published, publish, topic=topic, count=1, database=database)
    return Published(offset, id, status, database)


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
    sending = propagation.sending(topic)
    if sending is None:
        return _publish_many(topic, messages, None, relay)
    with sending:
        published = _publish_many(topic, messages, sending.headers, relay)
        sending.sent(None, published.created + published.updated + published.ignored)
    return published


def _publish_many(
    topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None, relay: bool
) -> PublishedMany:
    """traced: returns the headers to store for those of a message; None: the same."""
    if not settings.several:
        return _publish_many_at(current_log(), topic, messages, traced)

    to = spread_publish.only_destination(topic, relay)
    if to is None or to.relay:
        return spread_publish.publish_many(topic, messages, traced, relay)
    return _publish_many_at(to.log, topic, messages, traced)


def _publish_many_at(
    log: Log, topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None
) -> PublishedMany:
    checked = _checked(log, topic, messages, traced)
    if not isinstance(messages, Iterator):
        statuses, ids, entered = add_all(log, list(checked))
        published = PublishedMany(ids, statuses, *map(statuses.count, STATUSES))
    else:
        entered, published = _publish_stream(log, checked)
    if entered:
        announce(message_published, publish_many, topic=topic, count=entered, database=log.label)
    return published


def _publish_stream(log: Log, messages: Iterator[LogRow | Offer]) -> tuple[int, PublishedMany]:
    entered = 0
    counts: Counter[Status] = Counter()
    with log.atomic():
        for some in weight.as_they_come(messages, MOST_AT_ONCE, weight.STATEMENT, _size):
            statuses, _, of_these = add_all(log, some)
            counts.update(statuses)
            entered += of_these
    return entered, PublishedMany(None, None, *(counts[status] for status in STATUSES))


def _size(message: LogRow | Offer) -> int:
    return len(message.payload) if isinstance(message, LogRow) else message.message.row.size


def _checked(
    log: Log, topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None
) -> Iterator[LogRow | Offer]:
    maker = offer_maker(log, to_publish(log, topic))
    plain_row = maker.plain_row
    for message in messages:
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        headers = new.headers if traced is None else traced(new.headers)
        yield plain_row(new, headers) or maker.offer(new, headers)


apublish = async_twin(publish)
apublish_many = async_twin(publish_many)


def check(topic: str, messages: Iterable[NewMessage | Any]) -> None:
    """Raise what publish_many would raise for these messages; publish none, and create no topic."""
    log = home_log()
    offer = OfferMaker(log, planned(log, topic)).offer
    for message in messages:
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        offer(new, new.headers)


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
    log = committed = current_log()
    if settings.several:
        log, committed = destination_on_commit(topic, message.key, message.id)
        info = planned(log, topic)
        hook = propagation.bound(lambda: publish_message(topic, message, log=log))
    else:
        info = to_publish(log, topic)
        hook = propagation.bound(lambda: publish(topic, payload, **options))
    OfferMaker(committed, info).offer(message, message.headers)
    # An error would keep the caller's later hooks from running, after its commit: Django logs it instead.
    committed.on_commit(hook, robust=committed.connection.in_atomic_block)
