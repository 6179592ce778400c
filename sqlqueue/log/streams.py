"""Which of a group's streams have messages above an offset."""

from __future__ import annotations

from collections.abc import Mapping

from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.database.log import Log
from sqlqueue.log.fetch import STREAMS_OF_ONE_FETCH

# Whether there is a message above an offset. Index: (topic, partition, priority, offset).
ABOVE = 'SELECT %s, "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {ascending} LIMIT 1'


def beyond(log: Log, streams: Mapping[PartitionRef, int], through: int | None = None) -> list[PartitionRef]:
    """Return those partitions that have messages above their offset, and up to `through`. One statement for every 32
    partitions."""
    found: list[PartitionRef] = []
    syntax = log.dialect
    branch = syntax.branch.format(ABOVE if through is None else ABOVE.replace("{beyond}", "{within}"))
    high = () if through is None else (through,)
    known = list(streams.items())
    for start in range(0, len(known), STREAMS_OF_ONE_FETCH):
        some = known[start : start + STREAMS_OF_ONE_FETCH]
        values: list[object] = []
        for index, (at, offset) in enumerate(some):
            values += (index, *syntax.range_values(at.topic, at.partition, at.priority, offset, *high))
        rows = log.execute(" UNION ALL ".join([branch] * len(some)), values).fetchall()
        found += [some[index][0] for index, _ in rows]
    return found
