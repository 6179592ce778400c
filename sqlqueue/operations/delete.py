"""Deletes single messages from the log, whatever their retention."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.collect import delete_free
from sqlqueue.log.groups import lock_topic
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Message, Offset, Topic
from sqlqueue.operations.replay_requests import fail_trials
from sqlqueue.operations.reschedule import acknowledge

AT_ONCE = 500
COLUMNS = ("offset", "topic", "partition", "priority", "partition_key", "target_group")


class Unsettled(NamedTuple):
    """Offsets of messages that a group has not settled. waiting: those that wait or were not read; in_flight: those
    that are, or may be, in flight."""

    waiting: set[int]
    in_flight: set[int]


@dataclass(slots=True)
class GroupStates:
    """What the tables say of a topic's groups. starts: the offset at which each group began; claims: (position,
    claim) by group, partition and priority; ranges: (low, high) by group, partition, priority and key; rows: (acked,
    in_flight) by group and offset."""

    starts: dict[str, int]
    claims: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    ranges: dict[tuple[str, int, int, str], tuple[int, int]] = field(default_factory=dict)
    rows: dict[tuple[str, int], tuple[bool, int]] = field(default_factory=dict)

    def of(self, group: str, messages: Iterable[Message]) -> Unsettled:
        """Return which of these messages a group has not settled."""
        found = Unsettled(set(), set())
        for one in messages:
            if one.target_group not in ("", group):
                continue
            offset, stream = one.offset, (group, one.partition, one.priority)
            position, claimed = self.claims.get(stream, (self.starts[group],) * 2)
            low, high = self.ranges.get((*stream, one.partition_key), (0, 0))
            acked, mark = self.rows.get((group, offset), (None, NOT_IN_FLIGHT))
            if acked is not None:
                if not acked:
                    (found.waiting if mark == NOT_IN_FLIGHT else found.in_flight).add(offset)
            elif offset > claimed or low < offset <= high:
                found.waiting.add(offset)
            elif offset > position:
                found.in_flight.add(offset)
        return found


class Deleted(NamedTuple):
    """How many messages were deleted; how many were left because a group has not settled them, and how many because
    they are in flight or another transaction has locked them."""

    deleted: int
    unsettled: int
    in_flight: int


def check_deletable(log: Log, topic: str) -> None:
    """Raise ConfigurationError for a topic that is not there, or has dead letters."""
    if topic.endswith(DEAD_LETTER_SUFFIX):
        raise ConfigurationError(f"topic {topic!r} has dead letters: discard those, which asks for a reason")
    if not Topic.objects.using(log.alias).filter(name=topic).exists():
        raise ConfigurationError(f"there is no topic {topic!r}")


def unsettled(log: Log, topic: str, offsets: Iterable[int]) -> dict[str, Unsettled]:
    """Return, by group, which of these messages it has not settled; groups that have settled all are left out. Five
    statements for each 500 messages, however many groups there are."""
    found: dict[str, Unsettled] = {}
    wanted = sorted(set(offsets))
    for start in range(0, len(wanted), AT_ONCE):
        messages = _messages(log, topic, wanted[start : start + AT_ONCE])
        for group, its in _open(log, topic, messages).items():
            so_far = found.setdefault(group, Unsettled(set(), set()))
            so_far.waiting.update(its.waiting)
            so_far.in_flight.update(its.in_flight)
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
    check_deletable(log, topic)
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
    in_flight = _all_of(found, "in_flight")
    fail_trials(log, topic, sorted(_all_of(found, "waiting") - in_flight), "was deleted by an operator")
    for group, its in sorted(found.items()):
        acknowledge(log, group, topic, its.waiting - in_flight)


def _delete(log: Log, topic: str, offsets: Sequence[int]) -> Deleted:
    """Delete what is settled, in one transaction that locks the topic: no group is registered or moved meanwhile."""
    lock_topic(log, topic)
    messages = _messages(log, topic, offsets)
    found = _open(log, topic, messages)
    waiting, in_flight = _all_of(found, "waiting"), _all_of(found, "in_flight")
    settled = [message.offset for message in messages if message.offset not in waiting | in_flight]
    deleted = len(delete_free(log, settled))
    return Deleted(deleted, len(waiting - in_flight), len(in_flight) + len(settled) - deleted)


def _messages(log: Log, topic: str, offsets: Sequence[int]) -> list[Message]:
    return list(Message.objects.using(log.alias).filter(offset__in=offsets, topic=topic).only(*COLUMNS))


def _all_of(found: dict[str, Unsettled], kind: str) -> set[int]:
    return {offset for its in found.values() for offset in getattr(its, kind)}


def _open(log: Log, topic: str, messages: Collection[Message]) -> dict[str, Unsettled]:
    """Return by group which of these messages it has not settled; groups that have settled all are left out. The tables
    are read in the order of stats.group_status: what moves from one to the next meanwhile is found there."""
    groups = list(ConsumerGroup.objects.using(log.alias).filter(topic=topic))
    starts = {one.consumer_group: one.start for one in groups}
    if not messages or not starts:
        return {}
    offsets, keys = {one.offset for one in messages}, {one.partition_key for one in messages}
    streams = {
        "topic": topic,
        "consumer_group__in": list(starts),
        "partition__in": {one.partition for one in messages},
        "priority__in": {one.priority for one in messages},
    }
    names = ("consumer_group", "partition", "priority")
    known = GroupStates(starts)
    offset_rows = Offset.objects.using(log.alias).filter(**streams)
    columns = (*names, "position", "claimed_to")
    for group, partition, priority, position, claimed in offset_rows.values_list(*columns):
        known.claims[group, partition, priority] = (position, max(position, claimed))
    ranges = BlockedRange.objects.using(log.alias).filter(**streams).covering(offsets, *keys)
    for group, partition, priority, key, low, high in ranges.values_list(*names, "partition_key", "low", "high"):
        known.ranges[group, partition, priority, key] = (low, high)
    states = DeliveryState.objects.using(log.alias).filter(**streams, message_offset__in=offsets)
    for group, offset, acked, mark in states.values_list("consumer_group", "message_offset", "acked", "in_flight"):
        known.rows[group, offset] = (acked, mark)
    found = {group: known.of(group, messages) for group in starts}
    return {group: its for group, its in found.items() if its.waiting or its.in_flight}
