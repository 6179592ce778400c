"""Relayed messages: those that a transaction on another database has published, on their way to their own. On their way
they are messages of a topic of their target, with what they are at home in a header."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

from sqlqueue.core.keys import new_id

PREFIX: Final = "sqlqueue.relay."
HEADER: Final = "sqlqueue-relay"
DIGEST: Final = 32  # hexadecimal digits


class Relayed(NamedTuple):
    """What a relayed message is on its own database. due: an ISO time, and delay: seconds from its publish, of one that
    is scheduled; expires: microseconds from its publish, or from when it is due; None for none."""

    topic: str
    id: str
    key: str
    priority: int
    group: str
    due: str | None
    delay: float | None
    expires: int | None


def relay_topic(database: str) -> str:
    """Return the topic of what is relayed to a database."""
    return PREFIX + database


def is_relay_topic(topic: str) -> bool:
    """Tell whether a topic, or that of its dead letters, has relayed messages."""
    return topic.startswith(PREFIX)


def relay_id(topic: str, key: str, id: str) -> str:
    """Return a fresh id for a message on its way: by its beginning it is found."""
    return f"{id_prefix(topic, key, id)}-{new_id()}"


def id_prefix(topic: str, key: str, id: str) -> str:
    """Return what such an id begins with."""
    return hashlib.sha256(f"{topic}\0{key}\0{id}".encode()).hexdigest()[:DIGEST]


def with_relayed(headers: dict[str, Any] | None, relayed: Relayed) -> dict[str, Any]:
    """Return the headers of a message on its way."""
    return {**(headers or {}), HEADER: {name: value for name, value in relayed._asdict().items() if value is not None}}


def without_relayed(headers: dict[str, Any]) -> tuple[Relayed, dict[str, Any] | None]:
    """Return what a message is on its own database, and its headers there."""
    empty = dict.fromkeys(Relayed._fields)
    own = {name: value for name, value in headers.items() if name != HEADER}
    return Relayed(**{**empty, **headers[HEADER]}), own or None
