"""Reads the stored position of each group in each partition, and the oldest message that is not acked there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlqueue.database.log import Log
from sqlqueue.models.partition_lease import WAITS
from sqlqueue.stats import sampling

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


def all_partitions(log: Log) -> list[StoredPartition]:
    """Return every partition and priority of every group."""
    return _read(log, PARTITIONS, ())


def partitions_of(log: Log, topic: str, group: str = "") -> list[StoredPartition]:
    """Return the partitions of a topic's groups, or of one group, by partition and priority."""
    where, values = (ONE_GROUP, (topic, group)) if group else (ONE_TOPIC, (topic,))
    found = _read(log, PARTITIONS + where, values)
    return sorted(found, key=lambda stored: (stored.partition, stored.priority))


def _read(log: Log, statement: str, values: Sequence[object]) -> list[StoredPartition]:
    text = statement.replace("{waits}", WAITS).replace("{settled}", log.dialect.remaining("o.updated_at"))
    rows = log.execute(text, values).fetchall()
    return [
        StoredPartition._make(
            (
                *row[:7],
                None if row[7] is None else -float(row[7]),
                *map(bool, row[8:11]),
                row[11],
            )
        )
        for row in rows
    ]


def first_unacked(log: Log, partitions: Sequence[StoredPartition]) -> dict[StoredPartition, tuple[int, float]]:
    """Return the offset and the age of the first message above each watermark, where there is one."""
    sql = log.dialect
    items = {
        stored: sql.range_values(stored.topic, stored.partition, stored.priority, stored.watermark)
        for stored in partitions
    }
    text = FIRST.replace("{remaining}", sql.remaining("created_at"))
    found = sampling.each(log, text, items, sampling.PARTITIONS_AT_ONCE)
    return {stored: (offset, max(0.0, -float(remaining))) for stored, (offset, remaining) in found}
