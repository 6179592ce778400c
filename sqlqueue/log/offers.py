"""Offers: messages to publish, checked and encoded, as rows of one database."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, get_args

from sqlqueue.conf import settings
from sqlqueue.core.new_message import NewMessage, OnConflict
from sqlqueue.core.unique_for import UniqueFor, checked_unique_for
from sqlqueue.database.clock import EPOCH
from sqlqueue.database.dialects import Dialect
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.limits import check_sendable, check_storable
from sqlqueue.database.scheduling import Due
from sqlqueue.database.validation import TopicInfo, log_row
from sqlqueue.exceptions import LONGEST_DELAY, InvalidMessage, lifetime, seconds
from sqlqueue.log.conflicts import Offer
from sqlqueue.log.encoding import NOTHING, body_of, encode_headers, encode_payload
from sqlqueue.payloads.topic_types import published_as
from sqlqueue.payloads.versions import with_own

CHOICES = get_args(OnConflict)


def row_of(
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


def offer_of(row: LogRow, message: NewMessage) -> Offer:
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
