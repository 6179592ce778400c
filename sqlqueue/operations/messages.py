"""Acknowledges messages on behalf of a group, and deletes messages from the log, whatever their retention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH, checked_name, checked_text
from sqlqueue.database import retries
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import layouts
from sqlqueue.log.collect import delete_free, watermarks
from sqlqueue.log.groups import lock_topic, registered
from sqlqueue.log.placement import worked_on
from sqlqueue.models import Message, Topic
from sqlqueue.operations import reschedule
from sqlqueue.operations.replay_requests import fail_trials
from sqlqueue.operations.topics import deletable_topic
from sqlqueue.stats.group_status import IN_FLIGHT, open_in, registered_groups
from sqlqueue.twins import refuse_in_async

AT_ONCE = 500
READ_AT_ONCE = 5_000  # messages of a partition that one statement passes, in search of a key's
COLUMNS = ("offset", "topic", "partition", "priority", "partition_key", "target_group")


class Unsettled(NamedTuple):
    """Offsets of messages that a group has not settled. waiting: those that wait or were not read; in_flight: those
    that are, or may be, in flight."""

    waiting: set[int]
    in_flight: set[int]


class Deleted(NamedTuple):
    """How many messages were deleted; how many were left because a group has not settled them, and how many because
    they are in flight or another transaction has locked them."""

    deleted: int
    unsettled: int
    in_flight: int


def unsettled(log: Log, topic: str, offsets: Iterable[int]) -> dict[str, Unsettled]:
    """Return, by group, which of these messages it has not settled; groups that have settled all are left out. Five
    statements for each 500 messages, however many groups there are."""
    found: dict[str, Unsettled] = {}
    wanted = sorted(set(offsets))
    for start in range(0, len(wanted), AT_ONCE):
        _add_open(log, _messages(log, topic, wanted[start : start + AT_ONCE]), found)
    return found


def delete(log: Log, topic: str, offsets: Iterable[int], *, also_unsettled: bool = False) -> Deleted:
    """Delete messages of a topic for good; offsets that are not in the log are ignored.

    Without `also_unsettled` only messages are deleted that every group has settled. With it, messages that wait for a
    group, or that it has not read, are first acknowledged on its behalf, so that later messages of their keys go on.
    Messages in flight are left. Receipts and dead letters of deleted messages stay, and their ids can be published
    again.

    Deleting an unread message revokes the lease of its partition: what is in flight there is delivered again.
    Raises ConfigurationError for dead letters: discard those.
    """
    deletable_topic(log, topic)
    wanted = sorted(set(offsets))
    done = Deleted(0, 0, 0)
    for start in range(0, len(wanted), AT_ONCE):
        chosen = wanted[start : start + AT_ONCE]
        if also_unsettled:
            _acknowledge(log, topic, chosen)
        some = retries.run(log, _delete, log, topic, chosen)
        done = Deleted(*(sum(pair) for pair in zip(done, some)))
    return done


def _acknowledge(log: Log, topic: str, offsets: Sequence[int]) -> None:
    """Acknowledge waiting messages, group by group, each group in its own transaction; a replay whose trial is among
    them fails. A message that is in flight in one group is left in all of them."""
    found = unsettled(log, topic, offsets)
    waiting, in_flight = _of_any_group(found)
    fail_trials(log, topic, sorted(waiting - in_flight), "was deleted by an operator")
    for group, its in sorted(found.items()):
        reschedule.acknowledge(log, group, topic, its.waiting - in_flight)


def _delete(log: Log, topic: str, offsets: Sequence[int]) -> Deleted:
    """Delete what is settled, in one transaction that locks the topic: no group is registered or moved meanwhile."""
    lock_topic(log, topic)
    messages = _messages(log, topic, offsets)
    found: dict[str, Unsettled] = {}
    _add_open(log, messages, found)
    waiting, in_flight = _of_any_group(found)
    settled = [message.offset for message in messages if message.offset not in waiting | in_flight]
    deleted = len(delete_free(log, settled))
    return Deleted(deleted, len(waiting - in_flight), len(in_flight) + len(settled) - deleted)


def _messages(log: Log, topic: str, offsets: Sequence[int]) -> list[Message]:
    return list(Message.objects.using(log.alias).filter(offset__in=offsets, topic=topic).only(*COLUMNS))


def _add_open(log: Log, messages: Sequence[Message], found: dict[str, Unsettled]) -> None:
    """Add which of these messages of a topic each group has not settled."""
    groups = registered_groups(log, {message.topic for message in messages})
    for (offset, group), status in open_in(log, messages, groups).items():
        its = found.setdefault(group, Unsettled(set(), set()))
        (its.in_flight if status.state == IN_FLIGHT else its.waiting).add(offset)


def _of_any_group(found: dict[str, Unsettled]) -> Unsettled:
    waiting = {offset for its in found.values() for offset in its.waiting}
    return Unsettled(waiting, {offset for its in found.values() for offset in its.in_flight})


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
        if found := unsettled(log, topic, some).get(group):
            count += len(found.waiting)
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
