"""Estimates how many messages wait in the blocked ranges of their keys. For display only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlqueue.database.log import Log
from sqlqueue.stats import sampling

# How many messages the ranges of a group hold; reads at most so many ranges. Index: the ranges' unique key.
BY_GROUP = """
    SELECT %s, COALESCE(SUM(messages), 0) FROM (SELECT messages FROM sqlqueue_blocked_range
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS waiting
"""
# The same, by partition and priority of a group. Index: the same.
BY_PARTITION = """
    SELECT "partition", priority, SUM(messages) FROM (SELECT "partition", priority, messages FROM sqlqueue_blocked_range
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS waiting GROUP BY "partition", priority
"""


def blocked_in_groups(log: Log, groups: Sequence[tuple[str, str]], most: int) -> Mapping[tuple[str, str], int]:
    """Return how many messages lie in the blocked ranges of each (topic, group); at most `most` ranges of a group are
    read."""
    found = sampling.each(log, BY_GROUP, {group: (*group, most) for group in groups})
    return {group: int(count) for group, (count,) in found}


def blocked_in_partitions(log: Log, topic: str, group: str, most: int) -> Mapping[tuple[int, int], int]:
    """Return how many messages lie in the blocked ranges of each (partition, priority) of a group; reads at most `most`
    ranges."""
    rows = log.execute(BY_PARTITION, (topic, group, most)).fetchall()
    return {(partition, priority): int(count) for partition, priority, count in rows}
