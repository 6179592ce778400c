"""Membership of batches: the header by which a message belongs to one, and the counts of an assigned partition."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from sqlqueue.core.codec import decode

HEADER: Final = "sqlqueue-batch"


class Member(NamedTuple):
    """A message that belongs to a batch. dead: it has become a dead letter."""

    batch: str
    dead: bool = False


def batch_of(headers: Any) -> str:
    """Return the id of the batch that a message belongs to, by its headers as the database gave them; "" for none."""
    member = member_of(headers)
    return "" if member is None else member.batch


def member_of(headers: Any) -> Member | None:
    """Return the message as a member of its batch, None if it belongs to none."""
    if not headers or HEADER not in headers:
        return None
    return _member_of(headers) if isinstance(headers, str) else _member(_named(headers))


@lru_cache(maxsize=256)  # most members of a batch have the same headers
def _member_of(headers: str) -> Member | None:
    return _member(_named(headers))


def _member(batch: str) -> Member | None:
    return Member(batch) if batch else None


def _named(headers: Any) -> str:
    try:
        found = decode(headers)
    except (ValueError, RecursionError):  # of plain SQL
        return ""
    batch = found.get(HEADER) if isinstance(found, dict) else None
    return batch if isinstance(batch, str) else ""
