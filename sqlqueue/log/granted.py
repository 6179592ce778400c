"""Grants that are taken back in the transaction in which a watermark falls; see grants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sqlqueue.conf import settings
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.models import EpochGrant

_number: ContextVar[int] = ContextVar("sqlqueue_revocation", default=0)


class GrantsLeft(SqlqueueError):
    """A group has begun on another shard what follows, and was not stopped there."""


@contextmanager
def revocation(number: int) -> Iterator[None]:
    """Let the grants that have this number be taken back in this block; 0 for none."""
    token = _number.set(number)
    try:
        yield
    finally:
        _number.reset(token)


def take_back(alias: str, group: str, topic: str) -> None:
    """Take back what this shard has granted to a group, in the caller's transaction, which has locked the topic.

    Raises GrantsLeft unless the other shards have stopped the group, and since then nothing was granted.
    """
    if not settings.sharded:
        return
    rows = EpochGrant.objects.using(alias).filter(topic=topic, consumer_group=group)
    numbers = dict(rows.values_list("id", "revoking"))
    if any(number != _number.get() or not number for number in numbers.values()):
        raise GrantsLeft(f"group {group!r} has begun topic {topic!r} on other shards, and was not stopped there")
    if numbers:
        rows.filter(id__in=list(numbers)).delete()
