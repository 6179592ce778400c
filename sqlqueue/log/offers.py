"""Offers: messages to publish, checked and encoded, as rows of one database."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, get_args

from sqlqueue.conf import settings
from sqlqueue.core.keys import KEY_LENGTH, new_id, partition_of
from sqlqueue.core.new_message import NewMessage, OnConflict
from sqlqueue.core.unique_for import checked_unique_for
from sqlqueue.database.clock import EPOCH
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.limits import check_row, is_light
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import Due
from sqlqueue.database.validation import TopicInfo, log_row
from sqlqueue.exceptions import LONGEST_DELAY, InvalidMessage, lifetime, seconds
from sqlqueue.log.conflicts import Offer
from sqlqueue.log.encoding import NOTHING, body_of, encode, encode_headers, encode_payload
from sqlqueue.payloads.topic_types import published_as
from sqlqueue.payloads.versions import with_own

CHOICES = get_args(OnConflict)
BYTES = (bytes, bytearray, memoryview)

_makers: dict[tuple[Log, str], OfferMaker] = {}


def offer_maker(log: Log, info: TopicInfo) -> OfferMaker:
    """Return what makes offers to a topic; it is remembered, until the settings are read again, or the topic."""
    found = _makers.get((log, info.name))
    if found is None or found.info is not info or found.reading is not settings.reading:
        found = _makers[log, info.name] = OfferMaker(log, info)
    return found


class OfferMaker:
    """Makes offers of the messages to one topic: what holds for all of them is looked up once."""

    def __init__(self, log: Log, info: TopicInfo):
        self.info, self.reading = info, settings.reading
        self._log, self._dialect = log, log.dialect
        self._kind, self._version = published_as(info.name)
        self._unique_for = settings.topic(info.name).unique_for if settings.names(info.name) else None
        self._most_bytes = settings.MAX_PAYLOAD_BYTES
        self._untyped = self._kind is None and self._version == 1 and self._unique_for is None

    def plain_row(self, message: NewMessage, headers: Any) -> LogRow | None:
        """Return the row of a message of JSON with no more than a key, which just enters the log. None for every other
        one, and for one that might be refused: its offer says. Raises InvalidMessage for a payload that is not JSON."""
        key, payload = message.key, message.payload
        if not (
            self._untyped
            and headers is None
            and message.id is None
            and message.delay is None
            and message.at is None
            and message.unique_for is None
            and message.on_conflict is None
            and message.expires is None
            and message.content_type is None
            and message.batch is None
            and message.group == ""
            and message.priority == 0
            and type(key) is str
            and len(key) <= KEY_LENGTH
            and key.isascii()
            and "\0" not in key
            and not isinstance(payload, BYTES)
        ):
            return None
        text = encode(payload)
        if "\\u" in text or not is_light(text, self._most_bytes):
            return None
        id = new_id()
        partition = partition_of(key or id, self.info.partitions)
        return LogRow(self.info.name, partition, 0, key, id, text, None, "")

    def offer(self, message: NewMessage, headers: Any, reply_kept: float | None = None) -> Offer:
        """Return a message, checked and encoded. headers: those to store, which may have trace context beside the
        message's own; reply_kept: for how many seconds the reply to it is stored. Raises InvalidMessage."""
        row = self._row(message, headers, reply_kept)
        unique_for = self._unique_for
        if message.unique_for is not None:
            unique_for = None if message.unique_for is False else checked_unique_for(message.unique_for)
        if unique_for is not None and not row.key:
            raise InvalidMessage(
                f"unique_for needs a key, of which one message at a time is pending in topic {row.topic!r}: give key=…,"
                " or unique_for=False for a message that others do not keep out"
            )
        named, choice = message.id is not None and not message.fresh, message.on_conflict
        if choice is not None:
            if choice not in CHOICES:
                raise InvalidMessage(f"on_conflict must be 'ignore' or 'replace', not {choice!r}")
            if not named and unique_for is None:
                raise InvalidMessage(
                    f"on_conflict={choice!r} needs an id, or unique_for: without them no message is the same as another"
                )
        delay, at = message.delay, message.at
        scheduled = delay is not None or at is not None
        due = Due(row, checked_due(delay, at), at) if scheduled else Due(row, None, None)
        return Offer(due, named, choice == "replace", scheduled, unique_for)

    def _row(self, message: NewMessage, headers: Any, reply_kept: float | None) -> LogRow:
        name, kind, content_type = self.info.name, self._kind, message.content_type
        body = body_of(name, kind, message.payload, content_type)
        payload = encode_payload(name, kind, message.payload) if body is None else NOTHING
        headers = with_own(headers, self._version, content_type, message.batch, reply_kept)
        text = None if headers is None else encode_headers(headers)
        row = log_row(self._dialect, self.info, message, payload, text)
        if body is not None or message.expires is not None:
            row = row._replace(body=body, expires=checked_expires(message.expires, message.at))
        check_row(self._log, row, self._most_bytes)
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
