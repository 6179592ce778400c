"""Finds partitions that have reached a limit, so that nothing new is read there.

There are two limits: of messages that wait for a retry or were postponed (`full`), and of messages delivered beyond the
horizon (`held`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sqlqueue.core.partition import budget
from sqlqueue.database.log import Log

PARTITIONS_AT_ONCE = 120
NEARLY = 0.9  # what is read and waits behind its key is beyond the claim, and not counted here

# How many messages of a partition wait by their own outcome, up to a limit? Index: the states' unique key.
WAITING = """
    SELECT %s, COUNT(*) FROM (SELECT message_offset FROM sqlqueue_delivery_state WHERE topic = %s
    AND consumer_group = %s AND "partition" = %s AND priority = %s AND acked = {false} LIMIT %s) AS waiting
"""
# How many messages stand between a position and a claim, up to a limit? Index: (topic, partition, priority, offset).
CLAIMED = """
    SELECT %s, COUNT(*) FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {ascending} LIMIT %s) AS claimed
"""


class PartitionPosition(Protocol):
    """A PartitionRef with its position and claim, as far as they are needed here."""

    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def claimed(self) -> int: ...


S = TypeVar("S", bound=PartitionPosition)


def may_be_full(states: int, counted: int) -> bool:
    """Tell whether so many delivery states of a group, of which at most `counted` were counted, may fill a
    partition."""
    return states >= min(counted, budget.HEADS_LIMIT)


def full_partitions(log: Log, partitions: Sequence[S]) -> set[S]:
    """Return those in which so many messages wait by their own outcome that nothing new is read."""
    most = budget.HEADS_LIMIT
    values = [(stored.topic, stored.group, stored.partition, stored.priority, most) for stored in partitions]
    return {stored for stored, count in zip(partitions, _counts(log, WAITING, values)) if count >= most}


def held_partitions(log: Log, partitions: Sequence[S]) -> set[S]:
    """Return those of which so many messages have been delivered beyond the position that nothing new is read."""
    most = budget.WINDOW_LIMIT
    some = [stored for stored in partitions if stored.claimed - stored.position >= NEARLY * most]
    bounds = log.dialect.range_values
    values = [
        (*bounds(stored.topic, stored.partition, stored.priority, stored.position, stored.claimed), most)
        for stored in some
    ]
    return {stored for stored, count in zip(some, _counts(log, CLAIMED, values)) if count >= NEARLY * most}


def _counts(log: Log, text: str, values: Sequence[tuple[object, ...]]) -> list[int]:
    branch = log.dialect.branch.format(text.strip())
    found = [0] * len(values)
    for start in range(0, len(values), PARTITIONS_AT_ONCE):
        some = list(enumerate(values))[start : start + PARTITIONS_AT_ONCE]
        parameters = [value for index, its in some for value in (index, *its)]
        for index, count in log.execute(" UNION ALL ".join([branch] * len(some)), parameters).fetchall():
            found[index] = count
    return found
