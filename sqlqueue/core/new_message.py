"""A message to publish: one value from the call to the row; what `unique_for` may be, and the header by which a caller
asks for a reply."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict

from sqlqueue.core.codec import as_text, decode
from sqlqueue.exceptions import LONGEST_DELAY, SHORTEST_LIFE, InvalidMessage, seconds

OnConflict = Literal["ignore", "replace"]
KEY: Final = "key"  # as long as a message of the topic and key is pending
REPLY = "sqlqueue-reply"  # for how many seconds what comes of the message is stored, for its caller
QUOTED = f'"{REPLY}"'


class PublishOptions(TypedDict, total=False):
    """What publish takes beside the topic and the payload, for type checkers."""

    key: str
    id: str | None
    headers: dict[str, Any] | None
    priority: int
    delay: float | timedelta | None
    at: datetime | None
    group: str
    on_conflict: OnConflict | None
    content_type: str | None
    expires: float | timedelta | None
    unique_for: UniqueFor


class NewMessage:
    """A message for publish_many: payload, and optionally what publish takes."""

    __slots__ = (
        "at",
        "content_type",
        "delay",
        "expires",
        "fresh",
        "group",
        "headers",
        "id",
        "key",
        "on_conflict",
        "own",
        "payload",
        "priority",
        "unique_for",
    )

    def __init__(
        self,
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
    ):
        self.payload, self.key, self.id, self.headers, self.priority = payload, key, id, headers, priority
        self.delay, self.at, self.group, self.on_conflict = delay, at, group, on_conflict
        self.content_type, self.expires, self.unique_for = content_type, expires, unique_for
        self.own: dict[str, Any] | None = None  # headers of the app that publishes it
        self.fresh = False  # set where its id was made for it: no other message has that

    def __repr__(self) -> str:
        return f"NewMessage({self.payload!r}, key={self.key!r}, id={self.id!r})"


OPTIONS = frozenset(PublishOptions.__annotations__)


UniqueFor = Literal["key", False] | float | timedelta | None


def checked_unique_for(value: Any) -> float:
    """Return for how many seconds a pending message keeps others of its key out, infinity for as long as it is pending.

    Raises InvalidMessage for what is neither "key" nor a duration of a millisecond to ten years.
    """
    if isinstance(value, str) and value == KEY:
        return math.inf
    if isinstance(value, (str, bool)):
        raise InvalidMessage(
            f"unique_for must be 'key', seconds or a timedelta (and in a publish False for not at all), not {value!r}"
        )
    number = seconds(value, "unique_for")
    if number < SHORTEST_LIFE:
        raise InvalidMessage(
            f"unique_for must be at least a millisecond, not {value!r}: unique_for=False for not at all"
        )
    return number


def reply_kept(headers: Any) -> float | None:
    """Return for how many seconds the reply to a message with these headers, as the database gave them, is stored; None
    if nothing asks for one. What plain SQL may have stored there, and is no positive number, asks for none."""
    if not headers:
        return None
    text = as_text(headers)
    if text is None or QUOTED not in text:
        return None
    stored = decode(text)
    kept = stored.get(REPLY) if isinstance(stored, dict) else None
    wanted = isinstance(kept, (int, float)) and not isinstance(kept, bool) and 0 < kept <= 2 * LONGEST_DELAY
    return float(kept) if wanted and kept is not None else None
