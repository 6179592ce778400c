"""Publish: in the caller's transaction, one statement, through the gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, get_args

from django.db import connections, transaction

from sqlqueue.conf import settings
from sqlqueue.core.new_message import OPTIONS, NewMessage, OnConflict
from sqlqueue.core.unique_for import UniqueFor, checked_unique_for
from sqlqueue.database import weight
from sqlqueue.database.clock import EPOCH
from sqlqueue.database.dialects import Dialect
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.limits import check_sendable, check_storable
from sqlqueue.database.scheduling import Due
from sqlqueue.database.statements import dialect
from sqlqueue.database.validation import TopicInfo, log_row
from sqlqueue.exceptions import LONGEST_DELAY, InvalidMessage, lifetime, seconds
from sqlqueue.log.conflicts import Offer, add_many, add_one
from sqlqueue.log.encoding import NOTHING, body_of, encode_headers, encode_payload
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published import IGNORED, Published, PublishedMany, Status
from sqlqueue.log.topics import planned, to_publish
from sqlqueue.log.uniqueness import add_unique, add_unique_many
from sqlqueue.payloads.topic_types import published_as
from sqlqueue.payloads.versions import with_own
from sqlqueue.signals import announce, message_published
from sqlqueue.tracing import propagation
from sqlqueue.twins import async_twin, refuse_in_async

MOST_AT_ONCE = 1_000  # messages of an iterator that are in memory
STATUSES: tuple[Status, ...] = get_args(Status)
CHOICES = get_args(OnConflict)
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
) -> Published:
    """Publish one message in the caller's transaction: it is delivered if that commits.

    payload: a value that JSON has, or an instance of the topic's payload type, or bytes, of this content_type.
    key: messages of one key keep their order; id: if a message of this topic, key and id is in the log or scheduled,
    nothing is added and the status is `ignored` (of two open transactions, one that schedules and one that publishes,
    neither sees the other; the message is delivered once all the same); headers: for its handlers; priority: 0 is
    delivered first, up to the topic's priorities less one; delay (seconds or timedelta) or at (aware datetime): it is
    delivered no earlier; group: only to this consumer group; on_conflict: `ignore` (the default) or, to replace one
    that is still scheduled, with its time (without delay and at: by entering the log now), `replace`; expires (seconds
    or timedelta, from now, or from when it is due): what is delivered later, or tried again later, is a dead letter
    instead, without its handler; unique_for ("key", seconds or timedelta; None: as the topic says; False: not at all):
    while a message of this topic and key that was published with it is pending, at most for so long from its publish,
    nothing is added, and the result has the id of that one, with the status `ignored` (`updated` if that was scheduled,
    and on_conflict says `replace`).

    Raises InvalidMessage if anything cannot be stored as given, or does not fit the topic's payload type; nothing is
    cut. Raises ConfigurationError for a topic that is not declared (STRICT_TOPICS), and for a dead-letter topic.
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
    return publish_message(topic, message)


def publish_message(topic: str, message: NewMessage, reply_kept: float | None = None) -> Published:
    """Publish one message, as publish does. reply_kept: for how many seconds what comes of it is stored, for a caller
    that waits for a reply; None if none does."""
    sending = propagation.sending(topic)
    if sending is None:
        return _publish(topic, message, message.headers, reply_kept)
    with sending:
        published = _publish(topic, message, sending.headers(message.headers), reply_kept)
        sending.sent(published.id)
    return published


def _publish(topic: str, message: NewMessage, headers: Any, reply_kept: float | None) -> Published:
    alias = settings.DATABASE
    row = _row(alias, dialect(alias), to_publish(alias, topic), message, headers, reply_kept)
    offer = _offer(row, message)
    id = offer.message.row.id
    if offer.unique_for is None:
        offset, status = add_one(alias, offer)
    else:
        offset, id, status = add_unique(alias, offer)
    if status != IGNORED and _notify(alias, [offer]):
        announce(message_published, publish, topic=topic, count=1)
    return Published(offset, id, status)


def _notify(alias: str, offers: Sequence[Offer]) -> int:
    """Notify consumers of what was published or replaced; return how many of them have entered the log."""
    _notify_if_soon(alias, [offer.message for offer in offers if offer.scheduled])
    entered = sum(not offer.scheduled for offer in offers)
    if entered:
        notify_after_commit(alias)
    return entered


def _notify_if_soon(alias: str, messages: Sequence[Due]) -> None:
    """Notify if a message is due before idle consumers may poll next."""
    now = datetime.now(timezone.utc)
    for _, delay, at in messages:
        due_in = (at - now).total_seconds() if at is not None else delay
        if due_in is not None and due_in < 2 * settings.IDLE_POLL_INTERVAL:
            notify_after_commit(alias)
            return


def publish_many(topic: str, messages: Iterable[NewMessage | Any]) -> PublishedMany:
    """Publish many messages to one topic, all or none of them, up to 1,000 or about 1 MB a statement.

    A message is a NewMessage, or just a payload. Raises InvalidMessage, and then has published none. An iterator, such
    as a generator, is published as it is read, in constant memory and in one transaction, which is open as long as that
    takes; the result has counts only.
    """
    refuse_in_async("publish_many", "await apublish_many(…)")
    sending = propagation.sending(topic)
    if sending is None:
        return _publish_many(topic, messages, None)
    with sending:
        published = _publish_many(topic, messages, sending.headers)
        sending.sent(None, published.created + published.updated + published.ignored)
    return published


def _publish_many(
    topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None
) -> PublishedMany:
    """traced: returns the headers to store for those of a message; None: the same."""
    alias = settings.DATABASE
    offers = _offers(alias, topic, messages, traced)
    if not isinstance(messages, Iterator):
        given = list(offers)
        statuses, ids = _add_many(alias, given)
        entered = _notify(alias, [offer for offer, status in zip(given, statuses) if status != IGNORED])
        published = PublishedMany(ids, statuses, *map(statuses.count, STATUSES))
    else:
        entered, published = _publish_stream(alias, offers)
    if entered:
        announce(message_published, publish_many, topic=topic, count=entered)
    return published


def _add_many(alias: str, offers: Sequence[Offer]) -> tuple[list[Status], list[str]]:
    """Return statuses and ids."""
    if any(offer.unique_for is not None for offer in offers):
        return add_unique_many(alias, offers)
    return add_many(alias, offers) if offers else [], [offer.message.row.id for offer in offers]


def _publish_stream(alias: str, offers: Iterator[Offer]) -> tuple[int, PublishedMany]:
    entered = 0
    counts: Counter[Status] = Counter()
    with transaction.atomic(using=alias):
        for some in weight.as_they_come(
            offers, MOST_AT_ONCE, weight.STATEMENT, lambda one: weight.weight(one.message.row)
        ):
            statuses, _ = _add_many(alias, some)
            counts.update(statuses)
            entered += _notify(alias, [offer for offer, status in zip(some, statuses) if status != IGNORED])
    return entered, PublishedMany(None, None, *(counts[status] for status in STATUSES))


def _offers(
    alias: str, topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None
) -> Iterator[Offer]:
    syntax, info = dialect(alias), to_publish(alias, topic)
    for message in messages:
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        headers = new.headers if traced is None else traced(new.headers)
        yield _offer(_row(alias, syntax, info, new, headers), new)


apublish = async_twin(publish)
apublish_many = async_twin(publish_many)


def check(topic: str, messages: Iterable[NewMessage | Any]) -> None:
    """Raise what publish_many would raise for these messages; publish none, and create no topic."""
    alias = settings.DATABASE
    syntax, info = dialect(alias), planned(alias, topic)
    for message in messages:
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        _offer(_row(alias, syntax, info, new, new.headers), new)


def publish_on_commit(topic: str, payload: Any, **options: Any) -> None:
    """Publish once the caller's transaction has committed; at once if there is none. Options as in publish.

    An invalid message is refused now, not after the commit. If the process dies between the commit and the publish, or
    the database fails then (which is logged; later hooks run), the message is not published: where that matters, use
    publish, which is part of the transaction.
    """
    refuse_in_async("publish_on_commit", "await apublish(…)")  # of no transaction: async code has none
    alias = settings.DATABASE
    if unknown := set(options) - OPTIONS:
        raise TypeError(f"publish_on_commit has no option {sorted(unknown)[0]!r}")
    message = NewMessage(payload, **options)
    _offer(_row(alias, dialect(alias), to_publish(alias, topic), message, message.headers), message)
    hook = propagation.bound(lambda: publish(topic, payload, **options))
    # An error would keep the caller's later hooks from running, after its commit: Django logs it instead.
    transaction.on_commit(hook, using=alias, robust=connections[alias].in_atomic_block)


def _row(
    alias: str, syntax: Dialect, info: TopicInfo, message: NewMessage, headers: Any, reply_kept: float | None = None
) -> LogRow:
    """Return the row of a message. headers: those to store, which may have trace context beside the message's own."""
    kind, version = published_as(info.name)
    body = body_of(info.name, kind, message.payload, message.content_type)
    payload = encode_payload(info.name, kind, message.payload) if body is None else NOTHING
    headers = encode_headers(with_own(headers, version, message.content_type, message.batch, reply_kept))
    row = log_row(syntax, info, message, payload, headers)
    if body is not None or message.expires is not None:
        row = row._replace(body=body, expires=checked_expires(message.expires, message.at))
    check_storable(alias, row, settings.MAX_PAYLOAD_BYTES)
    check_sendable(alias, row)
    return row


def checked_expires(expires: float | timedelta | None, at: datetime | None) -> int | None:
    """Return after how many microseconds a message expires, None for never. Raises InvalidMessage for what is no such
    time, and for a message that would have expired already."""
    if expires is None:
        return None
    left = lifetime(expires)
    if isinstance(at, datetime) and at.utcoffset() is not None:
        ago = (datetime.now(timezone.utc) - at).total_seconds()
        if ago >= left:
            raise InvalidMessage(
                f"the message would have expired {ago - left:g} s ago: expires counts from when it is due, and `at` is "
                "past by more"
            )
    return round(left * 1_000_000)


def _offer(row: LogRow, message: NewMessage) -> Offer:
    choice, unique_for = message.on_conflict, _unique_for(row, message.unique_for)
    if choice is not None:
        if choice not in CHOICES:
            raise InvalidMessage(f"on_conflict must be 'ignore' or 'replace', not {choice!r}")
        if message.id is None and unique_for is None:
            raise InvalidMessage(
                f"on_conflict={choice!r} needs an id, or unique_for: without them no message is the same as another"
            )
    due = Due(row, checked_due(message.delay, message.at), message.at)
    scheduled = due.delay is not None or due.at is not None
    return Offer(due, message.id is not None, choice == "replace", scheduled, unique_for)


def _unique_for(row: LogRow, given: UniqueFor) -> float | None:
    """Return for how many seconds a pending message of its key keeps a message out; None: not at all."""
    if given is False:
        return None
    unique_for: float | None
    if given is not None:
        unique_for = checked_unique_for(given)
    elif settings.names(row.topic):
        unique_for = settings.topic(row.topic).unique_for
    else:
        return None
    if unique_for is not None and not row.key:
        raise InvalidMessage(
            f"unique_for needs a key, of which one message at a time is pending in topic {row.topic!r}: give key=…, or "
            "unique_for=False for a message that others do not keep out"
        )
    return unique_for


def checked_due(delay: float | timedelta | None, at: datetime | None) -> float | None:
    """Return the delay in seconds, None for none. Raises InvalidMessage for an invalid delay or time, and for both."""
    if delay is not None and at is not None:
        raise InvalidMessage("give delay or at, not both")
    if at is not None:
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise InvalidMessage(f"at must be an aware datetime (with a time zone), not {at!r}")
        if not EPOCH <= at <= datetime.now(timezone.utc) + timedelta(seconds=LONGEST_DELAY):
            raise InvalidMessage(f"at must lie between 1970 and ten years from now, not {at!r}")
    return None if delay is None else seconds(delay)
