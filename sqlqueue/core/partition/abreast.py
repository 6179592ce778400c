"""Abreast: how the reads of several partitions that have a backlog go through the log together, so that the server
reads each page of a log that is larger than its memory about once.

Neighbours in the log belong to many partitions. Every read brings about as many messages, so a partition that has fewer
than the others gets ahead of them, and then each page is read once for every partition. One that is ahead by more than
the last one's read passes waits for it, a few times at most. And one statement brings so few bytes that what it has
read for its first partition is still in the server's memory when it comes to its last one.

It brings, to a group that reads a log of 3,200 pages from the start with a buffer pool of 24 MB, 4,700 pages read
instead of 15,200 (MariaDB, 16 partitions; tests/benchmarks/rereading).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.window import Read

BACKLOG: Final = 5_000  # offsets before the log's end: nearer to it no read waits
MOST_WAITS: Final = 4  # in a row: so a partition that stays behind delays the others by a few reads of its own at most
READ_BYTES: Final = 1024 * 1024  # of a backlog that one statement brings, or a batch of each partition

Reads = list[tuple[AssignedPartition, Read]]


def abreast(reads: Reads, end: int) -> Reads:
    """Return those of the reads that go now, with how many messages each of them may bring. end: of the log. Only
    partitions of the same group, topic and priority wait for each other."""
    if len(reads) < 2 or min(read.start for _, read in reads) >= end - BACKLOG:
        return reads
    going: Reads = []
    backlogs: dict[tuple[str, str, int], Reads] = {}
    for assigned, read in reads:
        if read.start >= end - BACKLOG:
            going.append((assigned, read))
        else:
            ref = assigned.ref
            backlogs.setdefault((ref.group, ref.topic, ref.priority), []).append((assigned, read))
    for backlog in backlogs.values():
        going += _together(backlog) if len(backlog) > 1 else backlog
    return going


def _together(backlog: Reads) -> Reads:
    last, first = min(backlog, key=lambda each: each[1].start)
    bound = first.start + last.window.stride
    share = _share(backlog)
    going: Reads = []
    for assigned, read in backlog:
        window = assigned.window
        if read.start > bound and window.waits < MOST_WAITS:
            window.waits += 1
        else:
            window.waits = 0
            least = assigned.options.most_together if assigned.options.together else 1  # batches stay as large
            going.append((assigned, read._replace(limit=min(read.limit, max(least, int(read.limit * share))))))
    return going


def _share(reads: Sequence[tuple[AssignedPartition, Read]]) -> float:
    """Return which part of what these reads may bring fits into READ_BYTES."""
    expected = sum(assigned.budget.expected(read.limit) for assigned, read in reads)
    return min(1.0, READ_BYTES / expected) if expected else 1.0
