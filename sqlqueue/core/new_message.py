"""A message to publish: one value from the call to the row."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from sqlqueue.core.unique_for import UniqueFor

OnConflict = Literal["ignore", "replace"]


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
