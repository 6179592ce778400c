"""Estimates how many messages wait in the blocked ranges of their keys. For display only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlqueue.database.log import Log

GROUPS_AT_ONCE = 120

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
    branch = log.dialect.branch.format(BY_GROUP.strip())
    found: dict[tuple[str, str], int] = {}
    for start in range(0, len(groups), GROUPS_AT_ONCE):
        some = groups[start : start + GROUPS_AT_ONCE]
        values = [value for index, group in enumerate(some) for value in (index, *group, most)]
        for index, count in log.execute(" UNION ALL ".join([branch] * len(some)), values).fetchall():
            found[some[index]] = int(count)
    return found


def blocked_in_partitions(log: Log, topic: str, group: str, most: int) -> Mapping[tuple[int, int], int]:
    """Return how many messages lie in the blocked ranges of each (partition, priority) of a group; reads at most `most`
    ranges."""
    rows = log.execute(BY_PARTITION, (topic, group, most)).fetchall()
    return {(partition, priority): int(count) for partition, priority, count in rows}
