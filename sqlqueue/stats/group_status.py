"""What each group has done with messages, as the groups' tables and dead letters tell it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from django.db.models import Q

from sqlqueue.core.flow import NO_FLOW, Flow, in_effect
from sqlqueue.core.outcomes import ACKED, DEAD, REPLAYED, TOO_LATE
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT
from sqlqueue.database.log import Log
from sqlqueue.log.results import Progress
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Message, Offset, dead_letter_topic

RELAYED: Final = "relayed"  # it is on its way from another database
SCHEDULED: Final = "scheduled"  # it is not in the log yet
WAITING: Final = "waiting"  # for its turn, or postponed before its first attempt
LIMITED: Final = "limited"  # a limit of its key holds it back
IN_FLIGHT: Final = "in_flight"  # with a handler, or claimed for one
RETRYING: Final = "retrying"  # an attempt has failed, and there will be another
EXPIRED: Final = "expired"  # a dead letter that was too late for its handler
# REPLAYED: its dead letter was published anew, as a copy for this group

FINISHED: Final = frozenset({ACKED, DEAD, EXPIRED})
STATES: Final = (RELAYED, SCHEDULED, WAITING, LIMITED, IN_FLIGHT, RETRYING, ACKED, DEAD, EXPIRED, REPLAYED)

StreamRef = tuple[str, str, int, int]  # topic, group, partition and priority
OrderingQueueRef = tuple[str, str, int, int, str]  # topic, group, partition, priority and key


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How a message stands in one group.

    state: relayed, scheduled, waiting, limited, in_flight, retrying, acked, dead, expired or replayed
    attempts: how many were charged; None where that is not stored
    result: what the handler returned, if its consumer keeps results
    error: of the last failed attempt, "" for none
    progress: what the handler that has it now has said last
    next_attempt_at: of a message that waits for a time
    started_at, finished_at: of the attempt that has settled it, as far as they are stored
    dead_letter: the dead letter's offset
    replayed_as: the (id, key) of the message as which its dead letter was replayed
    copy_state: the last such message's state in this group; "acked" once it was collected
    """

    group: str
    state: str
    attempts: int | None = 0
    result: Any = None
    error: str = ""
    progress: Progress | None = None
    next_attempt_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    dead_letter: int | None = None
    replayed_as: tuple[str, str] | None = None
    copy_state: str = ""

    @property
    def finished(self) -> bool:
        """Whether this group is done with it: it is acked, dead or expired, or it was replayed and the copy is so."""
        return (self.copy_state if self.state == REPLAYED else self.state) in FINISHED


class Registered(NamedTuple):
    """A registered group: the offset at which it began, and the limits in effect."""

    start: int
    flow: Flow


Groups = dict[str, dict[str, Registered]]  # by topic and name


def registered_groups(log: Log, topics: Iterable[str], **named: str) -> Groups:
    """Return the registered groups of these topics, in the order of their names. One statement. named: further
    conditions on their rows."""
    found: Groups = {topic: {} for topic in topics}
    rows = ConsumerGroup.objects.using(log.alias).filter(topic__in=found, **named).order_by("consumer_group")
    columns = ("topic", "consumer_group", "start", "flow", "flow_overrides")
    for topic, group, start, declared, overrides in rows.values_list(*columns):
        found[topic][group] = Registered(start, in_effect(declared, overrides))
    return found


def statuses_of(log: Log, messages: Sequence[Message]) -> dict[int, list[GroupStatus]]:
    """Return by offset how messages stand in each registered group that gets them, as statuses_in does. Nine
    statements at most, however many messages and groups."""
    return statuses_in(log, messages, registered_groups(log, {message.topic for message in messages}))


def status(log: Log, message: Message, group: str) -> GroupStatus:
    """Return how a message that is for this group stands in it, as statuses_in does."""
    groups = registered_groups(log, [message.topic], consumer_group=group)
    groups[message.topic].setdefault(group, Registered(0, NO_FLOW))
    return statuses_in(log, [message], groups)[message.offset][0]


def statuses_in(log: Log, messages: Sequence[Message], groups: Groups) -> dict[int, list[GroupStatus]]:
    """Return by offset how messages in the log stand in those of these groups that get them. Eight statements at most.

    A dead message whose dead letter was replayed or discarded counts as acked: these tables do not tell them apart.
    """
    found = open_in(log, messages, groups, repeats=True)
    receivers = {message.offset: _receivers(message, groups) for message in messages}
    settled = [(one, [g for g in receivers[one.offset] if (one.offset, g) not in found]) for one in messages]
    dead = dead_letters(log, settled)
    return {
        offset: [found.get((offset, group)) or settled_as(group, dead.get((offset, group))) for group in names]
        for offset, names in receivers.items()
    }


def open_in(
    log: Log, messages: Sequence[Message], groups: Groups, repeats: bool = False
) -> dict[tuple[int, str], GroupStatus]:
    """Return by offset and group how messages stand in those of these groups that get them and have not settled them.
    Three statements; repeats: four more for those that a position passes meanwhile, which else count as open."""
    read = [message for message in messages if _receivers(message, groups)]
    looks = dict.fromkeys((message.offset for message in read), first := _look(log, read, groups))
    passed = _passed(log, read, groups, first) if repeats else ()
    looks |= dict.fromkeys((message.offset for message in passed), _look(log, passed, groups))
    return {
        (message.offset, group): status
        for message in read
        for group in _receivers(message, groups)
        if (status := _open(message, group, groups[message.topic][group], looks[message.offset])) is not None
    }


def _receivers(message: Message, groups: Groups) -> list[str]:
    return [group for group in groups[message.topic] if message.target_group in ("", group)]


class _Looks(NamedTuple):
    """What the tables say of some messages. It is read offset rows first, then ranges, then delivery states: what a
    settle moves behind the position meanwhile is found in a range or a row, and what it takes out of a range has a
    row. But for one that was acked in its handler's transaction: its row goes when the position passes it."""

    offset_rows: dict[StreamRef, Offset]
    ranges: dict[OrderingQueueRef, tuple[int, int]]
    rows: dict[tuple[int, str], DeliveryState]  # by offset and group


def _look(log: Log, messages: Sequence[Message], groups: Groups) -> _Looks:
    """Three statements; none if there is no message."""
    if not messages:
        return _Looks({}, {}, {})
    streams = _streams(messages, groups)
    offset_rows = _offset_rows(log, streams)
    keys = [stream & Q(partition_key__in={message.partition_key for message in some}) for stream, some in streams]
    ranges: dict[OrderingQueueRef, tuple[int, int]] = {
        (one.topic, one.consumer_group, one.partition, one.priority, one.partition_key): (one.low, one.high)
        for one in BlockedRange.objects.using(log.alias).filter(_either(keys))
    }
    offsets = [stream & Q(message_offset__in=[message.offset for message in some]) for stream, some in streams]
    states = DeliveryState.objects.using(log.alias).filter(_either(offsets))
    return _Looks(offset_rows, ranges, {(row.message_offset, row.consumer_group): row for row in states})


def _offset_rows(log: Log, streams: Sequence[tuple[Q, list[Message]]]) -> dict[StreamRef, Offset]:
    rows = Offset.objects.using(log.alias).filter(_either(stream for stream, _ in streams))
    return {(one.topic, one.consumer_group, one.partition, one.priority): one for one in rows}


def _offset_row(offset_rows: dict[StreamRef, Offset], message: Message, group: str) -> Offset | None:
    """Return a group's offset row of the partition and priority of a message."""
    return offset_rows.get((message.topic, group, message.partition, message.priority))


def _passed(log: Log, messages: Sequence[Message], groups: Groups, looks: _Looks) -> Sequence[Message]:
    """Return the messages without a row that a position has passed since it was read. One statement; none if every
    message has its rows."""

    def is_above(message: Message, group: str, offset_rows: dict[StreamRef, Offset]) -> bool:
        row = _offset_row(offset_rows, message, group)
        return message.offset > (row.position if row else groups[message.topic][group].start)

    open_ones = [
        (message, group)
        for message in messages
        for group in groups[message.topic]
        if (message.offset, group) not in looks.rows and is_above(message, group, looks.offset_rows)
    ]
    if not open_ones:
        return ()
    now = _offset_rows(log, _streams(list({one.offset: one for one, _ in open_ones}.values()), groups))
    return list({one.offset: one for one, group in open_ones if not is_above(one, group, now)}.values())


def _streams(messages: Sequence[Message], groups: Groups) -> list[tuple[Q, list[Message]]]:
    """Return, for each topic, partition and priority of the messages, a condition on the groups' tables (whose unique
    keys begin with these columns) and the messages."""
    found: dict[tuple[str, int, int], list[Message]] = {}
    for message in messages:
        found.setdefault((message.topic, message.partition, message.priority), []).append(message)
    return [
        (Q(topic=topic, consumer_group__in=list(groups[topic]), partition=partition, priority=priority), some)
        for (topic, partition, priority), some in found.items()
    ]


def _either(conditions: Iterable[Q]) -> Q:
    return reduce(or_, conditions)


def _open(message: Message, group: str, registered: Registered, looks: _Looks) -> GroupStatus | None:
    """Return the status of a message that is not settled; None if it is."""
    stream = message.topic, group, message.partition, message.priority
    offset_row, row = _offset_row(looks.offset_rows, message, group), looks.rows.get((message.offset, group))
    low, high = looks.ranges.get((*stream, message.partition_key), (0, 0))
    flow = registered.flow
    if row is not None and not row.acked:
        attempts, error = max(0, row.retry_count), row.last_error or ""
        if row.in_flight != NOT_IN_FLIGHT:
            return GroupStatus(group, IN_FLIGHT, attempts, error=error)
        state = RETRYING if attempts else _waiting(flow.rate_per_key)
        return GroupStatus(group, state, attempts, error=error, next_attempt_at=row.invisible_until)
    if row is None and low < message.offset <= high:
        return GroupStatus(group, _waiting(flow.concurrency_per_key))
    if row is None and message.offset > (offset_row.position if offset_row else registered.start):
        claimed = offset_row is not None and message.offset <= offset_row.claimed_to
        return GroupStatus(group, IN_FLIGHT, 1) if claimed else GroupStatus(group, WAITING)
    return None


def _waiting(limit: object) -> str:
    """Return the state of a waiting message that this limit of its key would hold back: with a rate it has a row and a
    time, as one that was postponed has; with a concurrency it is in the blocked range of its key."""
    return WAITING if limit is None else LIMITED


def settled_as(group: str, dead_letter: Message | None) -> GroupStatus:
    """Return the status of a settled message, of which there is this dead letter."""
    if dead_letter is None:
        return GroupStatus(group, ACKED, None)
    error = dead_letter.last_error or ""
    ended = GroupStatus(group, ended_as(DEAD, error), dead_letter.failure_count, error=error)
    return replace(ended, dead_letter=dead_letter.offset)


def ended_as(outcome: str, error: str = "") -> str:
    """Return the state of a message that was settled with this outcome and error."""
    if outcome == ACKED:
        return ACKED
    return EXPIRED if error == TOO_LATE else DEAD


def dead_letters(log: Log, settled: Sequence[tuple[Message, list[str]]]) -> dict[tuple[int, str], Message]:
    """Return the dead letters of messages in these groups, by offset and group. Of a message the topic, offset and key
    are enough: they are found by their ids, topics and keys."""
    copies = [
        (dead_letter_topic(message.topic), f"{group}:{message.offset}", message.partition_key)
        for message, groups in settled
        for group in groups
    ]
    columns = ("original_offset", "failed_group", "failure_count", "last_error")
    found = Message.objects.using(log.alias).of_ids(copies, *columns)
    return {(one.original_offset or 0, one.failed_group): one for one in found if one.failed_group}
