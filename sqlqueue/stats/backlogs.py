"""Counts how many messages each group has not read in each partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlqueue.database.log import Log
from sqlqueue.stats import sampling
from sqlqueue.stats.counting import Range, count
from sqlqueue.stats.positions import StoredPartition

# The beginning of a backlog, and its last message. Index: (topic, partition, priority, offset).
HEAD = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset"), SUM(CASE WHEN "offset" <= %s THEN 1 ELSE 0 END) FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {ascending} LIMIT %s) AS head
"""
TAIL = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset"), 0 FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {descending} LIMIT %s) AS tail
"""


class Backlog(NamedTuple):
    """The messages above a position: how many; how many of them are claimed; whether that is an estimate; the first and
    the last offset."""

    messages: int
    claimed: int
    estimated: bool
    first: int
    last: int


def backlogs_of(log: Log, partitions: Sequence[StoredPartition]) -> dict[StoredPartition, Backlog]:
    """Return the backlog above each position: exact for groups that have no more than sampling.EXACT messages."""
    sql = log.dialect
    both = " UNION ALL ".join([sql.branch.format(HEAD.strip()), sql.branch.format(TAIL.strip())])
    found: dict[StoredPartition, Backlog] = {}
    longer: dict[StoredPartition, Range] = {}
    for some in sampling.chunks(partitions, sampling.TABLES_AT_ONCE):
        values: list[object] = []
        for index, stored in enumerate(some):
            bounds = sql.range_values(stored.topic, stored.partition, stored.priority, stored.position)
            values += (index, stored.claimed, *bounds, sampling.SAMPLE, -1 - index, *bounds, 1)
        ends: dict[int, tuple[int, int, int, int]] = {}
        for index, *end in log.execute(" UNION ALL ".join([both] * len(some)), values).fetchall():
            ends[index] = tuple(int(value or 0) for value in end)  # type: ignore[assignment]
        for index, stored in enumerate(some):
            (messages, first, upto, claimed), (_, _, last, _) = ends[index], ends[-1 - index]
            found[stored] = Backlog(messages, claimed, False, first, last)
            if messages == sampling.SAMPLE:
                stream = (stored.topic, stored.partition, stored.priority)
                longer[stored] = Range(*stream, upto, last, stored.group)
    counted: Counter[tuple[str, str]] = Counter()
    for stored, backlog in found.items():
        counted[stored.topic, stored.group] += backlog.messages
    for stored, more in zip(longer, count(log, list(longer.values()), counted)):
        found[stored] = found[stored]._replace(
            messages=found[stored].messages + more.messages, estimated=more.estimated
        )
    return found
