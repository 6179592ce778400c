"""Blocked ranges: read when a partition is acquired, written by a settle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlqueue.core.partition.blocked import StoredRange
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import SettlePlan
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import insert_all

AT_ONCE = 10_000
CHUNK = 200

# The ranges of an assigned partition, in the order of their keys. Index: the unique (topic, group, partition, priority,
# key).
RANGES = """
    SELECT partition_key, low, high, messages FROM sqlqueue_blocked_range
    WHERE topic = %s AND consumer_group = %s AND "partition" = %s AND priority = %s AND partition_key > %s
    ORDER BY partition_key LIMIT %s
"""
COLUMNS = 'topic, consumer_group, "partition", priority, partition_key, low, high, messages'
ROW = "(%s, %s, %s, %s, %s, %s, %s, %s)"
KEY = 'topic, consumer_group, "partition", priority, partition_key'
UPDATES = {name: "{new:" + name + "}" for name in ("low", "high", "messages")}
STREAM = ("topic", "consumer_group", "partition", "priority")


def ranges(log: Log, ref: PartitionRef) -> list[StoredRange]:
    """Return every blocked range of an assigned partition; a bounded number with each statement."""
    found: list[StoredRange] = []
    after, more = "", True
    while more:
        values = (ref.topic, ref.group, ref.partition, ref.priority, after, AT_ONCE)
        some = [StoredRange(*row) for row in log.execute(RANGES, values).fetchall()]
        more = len(some) == AT_ONCE
        after = some[-1].key if some else after
        found += some
    return found


def write(log: Log, plans: Iterable[SettlePlan]) -> None:
    """Store the blocked ranges that plans have changed, and delete those that are used up, in the current
    transaction."""
    stored: list[tuple[object, ...]] = []
    for plan in plans:
        ref = plan.lease.ref
        stored += [
            (ref.topic, ref.group, ref.partition, ref.priority, *one) for one in plan.ranges if one.low < one.high
        ]
        _delete(log, ref, [one.key for one in plan.ranges if one.low >= one.high])
    insert_all(log, f"sqlqueue_blocked_range ({COLUMNS})", ROW, log.dialect.upsert(KEY, UPDATES), stored, CHUNK)


def _delete(log: Log, ref: PartitionRef, keys: Sequence[str]) -> None:
    stream = (ref.topic, ref.group, ref.partition, ref.priority)
    for start in range(0, len(keys), CHUNK):
        some = keys[start : start + CHUNK]
        text = log.dialect.delete("sqlqueue_blocked_range", "partition_key", len(some), STREAM)
        log.execute(text, (*some, *stream))
