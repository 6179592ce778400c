"""Reads each group in each of its partitions: the stored position, the messages above it, and the delivery states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlqueue.database.log import Log
from sqlqueue.models.subscriber import WAITS
from sqlqueue.stats import counting
from sqlqueue.stats.counting import Range, count

Stream = tuple[str, str, int, int]  # topic, group, partition and priority

# One row for each (group, topic, partition, priority). The gate's slots are the numbers of the priorities;
# without the range that all topics have, all of them would be read for each lease. Index: the unique keys of groups,
# leases and offsets; the gate's primary key.
PARTITIONS = """
    SELECT g.topic, g.consumer_group, l."partition", n.slot, COALESCE(o.position, g.start),
    COALESCE(o.offset_acked, g.start), COALESCE(o.claimed_to, g.start), {settled},
    l.holder <> '' AND l.valid_until > {now}, g.paused OR t.paused,
    l.holder = '{waits}', l.holder
    FROM sqlqueue_consumer_group g JOIN sqlqueue_topic t ON t.name = g.topic
    JOIN sqlqueue_partition_lease l ON l.topic = g.topic AND l.consumer_group = g.consumer_group
    JOIN sqlqueue_publish_gate n ON n.slot < t.priorities
    AND n.slot BETWEEN 0 AND (SELECT MAX(priorities) - 1 FROM sqlqueue_topic)
    LEFT JOIN sqlqueue_offset o ON o.topic = g.topic AND o.consumer_group = g.consumer_group
    AND o."partition" = l."partition" AND o.priority = n.slot
"""
ONE_TOPIC = " WHERE g.topic = %s"
ONE_GROUP = " WHERE g.topic = %s AND g.consumer_group = %s"
# The first message above an offset: the oldest that is not acked. Index: (topic, partition, priority, offset).
FIRST = """
    SELECT %s, "offset", {remaining} FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {ascending} LIMIT 1
"""


class StoredPartition(NamedTuple):
    """Position, watermark and claim of a group in a partition and priority, as stored. settled: how
    many seconds ago the offset row was written, None without one; owned: its lease is held; paused: the group or its
    topic is; waits: the group may not start it yet, since an earlier epoch has something of its keys; holder: the
    subscriber that holds its lease, or did so last."""

    topic: str
    group: str
    partition: int
    priority: int
    position: int
    watermark: int
    claimed: int
    settled: float | None
    owned: bool
    paused: bool
    waits: bool = False
    holder: str = ""


def partitions_of(log: Log, topic: str = "", group: str = "") -> list[StoredPartition]:
    """Return the partitions and priorities of every group, of those of a topic, or of one group, in their order."""
    where = ONE_GROUP if group else ONE_TOPIC if topic else ""
    text = (PARTITIONS + where).replace("{waits}", WAITS).replace("{settled}", log.dialect.remaining("o.updated_at"))
    rows = log.execute(text, [name for name in (topic, group) if name]).fetchall()
    found = [
        StoredPartition._make((*row[:7], None if row[7] is None else -float(row[7]), *map(bool, row[8:11]), row[11]))
        for row in rows
    ]
    return sorted(found, key=lambda stored: (stored.partition, stored.priority))


def first_unacked(log: Log, partitions: Sequence[StoredPartition]) -> dict[StoredPartition, tuple[int, float]]:
    """Return the offset and the age of the first message above each watermark, where there is one."""
    sql = log.dialect
    items = {
        stored: sql.range_values(stored.topic, stored.partition, stored.priority, stored.watermark)
        for stored in partitions
    }
    text = FIRST.replace("{remaining}", sql.remaining("created_at"))
    found = counting.each(log, text, items)
    return {stored: (offset, max(0.0, -float(remaining))) for stored, (offset, remaining) in found}


class Backlog(NamedTuple):
    """The messages above a position: how many; how many of them are claimed; whether that is an estimate; the first
    offset."""

    messages: int = 0
    claimed: int = 0
    estimated: bool = False
    first: int = 0


def backlogs_of(log: Log, partitions: Sequence[StoredPartition], highest: int) -> dict[StoredPartition, Backlog]:
    """Return the backlog between each position and `highest`: exact for groups that have no more than counting.EXACT
    messages."""
    ranges: list[Range] = []
    for stored in partitions:
        stream = (stored.topic, stored.partition, stored.priority)
        claimed = max(stored.position, stored.claimed)
        ranges.append(Range(*stream, stored.position, claimed, stored.group))
        ranges.append(Range(*stream, claimed, highest, stored.group))
    counts = count(log, ranges)
    return {
        stored: Backlog(
            claimed.messages + unread.messages,
            claimed.messages,
            claimed.estimated or unread.estimated,
            claimed.first or unread.first,
        )
        for stored, claimed, unread in zip(partitions, counts[::2], counts[1::2])
    }


class States(NamedTuple):
    """The delivery states of a group in a partition and priority: how many were counted, are in flight, have failed and
    wait for their retry, and wait otherwise; difference: by how many messages they change the backlog above the
    position."""

    rows: int = 0
    in_flight: int = 0
    failing: int = 0
    waiting: int = 0
    difference: int = 0


# Index: the states' unique key; the offsets' unique key.
STATES = """
    SELECT %s, s."partition", s.priority, COUNT(*),
    SUM(CASE WHEN s.acked = {false} AND s.in_flight <> 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.in_flight = 0 AND s.retry_count > 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.in_flight = 0 AND s.retry_count <= 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.message_offset <= o.position THEN 1
    WHEN s.acked = {true} AND s.message_offset > o.position THEN -1 ELSE 0 END)
    FROM (SELECT "partition", priority, message_offset, acked, in_flight, retry_count FROM sqlqueue_delivery_state
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS s
    JOIN sqlqueue_offset o ON o.topic = %s AND o.consumer_group = %s AND o."partition" = s."partition"
    AND o.priority = s.priority GROUP BY s."partition", s.priority
"""
# How many messages the ranges of a group hold; reads at most so many ranges. Index: the ranges' unique key.
BLOCKED = """
    SELECT %s, "partition", priority, SUM(messages) FROM (SELECT "partition", priority, messages FROM
    sqlqueue_blocked_range WHERE topic = %s AND consumer_group = %s LIMIT %s) AS waiting GROUP BY "partition", priority
"""


def states_of(log: Log, groups: Sequence[tuple[str, str]]) -> dict[Stream, States]:
    """Return the delivery states of groups, of each at most one more than counting.MOST_ROWS."""
    most = counting.MOST_ROWS + 1
    found = counting.each(log, STATES, {group: (*group, most, *group) for group in groups})
    return {(*group, partition, priority): States(*map(int, counts)) for group, (partition, priority, *counts) in found}


def blocked_in(log: Log, groups: Sequence[tuple[str, str]]) -> dict[Stream, int]:
    """Return how many messages lie in the blocked ranges of groups: an estimate."""
    found = counting.each(log, BLOCKED, {group: (*group, counting.MOST_ROWS) for group in groups})
    return {(*group, partition, priority): int(messages) for group, (partition, priority, messages) in found}


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """A group in one partition and priority. Counts are of messages, ages in seconds.

    oldest: the offset of the oldest message that is not acked; settled: how long ago the last settle was; holder: the
    subscriber that owns it, "" for none; stuck: why the watermark stands still ("failing", "standing", "full", "held"),
    "" if it does not, or the group is paused; waits: the group may not start it yet, since an earlier epoch has
    something of its keys.
    """

    partition: int
    priority: int
    position: int
    watermark: int
    lag: int
    estimated: bool
    in_flight: int
    failing: int
    waiting: int
    oldest: int | None
    oldest_age: float | None
    settled: float | None
    holder: str
    stuck: str
    waits: bool

    @property
    def order(self) -> tuple[bool, bool, int, int, int]:
        """Sort key: first the stuck ones, then those with a lag and without an owner, then by lag."""
        return not self.stuck, bool(self.holder) or not self.lag, -self.lag, self.partition, self.priority
