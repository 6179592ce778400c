"""Where tasks are: the shard of each one's message has its state, too."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.core.keys import new_id
from sqlqueue.core.shards import shard_of
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.placement import open_shards, placement
from sqlqueue.models import TaskState


def chosen(topic: str) -> str:
    """Return the alias that a new task goes to: that of the open transaction's shard, or any of its topic's.

    Raises InvalidMessage if transactions are open, and none on a shard of the topic.
    """
    if not settings.sharded:
        return settings.home
    placed, opened = placement(topic), open_shards()
    if not opened:
        return settings.shards[shard_of(new_id(), placed.shards)]
    shard = next((name for name in opened if name in placed.shards), None)
    if shard is None:
        raise InvalidMessage(
            f"the tasks of topic {topic!r} are on shard {', '.join(map(repr, placed.shards))}, and the open transaction"
            f" is on shard {opened[0]!r}: they would not commit together. Enqueue it with"
            " transaction.on_commit(…, using=…)"
        )
    return settings.shards[shard]


def id_at(alias: str) -> str:
    """Return a new task's id. With several shards it tells which one the task is on."""
    if not settings.sharded:
        return new_id()
    shard = settings.shard_name(alias)
    while True:
        id = new_id()
        if shard_of(id, list(settings.shards)) == shard:
            return id


def stored(id: str) -> TaskState | None:
    """Return the state of a task, None if there is none. Raises the database's error if a shard that may have it does
    not answer."""
    gone: Error | None = None
    for alias in _likely(id):
        try:
            state = TaskState.objects.using(alias).filter(pk=id).first()
        except Error as error:
            if retries.classify(error) is not ErrorKind.GONE or connections[alias].in_atomic_block:
                raise
            retries.drop_connection(alias)
            gone = error
            continue
        if state is not None:
            return state
    if gone is not None:
        raise gone
    return None


def _likely(id: str) -> Iterator[str]:
    """Yield the aliases of all shards, first the one that a new id tells; SHARDS may have been others then."""
    if not settings.sharded:
        yield settings.home
        return
    first = shard_of(id, list(settings.shards))
    yield settings.shards[first]
    yield from (alias for name, alias in settings.shards.items() if name != first)
