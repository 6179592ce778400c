"""A topic as publishers see it: messages to it are checked and encoded, as rows of one database; and what publishing
returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal, NamedTuple, get_args

from sqlqueue.conf import settings
from sqlqueue.core import codec
from sqlqueue.core.codec import encode_headers
from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH, checked_name, checked_text, new_id, partition_of
from sqlqueue.core.new_message import NewMessage, OnConflict, checked_unique_for
from sqlqueue.core.settings import PLAIN_ENCODER
from sqlqueue.database.clock import EPOCH
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.limits import check_row
from sqlqueue.database.log import Log
from sqlqueue.exceptions import LONGEST_DELAY, InvalidMessage, lifetime, seconds
from sqlqueue.log.encoding import NOTHING, body_of, encode, encode_payload
from sqlqueue.payloads.topic_types import type_of, version_of
from sqlqueue.payloads.versions import with_own

CHOICES = get_args(OnConflict)
NOTHING_OWN = (1, None, None, None)  # version 1, no content type, none of an app, no reply


class TopicInfo(NamedTuple):
    """The fixed options of a topic. databases: see core.keys.as_stored."""

    name: str
    partitions: int
    priorities: int
    databases: str = ""


class PublishedTopic:
    """What a publisher knows of a topic on one log: its partitions, payload type, version and options.

    reading: the settings that it was made from
    """

    def __init__(self, log: Log, info: TopicInfo):
        self.info, self.reading, self.label = info, settings.reading, log.label
        self._log = log
        self._kind = type_of(info.name)
        self._version = version_of(info.name)
        self._unique_for = settings.topic(info.name).unique_for
        self._most_bytes = settings.MAX_PAYLOAD_BYTES
        self._plain = self._kind is None and settings.JSON_ENCODER == PLAIN_ENCODER

    def row(self, message: NewMessage, headers: Any, reply_kept: float | None = None) -> LogRow:
        """Return a message, checked and encoded.

        headers: those to store, which may have trace context beside the message's own
        reply_kept: for how many seconds the reply to it is stored

        Raises InvalidMessage.
        """
        name, kind, content_type = self.info.name, self._kind, message.content_type
        body = None
        text = codec.encode_plain(message.payload) if self._plain and content_type is None else None
        if text is None:
            body = body_of(name, kind, message.payload, content_type)
            text = encode_payload(name, kind, message.payload) if body is None else NOTHING
        own = (self._version, content_type, message.own, reply_kept)
        if headers is not None or own != NOTHING_OWN:
            headers = with_own(headers, *own)
        row = log_row(self.info, message, text, None if headers is None else encode_headers(headers, encode))
        if body is not None or message.expires is not None:
            row = row._replace(body=body, expires=checked_expires(message.expires, message.at))
        check_row(self._log, row, self._most_bytes)
        named, choice = message.id is not None and not message.fresh, message.on_conflict
        unique_for = self._unique_for
        if message.unique_for is not None:
            unique_for = None if message.unique_for is False else checked_unique_for(message.unique_for)
        if unique_for is not None and not row.key:
            raise InvalidMessage(
                f"unique_for needs a key, of which one message at a time is pending in topic {name!r}: give key=…,"
                " or unique_for=False for a message that others do not keep out"
            )
        if choice is not None and choice not in CHOICES:
            raise InvalidMessage(f"on_conflict must be 'ignore' or 'replace', not {choice!r}")
        if choice is not None and not named and unique_for is None:
            raise InvalidMessage(
                f"on_conflict={choice!r} needs an id, or unique_for: without them no message is the same as another"
            )
        if message.delay is None and message.at is None and not named and unique_for is None:
            return row
        due = checked_due(message.delay, message.at)
        return row._replace(scheduled_for=due, named=named, replace=choice == "replace", unique_for=unique_for)


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


def checked_due(delay: float | timedelta | None, at: datetime | None) -> float | datetime | None:
    """Return in how many seconds, or at which time, a message is due; None: at once. Raises InvalidMessage for an
    invalid delay or time, and for both."""
    if delay is not None and at is not None:
        raise InvalidMessage("give delay or at, not both")
    if at is None:
        return None if delay is None else seconds(delay)
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise InvalidMessage(f"at must be an aware datetime (with a time zone), not {at!r}")
    if not EPOCH <= at <= datetime.now(timezone.utc) + timedelta(seconds=LONGEST_DELAY):
        raise InvalidMessage(f"at must lie between 1970 and ten years from now, not {at!r}")
    return at


Status = Literal["created", "updated", "ignored"]

CREATED: Final = "created"
UPDATED: Final = "updated"
IGNORED: Final = "ignored"
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class Published:
    """What publish returns.

    offset: of the message in the log; None while it is scheduled
    id: of the message, or of the one that kept it out
    status: `created`; `updated`: it has replaced a scheduled one; `ignored`: there was one already, and nothing has
        changed
    database: the alias of its database; "" if there is one log only
    """

    offset: int | None
    id: str
    status: Status
    database: str = ""

    @property
    def created(self) -> bool:
        """Whether the message is a new one."""
        return self.status == CREATED


@dataclass(frozen=True, slots=True)
class PublishedMany:
    """What publish_many returns: the ids and the statuses in the order given (None if the messages came from an
    iterator), and how many of the messages were created, updated and ignored. The id of one that was ignored, or has
    replaced another, is that of the message that is there."""

    ids: list[str] | None
    statuses: list[Status] | None
    created: int
    updated: int
    ignored: int

    @classmethod
    def of(cls, statuses: Sequence[Status] = (), ids: Sequence[str] = ()) -> PublishedMany:
        """Return what publish_many returns for messages with these statuses and ids."""
        return cls(list(ids), list(statuses), *(statuses.count(status) for status in STATUSES))
