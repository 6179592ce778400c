"""The reader of a process: it fetches messages and due rows for all assigned partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from sqlqueue.conf import settings
from sqlqueue.consumers.engine.log_end import LogEnd
from sqlqueue.core.partition import arrivals
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.queues import Missing
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import Found, Read
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.log.fetch import changed, fetch, scan
from sqlqueue.log.messages import Asked, gather, load
from sqlqueue.log.sift import sift

FIRST_READ = 32  # messages, while it is not known how large a partition's are
CHANGES_AT_ONCE = 1_000  # rows
READS_AT_ONCE = 4  # while a filter leaves out all that is read
LEFT_OUT_AT_ONCE = 200  # messages in doubt
BACKLOG = 5_000  # offsets before the log's end: nearer to it no read waits
MOST_WAITS = 4  # in a row: so a partition that stays behind delays the others by a few reads of its own at most
READ_BYTES = 1024 * 1024  # of a backlog that one statement brings, or a batch of each partition


Reads = list[tuple[AssignedPartition, Read]]


class Reader:
    """Reads up to what is known of the log's end. For one thread. What another server answers is not used: a read
    raises ServerChanged or SessionReplaced."""

    def __init__(self, log: Log, server: ServerIdentity):
        self.log = log
        self.forget(server)

    def forget(self, server: ServerIdentity) -> None:
        """Forget how far anything was read, and where the log ends; read from this server from now on."""
        self.server, self.log_end = server, LogEnd(self.log, server)
        # By (group, topic) the rows that are still to be asked for.
        self._waiting: dict[tuple[str, str], Iterator[tuple[PartitionRef, int]]] = {}

    def share(self, assigned_partitions: Sequence[AssignedPartition]) -> None:
        """Give each of all partitions its share of the bytes that the process may hold."""
        share = settings.PREFETCH_BYTES // max(1, len(assigned_partitions))
        for assigned in assigned_partitions:
            assigned.budget.share = share

    def wants(self, assigned: AssignedPartition) -> bool:
        """Return whether something of a partition is to be read or loaded now."""
        reached = self.log_end.horizon.value
        return bool(assigned.missing(reached) or assigned.to_scan() or assigned.next_read(reached))

    def read(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> int:
        """Read for every partition that has room; return how many messages were read."""
        unweighed = [assigned for assigned in assigned_partitions if not assigned.budget.weighed]
        count = self._read(assigned_partitions, now)
        self.log_end.following.drop()
        if again := [assigned for assigned in unweighed if assigned.budget.weighed]:
            count += self._read(again, now)  # up to the room, now that their size is known
        for _ in range(READS_AT_ONCE - 1):  # then what is settled costs less than what is read
            again = [each for each in assigned_partitions if each.sieve is not None and each.reads_on]
            if not again or any(assigned.queues.ready for assigned in assigned_partitions):
                break
            count += self._read(again, now)
        return count

    def _read(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> int:
        began = time.perf_counter()
        count = self._load_missing(assigned_partitions, now)
        reached = self.log_end.horizon.value
        wanting = [
            (assigned, read if assigned.budget.weighed else read._replace(limit=min(read.limit, FIRST_READ)))
            for assigned in assigned_partitions
            if (read := assigned.next_read(reached))
        ]
        wanting = abreast(wanting, self.log_end.highest)
        for (assigned, read), found in zip(wanting, self._fetch(wanting)):
            count += assigned.take_in(read, found, reached, now)
            if assigned.window.late:
                count += self._load_missing([assigned], now)
        self.log_end.was_read(now, time.perf_counter() - began)
        return count

    def unread(self, assigned_partitions: Sequence[AssignedPartition]) -> bool:
        """Return whether the log holds messages of these partitions that were not read."""
        asked = [(assigned, assigned.window.reading(1)) for assigned in assigned_partitions]
        return any(
            found.messages or not assigned.window.remembers(found.seen)
            for (assigned, _), found in zip(asked, self._fetch(asked))
        )

    def _fetch(self, reads: Sequence[tuple[AssignedPartition, Read]]) -> list[Found]:
        """Return what each read finds, in their order."""
        following = self.log_end.following
        already_read: list[Found | None] = [None] * len(reads)
        if following.messages:
            already_read = [following.already_read(assigned.ref, read) for assigned, read in reads]
        others = [(assigned.ref, read) for (assigned, read), found in zip(reads, already_read) if found is None]
        sifted = [(ref, read) for ref, read in others if read.sift is not None]
        whole = [(ref, read) for ref, read in others if read.sift is None]
        of_sifted = iter(sift(self.log, sifted, self.server) if sifted else ())
        of_whole = iter(fetch(self.log, whole, self.server) if whole else ())
        return [
            found if found is not None else next(of_whole if read.sift is None else of_sifted)
            for (_, read), found in zip(reads, already_read)
        ]

    def _load_missing(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> int:
        """Load the messages that partitions miss, and scan for the next messages of keys that are free again; return
        how many were loaded."""
        missing: list[tuple[AssignedPartition, list[Missing]]] = []
        for assigned in assigned_partitions:
            if not assigned.queues.absent and not assigned.window.late:
                continue
            if (span := assigned.to_scan()) is not None:
                assigned.queues.scanned(*span, scan(self.log, assigned.ref, *span, self.server), now)
            some = assigned.missing(self.log_end.horizon.value)
            if some:
                missing.append((assigned, some if assigned.budget.weighed else some[:FIRST_READ]))
        asked = [Asked(each.ref, [offset for offset, _ in some], each.loadable) for each, some in missing]
        total = 0
        for (assigned, some), (found, count) in zip(missing, gather(self.log, asked, self.server)):
            assigned.add_missing(some[:count], found, now)
            total += count
        return total

    def notice_changed(
        self, group: str, topic: str, assigned_partitions: Mapping[PartitionRef, AssignedPartition], now: float
    ) -> bool:
        """Find rows that are due or acked in the database and wait in memory, because an operator or plain SQL has
        changed them. A limited number at a time; return whether there are more."""
        waiting = self._waiting.pop((group, topic), None) or iter(
            [(ref, offset) for ref, assigned in assigned_partitions.items() for offset in assigned.delays.offsets(now)]
        )
        asked: dict[PartitionRef, list[int]] = {}
        for ref, offset in islice(waiting, CHANGES_AT_ONCE):
            asked.setdefault(ref, []).append(offset)
        found = changed(self.log, asked, self.server)
        for ref, offsets in asked.items():
            for offset in offsets:
                if (ref.partition, ref.priority, offset) in found and ref in assigned_partitions:
                    assigned_partitions[ref].reschedule(offset, now)
        if sum(map(len, asked.values())) < CHANGES_AT_ONCE:
            return False
        self._waiting[group, topic] = waiting
        return True

    def leave_out(self, assigned: AssignedPartition, now: float) -> None:
        """Settle messages in doubt that the consumer's filter leaves out, many at once: they need not wait until they
        could be dispatched alone."""
        for _ in range(READS_AT_ONCE):
            offsets = assigned.unfiltered_in_doubt(LEFT_OUT_AT_ONCE if assigned.budget.weighed else FIRST_READ)
            if not offsets:
                return
            while offsets:
                ((found, count),) = load(self.log, [Asked(assigned.ref, offsets, assigned.loadable)], self.server)
                offsets = offsets[count:]
                for offset, (row, message) in found.items():
                    if message is not None and not assigned.wants(message):
                        arrivals.load(assigned, offset, row, message, now)

    def load_due(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> None:
        """Load the rows of partitions that are due, with their messages."""
        due_rows = [(assigned, assigned.due_rows(now, assigned.options.batch_size)) for assigned in assigned_partitions]
        self.load([(assigned, offsets) for assigned, offsets in due_rows if offsets], now)

    def load(self, rows: Sequence[tuple[AssignedPartition, Sequence[int]]], now: float) -> None:
        """Load rows of partitions, by their offsets, with their messages."""
        rows = [(assigned, some if assigned.budget.weighed else some[:FIRST_READ]) for assigned, some in rows]
        asked = [Asked(assigned.ref, offsets, assigned.loadable) for assigned, offsets in rows]
        for (assigned, offsets), (found, count) in zip(rows, load(self.log, asked, self.server)):
            for offset in offsets[:count]:
                row, message = found.get(offset, (None, None))
                arrivals.load(assigned, offset, row, message, now)


def abreast(reads: Reads, end: int) -> Reads:
    """Return those of the reads of several partitions that go now, with how many messages each of them may bring, so
    that the server reads each page of a log that is larger than its memory about once. end: of the log. Only partitions
    of the same group, topic and priority wait for each other.

    Neighbours in the log belong to many partitions. Every read brings about as many messages, so a partition that has
    fewer than the others gets ahead of them, and then each page is read once for every partition. One that is ahead by
    more than the last one's read passes waits for it, a few times at most. And one statement brings so few bytes that
    what it has read for its first partition is still in the server's memory when it comes to its last one.

    It brings, to a group that reads a log of 3,200 pages from the start with a buffer pool of 24 MB, 4,700 pages read
    instead of 15,200 (MariaDB, 16 partitions; tests/benchmarks/rereading).
    """
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
