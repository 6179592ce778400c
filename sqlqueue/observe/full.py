"""Partitions at which nothing new is read, since they have reached a limit of what their owner remembers.

There are two: so many messages wait by their own outcome, or so many have been delivered beyond the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from sqlqueue.core import stream as limits
from sqlqueue.database.dialects import dialect, execute

STREAMS_AT_ONCE = 120
NEARLY = 0.9  # what is read and waits behind its key is beyond the claim, and not counted here

# How many messages of a stream wait by their own outcome, up to a limit? Index: the states' unique key.
WAITING = """
    SELECT %s, COUNT(*) FROM (SELECT message_offset FROM sqlqueue_delivery_state WHERE topic = %s
    AND consumer_group = %s AND "partition" = %s AND priority = %s AND acked = {false} LIMIT %s) AS waiting
"""
# How many messages stand between a position and a claim, up to a limit? Index: (topic, partition, priority, offset).
CLAIMED = """
    SELECT %s, COUNT(*) FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place} LIMIT %s) AS claimed
"""


class Standing(Protocol):
    """What of a stream is needed here."""

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


S = TypeVar("S", bound=Standing)


def may_be_full(states: int, counted: int) -> bool:
    """Tell whether so many delivery states of a group, of which at most `counted` were counted, may fill a stream."""
    return states >= min(counted, limits.HEADS_LIMIT)


def full_streams(alias: str, streams: Sequence[S]) -> set[S]:
    """Return those in which so many messages wait by their own outcome that nothing new is read."""
    most = limits.HEADS_LIMIT
    values = [(stream.topic, stream.group, stream.partition, stream.priority, most) for stream in streams]
    return {stream for stream, count in zip(streams, _counts(alias, WAITING, values)) if count >= most}


def held_streams(alias: str, streams: Sequence[S]) -> set[S]:
    """Return those of which so many messages have been delivered beyond the position that nothing new is read."""
    most = limits.WINDOW_LIMIT
    some = [stream for stream in streams if stream.claimed - stream.position >= NEARLY * most]
    place = dialect(alias).place
    values = [
        (*place(stream.topic, stream.partition, stream.priority, stream.position, stream.claimed), most)
        for stream in some
    ]
    return {stream for stream, count in zip(some, _counts(alias, CLAIMED, values)) if count >= NEARLY * most}


def _counts(alias: str, text: str, values: Sequence[tuple[object, ...]]) -> list[int]:
    branch = dialect(alias).branch.format(text.strip())
    found = [0] * len(values)
    for start in range(0, len(values), STREAMS_AT_ONCE):
        some = list(enumerate(values))[start : start + STREAMS_AT_ONCE]
        parameters = [value for index, its in some for value in (index, *its)]
        for index, count in execute(alias, " UNION ALL ".join([branch] * len(some)), parameters).fetchall():
            found[index] = count
    return found
