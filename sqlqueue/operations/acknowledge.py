"""Acknowledges messages on behalf of a group: by their ids, by their key, or by their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH, checked_name, checked_text
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import layouts
from sqlqueue.log.collect import watermarks
from sqlqueue.log.groups import registered
from sqlqueue.log.placement import worked_on
from sqlqueue.models import Message, Topic
from sqlqueue.operations import reschedule
from sqlqueue.operations.delete import unsettled
from sqlqueue.twins import refuse_in_async

AT_ONCE = 500  # ids of one statement
READ_AT_ONCE = 5_000  # messages of a partition that one statement passes, in search of a key's


def acknowledge(
    topic: str,
    group: str,
    *,
    ids: Iterable[str] | None = None,
    key: str = "",
    offsets: Iterable[int] | None = None,
    database: str = "",
) -> int:
    """Acknowledge messages on behalf of a group, which then never gets them (again); return how many.

    ids: those with these ids, of this key
    key: without ids: all of the key that are in the log
    offsets: those at these offsets
    database: only those on this one

    Messages in flight, settled ones and scheduled ones are left. For a message that the group has not read, or that
    waits behind one of its key, the partition's lease is revoked: what is in flight there is delivered again. Each 500
    are one transaction.

    Raises ConfigurationError for a group that is not registered for the topic, and unless one of the three is given.
    """
    refuse_in_async("acknowledge", "await sync_to_async(acknowledge)(…)")
    chosen = _chosen(topic, group, ids, key, offsets, database)
    return sum(reschedule.acknowledge(log, group, topic, some).changed for log, some in chosen)


def preview(
    topic: str,
    group: str,
    *,
    ids: Iterable[str] | None = None,
    key: str = "",
    offsets: Iterable[int] | None = None,
    database: str = "",
) -> int:
    """Return how many messages acknowledge() would acknowledge; change nothing. Raises the same."""
    count = 0
    for log, some in _chosen(topic, group, ids, key, offsets, database):
        for start in range(0, len(some), AT_ONCE):
            found = unsettled(log, topic, some[start : start + AT_ONCE]).get(group)
            count += len(found.waiting) if found is not None else 0
    return count


def _chosen(
    topic: str, group: str, ids: Iterable[str] | None, key: str, offsets: Iterable[int] | None, database: str
) -> Iterator[tuple[Log, Sequence[int]]]:
    """Yield the offsets of the messages that are meant, a bounded number at a time, each time with their log."""
    if isinstance(ids, str):
        raise ConfigurationError("ids must be several, not a text: write ids=[id]")
    if offsets is not None and (ids is not None or key):
        raise ConfigurationError("offsets name the messages by themselves: leave ids and key out")
    if offsets is None and ids is None and not key:
        raise ConfigurationError("say which messages: by ids (with their key), by their key alone, or by their offsets")
    checked_name(group, "group", GROUP_LENGTH)
    checked_text(key, "key", KEY_LENGTH)
    wanted = None if offsets is None else sorted(set(offsets))
    named = None if ids is None else sorted({checked_text(id, "id", ID_LENGTH) for id in ids})
    known = [log for log in worked_on(topic, database, wanted) if (group, topic) in registered(log, [topic])]
    if not known:
        raise ConfigurationError(f"there is no group {group!r} in topic {topic!r}")
    for log in known:
        if wanted is not None:
            yield log, wanted
        elif named is None:
            yield from ((log, some) for some in _of_key(log, topic, group, key))
        else:
            for start in range(0, len(named), AT_ONCE):  # index: the messages' unique key
                some = [(topic, id, key) for id in named[start : start + AT_ONCE]]
                yield log, [message.offset for message in Message.objects.using(log.alias).of_ids(some)]


def _of_key(log: Log, topic: str, group: str, key: str) -> Iterator[Sequence[int]]:
    """Yield the offsets of a key's messages above the group's watermark: below, it has settled all. Index: (topic,
    partition, priority, offset)."""
    last = highest_offset(log)
    priorities = Topic.objects.using(log.alias).values_list("priorities", flat=True).get(name=topic)
    partitions = sorted({epoch.partition_of(key) for epoch in layouts.epochs(log, topic)})
    streams = list(product(partitions, range(priorities)))
    acked = watermarks(log, topic, streams).get(group, {})
    for partition, priority in streams:
        beyond, found = acked.get((partition, priority), 0), True
        rows = Message.objects.using(log.alias).filter(topic=topic, partition=partition, priority=priority)
        rows = rows.filter(offset__lte=last).order_by("offset")
        while found:
            some = list(rows.filter(offset__gt=beyond).values_list("offset", "partition_key")[:READ_AT_ONCE])
            found = len(some) == READ_AT_ONCE
            beyond = some[-1][0] if some else beyond
            if mine := [offset for offset, of in some if of == key]:
                yield mine
