"""Reads the delivery status of messages: what every group has done with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from django.db.models import Q

from sqlqueue.core.outcomes import ACKED, DEAD
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT
from sqlqueue.core.slices import slice_of
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Message, Offset, dead_letter_topic

# States beside the outcomes ACKED and DEAD.
UNREAD: Final = "unread"  # the group has not read so far
IN_FLIGHT: Final = "in flight"  # with a handler, or claimed for one
FAILING: Final = "failing"  # waits for its next attempt
WAITING: Final = "waiting"  # postponed, or blocked
OTHER_GROUP: Final = "for another group"

StreamRef = tuple[str, str, int, int]  # topic, group, partition and priority
OrderingQueueRef = tuple[str, str, int, int, str]  # topic, group, partition, priority and key


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """state: UNREAD, IN_FLIGHT, FAILING, WAITING, OTHER_GROUP, ACKED or DEAD; attempts: as far as they are stored;
    due_at: of a waiting message; dead_letter: the offset of the dead letter."""

    group: str
    state: str
    attempts: int = 0
    due_at: datetime | None = None
    error: str = ""
    dead_letter: int | None = None


def statuses(alias: str, message: Message) -> list[DeliveryStatus]:
    """Return a message's status in every registered group of its topic. Nine statements at most."""
    return statuses_of(alias, [message])[message.offset]


def statuses_of(alias: str, messages: Sequence[Message]) -> dict[int, list[DeliveryStatus]]:
    """Return the statuses of several messages, by offset. Nine statements at most, however many messages and
    groups."""
    starts: dict[str, dict[str, int]] = {message.topic: {} for message in messages}
    groups = ConsumerGroup.objects.using(alias).filter(topic__in=starts).order_by("consumer_group")
    for topic, group, start in groups.values_list("topic", "consumer_group", "start"):
        starts[topic][group] = start
    return _statuses(alias, messages, starts)


def status(alias: str, message: Message, group: str) -> DeliveryStatus:
    """Return a message's status in a group. A dead message whose dead letter was replayed or discarded counts as
    acked: the tables no longer tell them apart."""
    groups = ConsumerGroup.objects.using(alias).filter(topic=message.topic, consumer_group=group)
    start = groups.values_list("start", flat=True).first() or 0
    return _statuses(alias, [message], {message.topic: {group: start}})[message.offset][0]


def statuses_since(alias: str, message: Message, starts: dict[str, int]) -> list[DeliveryStatus]:
    """Return a message's status in groups that were read before, with the offsets at which they began. Eight
    statements at most."""
    return _statuses(alias, [message], {message.topic: starts})[message.offset]


class _Looks(NamedTuple):
    """What the tables say of some messages. It is read offset rows first, then ranges, then delivery states: what a
    settle moves behind the position meanwhile is found in a range or a row, and what it takes out of a range has a
    row. But for one that was acked in its handler's transaction: its row goes when the position passes it."""

    offset_rows: dict[StreamRef, list[Offset]]
    ranges: dict[OrderingQueueRef, tuple[int, int]]
    rows: dict[tuple[int, str], DeliveryState]  # by offset and group


def _look(alias: str, messages: Sequence[Message], starts: dict[str, dict[str, int]]) -> _Looks:
    """Three statements; none if there is no message."""
    if not messages:
        return _Looks({}, {}, {})
    streams = _streams(messages, starts)
    offset_rows = _offset_rows(alias, streams)
    keys = [stream & Q(partition_key__in={message.partition_key for message in some}) for stream, some in streams]
    ranges: dict[OrderingQueueRef, tuple[int, int]] = {
        (one.topic, one.consumer_group, one.partition, one.priority, one.partition_key): (one.low, one.high)
        for one in BlockedRange.objects.using(alias).filter(_either(keys))
    }
    offsets = [stream & Q(message_offset__in=[message.offset for message in some]) for stream, some in streams]
    states = DeliveryState.objects.using(alias).filter(_either(offsets))
    return _Looks(offset_rows, ranges, {(row.message_offset, row.consumer_group): row for row in states})


def _offset_rows(alias: str, streams: Sequence[tuple[Q, list[Message]]]) -> dict[StreamRef, list[Offset]]:
    found: dict[StreamRef, list[Offset]] = {}
    for one in Offset.objects.using(alias).filter(_either(stream for stream, _ in streams)):
        found.setdefault((one.topic, one.consumer_group, one.partition, one.priority), []).append(one)
    return found


def _offset_row(offset_rows: dict[StreamRef, list[Offset]], message: Message, group: str) -> Offset | None:
    """Return the offset row of the slice that a message belongs to in a group."""
    rows = offset_rows.get((message.topic, group, message.partition, message.priority), ())
    return next((row for row in rows if row.slice == slice_of(message.offset, row.slices)), None)


def _passed(
    alias: str, messages: Sequence[Message], starts: dict[str, dict[str, int]], looks: _Looks
) -> Sequence[Message]:
    """Return the messages without a row that a position has passed since it was read. One statement; none if every
    message has its rows."""

    def is_above(message: Message, group: str, offset_rows: dict[StreamRef, list[Offset]]) -> bool:
        row = _offset_row(offset_rows, message, group)
        return message.offset > (row.position if row else starts[message.topic][group])

    open_ones = [
        (message, group)
        for message in messages
        for group in starts[message.topic]
        if (message.offset, group) not in looks.rows and is_above(message, group, looks.offset_rows)
    ]
    if not open_ones:
        return ()
    now = _offset_rows(alias, _streams(list({one.offset: one for one, _ in open_ones}.values()), starts))
    return list({one.offset: one for one, group in open_ones if not is_above(one, group, now)}.values())


def _statuses(
    alias: str, messages: Sequence[Message], starts: dict[str, dict[str, int]]
) -> dict[int, list[DeliveryStatus]]:
    """Return the statuses by offset. starts: by topic and group the offset at which the group began."""
    wanted = {
        (message.offset, group)
        for message in messages
        for group in starts[message.topic]
        if message.target_group in ("", group)
    }
    read = [
        message for message in messages if any((message.offset, group) in wanted for group in starts[message.topic])
    ]
    looks = dict.fromkeys((message.offset for message in read), first := _look(alias, read, starts))
    passed = _passed(alias, read, starts, first)
    looks |= dict.fromkeys((message.offset for message in passed), _look(alias, passed, starts))
    undecided = {
        (message.offset, group): _open(message, group, starts[message.topic][group], looks[message.offset])
        for message in read
        for group in starts[message.topic]
        if (message.offset, group) in wanted
    }
    settled = {delivery for delivery, status in undecided.items() if status is None}
    dead = _dead_letters(
        alias, [(one, [g for g in starts[one.topic] if (one.offset, g) in settled]) for one in messages]
    )

    def of(message: Message, group: str) -> DeliveryStatus:
        delivery = message.offset, group
        if delivery not in wanted:
            return DeliveryStatus(group, OTHER_GROUP)
        return undecided[delivery] or settled_as(group, dead.get(delivery))

    return {message.offset: [of(message, group) for group in starts[message.topic]] for message in messages}


def _streams(messages: Sequence[Message], starts: dict[str, dict[str, int]]) -> list[tuple[Q, list[Message]]]:
    """Return, for each topic, partition and priority of the messages, a condition on the groups' tables (whose unique
    keys begin with these columns) and the messages."""
    found: dict[tuple[str, int, int], list[Message]] = {}
    for message in messages:
        found.setdefault((message.topic, message.partition, message.priority), []).append(message)
    return [
        (Q(topic=topic, consumer_group__in=list(starts[topic]), partition=partition, priority=priority), some)
        for (topic, partition, priority), some in found.items()
    ]


def _either(conditions: Iterable[Q]) -> Q:
    return reduce(or_, conditions)


def _open(message: Message, group: str, start: int, looks: _Looks) -> DeliveryStatus | None:
    """Return the status of a message that is not settled; None if it is."""
    stream = message.topic, group, message.partition, message.priority
    offset_row, row = _offset_row(looks.offset_rows, message, group), looks.rows.get((message.offset, group))
    low, high = looks.ranges.get((*stream, message.partition_key), (0, 0))
    if row is not None and not row.acked:
        attempts, error = max(0, row.retry_count), row.last_error or ""
        if row.in_flight != NOT_IN_FLIGHT:
            return DeliveryStatus(group, IN_FLIGHT, attempts, None, error)
        return DeliveryStatus(group, FAILING if attempts else WAITING, attempts, row.invisible_until, error)
    if row is None and message.offset > (offset_row.position if offset_row else start):
        claimed = offset_row is not None and message.offset <= offset_row.claimed_to
        return DeliveryStatus(group, IN_FLIGHT, 1) if claimed else DeliveryStatus(group, UNREAD)
    return DeliveryStatus(group, WAITING) if row is None and low < message.offset <= high else None


def settled_as(group: str, dead_letter: Message | None) -> DeliveryStatus:
    """Return the status of a settled message, of which there is this dead letter."""
    if dead_letter is None:
        return DeliveryStatus(group, ACKED)
    return DeliveryStatus(
        group, DEAD, dead_letter.failure_count, None, dead_letter.last_error or "", dead_letter.offset
    )


def dead_letters_of(alias: str, message: Message, groups: list[str]) -> dict[str, Message]:
    """Return the dead letters of a message in these groups; topic, offset and key of the message are enough."""
    return {group: dead_letter for (_, group), dead_letter in _dead_letters(alias, [(message, groups)]).items()}


def _dead_letters(alias: str, settled: Sequence[tuple[Message, list[str]]]) -> dict[tuple[int, str], Message]:
    """Return the dead letters of messages in these groups, by offset and group; found by their ids, topics and keys."""
    copies = [
        (dead_letter_topic(message.topic), f"{group}:{message.offset}", message.partition_key)
        for message, groups in settled
        for group in groups
    ]
    columns = ("original_offset", "failed_group", "failure_count", "last_error")
    found = Message.objects.using(alias).of_ids(copies, *columns)
    return {(one.original_offset or 0, one.failed_group): one for one in found if one.failed_group}
