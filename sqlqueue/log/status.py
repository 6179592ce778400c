"""What a group has left to do, read from the tables; when what is delayed is due; and where the log stood at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db import models
from django.db.models import Exists, Max, Min, OuterRef

from sqlqueue.core.keys import Epoch, numbers_of, startable
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.database.clock import moment
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.log.fetch import beyond
from sqlqueue.log.groups import registered
from sqlqueue.log.layouts import unfinished
from sqlqueue.models import ConsumerGroup, Message, Offset, ScheduledMessage, Topic

# The partitions in which something is in flight or due, or blocked without a delayed delivery before it. In one
# statement, since messages go from the latter state to the former. Index: the states' unique key; the ranges'.
UNSETTLED = """
    SELECT s."partition" FROM sqlqueue_delivery_state s WHERE s.topic = %s AND s.consumer_group = %s
    AND s.acked = {false} AND (s.in_flight <> 0 OR (s.invisible_until <= {now}{behind_none}))
    UNION SELECT r."partition" FROM sqlqueue_blocked_range r WHERE r.topic = %s AND r.consumer_group = %s
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = r.topic
    AND s.consumer_group = r.consumer_group AND s."partition" = r."partition" AND s.acked = {false})
"""
# A message that was released because an earlier one of its ordering queue is delayed is due by its own row, and waits
# all the same.
BEHIND_NONE = """
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state w{messages} WHERE w.topic = s.topic
    AND w.consumer_group = s.consumer_group AND w."partition" = s."partition" AND w.priority = s.priority
    AND w.message_offset < s.message_offset AND w.acked = {false} AND w.in_flight = 0
    AND w.invisible_until > {now}{of_a_queue})
"""
MESSAGES = """
    JOIN sqlqueue_message wm ON wm."offset" = w.message_offset
    JOIN sqlqueue_message sm ON sm."offset" = s.message_offset
"""
OF_A_KEY = " AND wm.partition_key = sm.partition_key AND sm.partition_key <> ''"
ORDERING_QUEUES = {"key": (MESSAGES, OF_A_KEY), "partition": ("", "")}  # by ordering; with "none" there are none
# The partitions in which a delivery is delayed. Index: the states' unique key.
WAITING = """
    SELECT DISTINCT "partition", priority FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND acked = {false} AND in_flight = 0 AND invisible_until > {now}
"""


def anything_scheduled(log: Log, topics: Collection[str]) -> bool:
    """Tell whether a message of one of these topics is due and not in the log yet."""
    due = ScheduledMessage.objects.using(log.alias).filter(topic__in=topics, refused=False, due_at__lte=DatabaseNow())
    return due.exists()


def anything_due(
    log: Log,
    group: str,
    topic: str,
    ordering: str,
    owned: Collection[PartitionRef] = (),
) -> bool:
    """Tell whether the log has anything for a group to do now: unread messages, or states that are due or in flight.

    owned: partitions of the calling process, which are left out, since it knows what is to be done in them. In the
    others everything unsettled counts, except delayed messages and those behind them: partitions of a later epoch that
    the group may not start yet are behind those of the earlier one. The tables are read in the order in which a message
    passes through them, so that none is missed.
    """
    streams, epochs = _streams(log, group, topic, "position")
    others = {at: position for at, position in streams.items() if at not in owned}
    if len(epochs) > 1:
        ready = _may_start(log, group, topic, epochs)
        others = {at: position for at, position in others.items() if at.partition in ready}
    if not others:
        return False
    if ordering == "partition":  # nothing is read behind a delayed message
        held = {(p, q) for p, q in log.execute(WAITING, (topic, group)).fetchall()}
        others = {at: position for at, position in others.items() if (at.partition, at.priority) not in held}
    if beyond(log, others):
        return True
    behind_none = ""
    if ordering in ORDERING_QUEUES:
        messages, of_a_queue = ORDERING_QUEUES[ordering]
        behind_none = BEHIND_NONE.replace("{messages}", messages).replace("{of_a_queue}", of_a_queue)
    unsettled = log.execute(UNSETTLED.replace("{behind_none}", behind_none), (topic, group) * 2).fetchall()
    partitions = {ref.partition for ref in others}
    return any(partition in partitions for (partition,) in unsettled)


def with_work(log: Log, groups: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those (group, topic) that may have anything to do: their topics have messages that they have not settled,
    due or not. One statement for all whose topics are empty."""
    published = Message.objects.using(log.alias).filter(topic=OuterRef("name"))
    topics = Topic.objects.using(log.alias).filter(Exists(published), name__in={topic for _, topic in groups})
    filled = set(topics.values_list("name", flat=True))
    known = registered(log, filled) if filled else set()
    some = {(group, topic) for group, topic in groups if topic in filled}
    return {one for one in some if one not in known or unacked_streams(log, *one)}


def unacked_streams(log: Log, group: str, topic: str, through: int | None = None) -> list[PartitionRef]:
    """Return the partitions of a group that have messages above its watermark (and up to an offset, if one is given):
    collection waits for them."""
    return beyond(log, _streams(log, group, topic, "offset_acked")[0], through)


def _may_start(log: Log, group: str, topic: str, epochs: Sequence[Epoch]) -> set[int]:
    """Return the partitions whose messages count as due: what waits for the end of an epoch that is being closed waits
    for a moment only."""
    closed = [epoch if epoch.end is not None else replace(epoch, end=0) for epoch in epochs]
    registered = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group).first()
    priorities = Topic.objects.using(log.alias).values_list("priorities", flat=True).get(name=topic)
    return startable(closed, unfinished(log, registered, priorities, epochs) if registered else ())


def _streams(log: Log, group: str, topic: str, column: str) -> tuple[dict[PartitionRef, int], Sequence[Epoch]]:
    """Return a column of the offset row of each partition, one that was never acquired has no row: the group's start;
    and the topic's epochs."""
    options = Topic.objects.using(log.alias).filter(name=topic).first()
    registered = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group).first()
    if options is None or registered is None:
        return {}, ()
    epochs = layouts.epochs(log, topic)
    rows = Offset.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    stored = {(p, q): value for p, q, value in rows.values_list("partition", "priority", column)}
    streams = {
        PartitionRef(group, topic, p, q): stored.get((p, q), registered.start)
        for p in numbers_of(epochs)
        for q in range(options.priorities)
    }
    return streams, epochs


# -- where the log stood at a time -------------------------------------------------------------------------------------

BRANCHES = 16  # offsets probed with one statement
MARGIN = timedelta(seconds=5)  # messages published side by side need not stand in the order of their times
# Every message lies between them; beyond them times overflow.
EARLIEST, LATEST = datetime(1970, 1, 2, tzinfo=timezone.utc), datetime(9000, 1, 1, tzinfo=timezone.utc)
# The first row at or above an offset or id, and whether it is earlier than a time. Index: the primary key.
NEXT = """
    SELECT %s, {key}, CASE WHEN {time} < %s THEN 1 ELSE 0 END FROM {table}{by_offset}
    WHERE {key} >= %s ORDER BY {key} LIMIT 1
"""


def within_calendar(moment: datetime) -> datetime:
    """Return an aware time in UTC, moved to between EARLIEST and LATEST."""
    return max(EARLIEST, min(moment, LATEST)).astimezone(timezone.utc)


def offset_before(log: Log, moment: datetime) -> int:
    """Return an offset such that every message published at `moment` (aware) or later has a higher one.

    The log is nearly in the order of its times; five seconds are added for what is not. Some six statements for ten
    million messages. Raises ValueError for a time without a time zone.
    """
    return key_before(log, Message, "created_at", moment)


def key_before(log: Log, model: type[models.Model], time: str, moment: datetime) -> int:
    """Return a primary key such that every row of a table whose column `time` is `moment` (aware) or later has a higher
    one, where keys nearly ascend with these times.

    Raises ValueError for a time without a time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"the time must be aware (with a time zone), not {moment!r}")
    at = within_calendar(moment) - MARGIN
    ends = model._default_manager.using(log.alias).aggregate(low=Min("pk"), high=Max("pk"))
    if ends["low"] is None:
        return 0
    low, high = int(ends["low"]) - 1, int(ends["high"]) + 1  # what is at or below low is earlier, at or above high not
    while high - low > 1:
        probes = list(range(low + 1, high, max(1, (high - low) // BRANCHES)))
        found = _first_at(log, model, time, at, probes)
        for probe in probes:
            key, earlier = found.get(probe, (high, False))
            if not earlier or key >= high:
                high = probe
                break
            low = max(low, key)
    return low


def _first_at(
    log: Log, model: type[models.Model], time: str, at: datetime, probes: list[int]
) -> dict[int, tuple[int, bool]]:
    syntax = log.dialect
    text = NEXT.replace("{key}", f'"{model._meta.pk.column}"').replace("{time}", time)
    branch = syntax.branch.format(text.replace("{table}", model._meta.db_table).strip())
    values: list[Any] = [value for probe in probes for value in (probe, syntax.time(at), probe)]
    found = log.execute(" UNION ALL ".join([branch] * len(probes)), values).fetchall()
    return {int(probe): (int(key), bool(earlier)) for probe, key, earlier in found}


# -- due times, for sqlqueue.testing -----------------------------------------------------------------------------------

# The next due time. Index: (refused, due_at); the states' unique key.
NEXT_MESSAGE = "SELECT {epoch} FROM sqlqueue_scheduled_message WHERE refused = {false} AND due_at > %s"
NEXT_DELIVERY = """
    SELECT {epoch} FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND acked = {false} AND in_flight = 0 AND invisible_until > %s
"""
MOVE_MESSAGES = "UPDATE sqlqueue_scheduled_message SET due_at = {moved} WHERE refused = {false}"
MOVE_DELIVERIES = "UPDATE sqlqueue_delivery_state SET invisible_until = {moved} WHERE acked = {false}"
MOVE_ENDS = "UPDATE sqlqueue_message SET expires_at = {moved} WHERE expires_at IS NOT NULL"


def next_due(log: Log, group_topics: Iterable[tuple[str, str]], after: datetime) -> datetime | None:
    """Return when, after a time, a scheduled message or a delivery of one of these (group, topic) is due, in UTC; None
    for never."""
    syntax = log.dialect
    text, time = NEXT_DELIVERY.replace("{epoch}", syntax.epoch("MIN(invisible_until)")), syntax.time(after)
    found = [log.execute(NEXT_MESSAGE.replace("{epoch}", syntax.epoch("MIN(due_at)")), (time,)).fetchone()]
    found += [log.execute(text, (topic, group, time)).fetchone() for group, topic in group_topics]
    return min((moment(value) for (value,) in found if value is not None), default=None)


def move(log: Log, by: timedelta) -> None:
    """Move the due time of everything that is scheduled or delayed, and the time at which messages expire, by `by`,
    which may be negative."""
    syntax, microseconds = log.dialect, by // timedelta(microseconds=1)
    moved = ((MOVE_MESSAGES, "due_at"), (MOVE_DELIVERIES, "invisible_until"), (MOVE_ENDS, "expires_at"))
    for text, column in moved:
        log.execute(text.replace("{moved}", syntax.moved(column)), (microseconds,))
