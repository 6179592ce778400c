"""How many messages wait in the ranges of their keys, behind an earlier one of the key: reckoned, for display only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlqueue.database.dialects import dialect, execute

GROUPS_AT_ONCE = 120

# What the ranges of each group hold, of so many of them. Index: the ranges' unique key.
BY_GROUP = """
    SELECT %s, COALESCE(SUM(messages), 0) FROM (SELECT messages FROM sqlqueue_blocked_range
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS waiting
"""
# The same, of each stream of a group. Index: the same.
BY_STREAM = """
    SELECT "partition", priority, SUM(messages) FROM (SELECT "partition", priority, messages FROM sqlqueue_blocked_range
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS waiting GROUP BY "partition", priority
"""


def blocked_in_groups(alias: str, groups: Sequence[tuple[str, str]], most: int) -> Mapping[tuple[str, str], int]:
    """Return how many messages lie in the ranges of each (topic, group), `most` ranges of a group at most."""
    branch = dialect(alias).branch.format(BY_GROUP.strip())
    found: dict[tuple[str, str], int] = {}
    for start in range(0, len(groups), GROUPS_AT_ONCE):
        some = groups[start : start + GROUPS_AT_ONCE]
        values = [value for index, place in enumerate(some) for value in (index, *place, most)]
        for index, count in execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall():
            found[some[index]] = int(count)
    return found


def blocked_in_streams(alias: str, topic: str, group: str, most: int) -> Mapping[tuple[int, int], int]:
    """Return how many lie in the ranges of each (partition, priority) of a group, likewise."""
    rows = execute(alias, BY_STREAM, (topic, group, most)).fetchall()
    return {(partition, priority): int(count) for partition, priority, count in rows}
