"""The reader of a process: it polls the log's head, probes the horizon, and fetches messages and due rows for all
assigned partitions."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Mapping, Sequence

from sqlqueue.conf import settings
from sqlqueue.consumers.following import Following, Trials
from sqlqueue.consumers.working_set import Stream, WorkingSet
from sqlqueue.core.partition.abreast import abreast
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.queues import Missing
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import Found, Read
from sqlqueue.core.slices import slice_of
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.database.statements import dialect
from sqlqueue.log.fetch import FIRST, WATCH_SPAN, due, fetch, poll_head, scan, watch
from sqlqueue.log.loading import Asked, gather, load
from sqlqueue.log.sift import sift

RESCAN_SHARE = 20  # while the horizon is held back, the search for late commits may take this part of the time: 1/20
RESCAN_AT_LEAST = 0.05  # seconds
FIRST_READ = 32  # messages, while it is not known how large a partition's are
CHANGES_AT_ONCE = 1_000  # rows
READS_AT_ONCE = 4  # while a filter leaves out all that is read
LEFT_OUT_AT_ONCE = 200  # messages in doubt
FEW = 10  # living subscribers of a database: of more, some probe the horizon for all
PROBERS = 2  # of many, so many in a round of polls
LONGEST_WAIT = 5.0  # seconds for others to probe, who may be dead, or stopping
EAGER = 20  # then so many of as many as live; all of them at once would hold up the server
LONGEST_ROUND = 0.25  # seconds for which one poll counts as waiting: others poll as slowly on a busy server


class Reader:
    """Knows how far the log has been read. For one thread. What another server answers is not used: a read raises
    ServerChanged or SessionReplaced."""

    def __init__(self, alias: str, server: ServerIdentity):
        self.alias, self.gated = alias, dialect(alias).gated  # gated: publishers may commit in any order
        self.forget(server)

    def forget(self, server: ServerIdentity) -> None:
        """Forget everything that is known of the log's end; read from this server from now on."""
        self.server = server
        self.horizon, self.following = Horizon(self.alias, server), Following(self.alias, server)
        self.highest = 0
        self.due_in: float | None = None  # seconds until a scheduled message is due, as of the last poll
        self.requested: bool | None = None  # see Head; as of the last poll
        self._noticed: dict[tuple[str, str], tuple[int, int, int]] = {}  # by (group, topic): how far it was read
        self.watched_to = 0  # the horizon at the last watch of all offsets above the one before
        self._watched_high = 0
        self._counting = Trials()  # of whether every offset is visible
        self._gap_to = 0  # an offset below it was not visible at the last watch that counted them
        self._rescan_at = 0.0
        self._probed_at = -math.inf
        self.behind = False  # the horizon was not probed, although there was something new
        self._waited = 0.0  # seconds for which it was behind, and the horizon did not rise
        self._looked_at = 0.0
        self._rescanning = False  # the next read looks for late commits while the horizon is held back

    def look(
        self,
        assigned_partitions: Sequence[AssignedPartition] | WorkingSet,
        now: float,
        linger: float = 0.0,
        subscribers: int = 1,
        requested: bool = False,
        notified: bool = False,
    ) -> bool:
        """Look for new messages, and alarm the partitions that have some, also those that rest; return whether one of
        these has any that is new.

        One statement while the log is idle (and one more after a notification of what was seen before); otherwise a
        watch more, and a probe where the watch has not seen every offset. The order matters: the highest offset is read
        before the probe, and the probe is followed by another watch; messages are read in a newer snapshot than all of
        them. While the horizon is held back, only new offsets are watched, and the others now and then, for late
        commits. linger: the horizon is probed at most once in so many seconds. subscribers: how many live. requested:
        whether to ask for requests, too. notified: that there is something new is nearly sure; a process that keeps up
        with the log, and owns most of it, reads what is new at once then.
        """
        self.following.drop()
        shared = subscribers > FEW and self.gated
        if notified and not (shared or requested) and (found_new := self._follow()):
            return self._alarm(assigned_partitions, found_new, self.watched_to, self.horizon.value)
        self.highest, self.due_in, found, self.requested = poll_head(self.alias, self.server, shared, requested)
        if shared:
            self._learn(found, now)
        seen = self._watch_all()
        reached = self._probe(now, linger, subscribers if shared else 1) if seen is None else self.horizon.value
        rose = reached > self.watched_to
        new = self.highest > self._watched_high
        rescan = reached < self.highest and now >= self._rescan_at
        if not (rose or new or rescan):
            return False
        whole = rose or rescan
        if whole:
            self._rescanning = not rose and not new
            self._rescan_at = now + RESCAN_AT_LEAST
        low = self.watched_to if whole else self._watched_high
        if seen is None and self.highest - low <= WATCH_SPAN:
            seen = watch(self.alias, low, self.highest, self.server)
        concerned = self._alarm(assigned_partitions, seen, low, reached if whole else None)
        return concerned and (rose or new)

    def _alarm(
        self,
        assigned_partitions: Sequence[AssignedPartition] | WorkingSet,
        seen: Collection[Stream] | None,
        low: int,
        reached: int | None,
    ) -> bool:
        """Alarm the partitions of which messages were seen above `low` (None: all), also those that rest; return
        whether there are any. reached: the horizon, if all offsets up to it were watched."""
        if isinstance(assigned_partitions, WorkingSet):
            assigned_partitions.wake(seen, self.watched_to)
            assigned_partitions = assigned_partitions.partitions
        concerned = False
        for assigned in assigned_partitions:
            ref = assigned.ref
            if seen is None or (ref.topic, ref.partition, ref.priority) in seen:
                assigned.window.alarm()
                concerned = True
            elif reached is not None:
                assigned.window.unseen(low, reached)
        if reached is not None:
            self.watched_to = reached
        self._watched_high = self.highest
        return concerned

    def _follow(self) -> Collection[Stream] | None:
        """Read what is new in the whole log, where all that was watched before is final; return which partitions it is
        of. None: there is nothing, or too much, or an offset among it is not visible."""
        low = self.horizon.value
        if not 0 < low == self.watched_to == self._watched_high or not self.following.trials.due():
            return None
        newest = self.following.read(low)
        if newest is None:
            return None
        if self.gated and newest.total < newest.last - low:
            self._gap_to = newest.last
            self.following.trials.ended(well=False)
            return None
        self.highest, self.due_in, self.behind = newest.last, newest.due_in, False
        self.horizon.all_visible(newest.last)
        self.following.keep(newest, low)
        return newest.messages.keys()

    def _watch_all(self) -> Mapping[Stream, int] | None:
        """Watch all offsets up to the highest one. If each of them is visible, the horizon is there, and no probe is
        needed; return what was seen. Where a number was lost, by a rollback or to another node of a cluster, that is
        not tried again before the horizon has passed it; where that happens often, seldom."""
        low, known = self.watched_to, self.horizon.value
        if not (self.gated and low > 0 and self._gap_to <= known < self.highest <= low + WATCH_SPAN):
            return None
        if not self._counting.due():
            return None
        seen = watch(self.alias, low, self.highest, self.server)
        complete = sum(seen.values()) == self.highest - low
        self._counting.ended(well=complete)
        if not complete:
            self._gap_to = self.highest
            return None
        self.horizon.all_visible(self.highest)
        self.behind = False
        return seen

    def _learn(self, shared: int | None, now: float) -> None:
        """Take over what another subscriber has found, and note for how long none has found anything."""
        before = self.horizon.value
        self.horizon.learn(shared, self.highest)
        waits = self.behind and self.horizon.value == before
        self._waited = self._waited + min(now - self._looked_at, LONGEST_ROUND) if waits else 0.0
        self._looked_at = now

    def _probe(self, now: float, linger: float, subscribers: int) -> int:
        """Probe the horizon if it is time, and among many this subscriber's turn, and let the others know it."""
        self.behind = self.highest > self.horizon.value and (
            now < self._probed_at + linger or not self._is_to_probe(subscribers)
        )
        if not self.behind:
            self._probed_at = now
            self.horizon.probe(self.highest)
            if subscribers > FEW:
                self.horizon.share()
        return self.horizon.value

    def _is_to_probe(self, subscribers: int) -> bool:
        """Tell whether this subscriber is to probe now. Among many that is left to chance, until it has begun: nothing
        is to be agreed on, a subscriber that dies is not waited for long, and those that have all waited for the server
        do not ask it at the same moment."""
        if subscribers <= FEW or self.horizon.waits_for > 0:
            return True
        return random.random() * subscribers < (PROBERS if self._waited < LONGEST_WAIT else EAGER)

    def share(self, assigned_partitions: Sequence[AssignedPartition]) -> None:
        """Give each of all partitions its share of the bytes that the process may hold."""
        share = settings.PREFETCH_BYTES // max(1, len(assigned_partitions))
        for assigned in assigned_partitions:
            assigned.budget.share = share

    def wants(self, assigned: AssignedPartition) -> bool:
        """Return whether something of a partition is to be read or loaded now."""
        reached = self.horizon.value
        return bool(assigned.missing(reached) or assigned.to_scan() or assigned.next_read(reached))

    def read(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> int:
        """Read for every partition that has room; return how many messages were read."""
        unweighed = [assigned for assigned in assigned_partitions if not assigned.weighed]
        count = self._read(assigned_partitions, now)
        self.following.drop()
        if again := [assigned for assigned in unweighed if assigned.weighed]:
            count += self._read(again, now)  # up to the room, now that their size is known
        for _ in range(READS_AT_ONCE - 1):  # then what is settled costs less than what is read
            again = [assigned for assigned in assigned_partitions if assigned.reads_on]
            if not again or any(assigned.ready for assigned in assigned_partitions):
                break
            count += self._read(again, now)
        return count

    def _read(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> int:
        began = time.perf_counter()
        count = self._load_missing(assigned_partitions, now)
        reached = self.horizon.value
        wanting = [
            (assigned, _light(assigned, read))
            for assigned in assigned_partitions
            if (read := assigned.next_read(reached))
        ]
        wanting = abreast(wanting, self.highest)
        for (assigned, read), found in zip(wanting, self._fetch(wanting)):
            count += assigned.take_in(read, found, reached, now)
            if assigned.window.late:
                count += self._load_missing([assigned], now)
        if self._rescanning:
            self._rescanning = False
            self._rescan_at = max(self._rescan_at, now + RESCAN_SHARE * (time.perf_counter() - began))
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
        already_read = [self.following.already_read(assigned.ref, read) for assigned, read in reads]
        others = [(assigned.ref, read) for (assigned, read), found in zip(reads, already_read) if found is None]
        sifted = [(ref, read) for ref, read in others if read.sift is not None]
        whole = [(ref, read) for ref, read in others if read.sift is None]
        of_sifted = iter(sift(self.alias, sifted, self.server) if sifted else ())
        of_whole = iter(fetch(self.alias, whole, self.server) if whole else ())
        return [
            found if found is not None else next(of_whole if read.sift is None else of_sifted)
            for (_, read), found in zip(reads, already_read)
        ]

    def _load_missing(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> int:
        """Load the messages that partitions miss, and scan for the next messages of keys that are free again; return
        how many were loaded."""
        missing: list[tuple[AssignedPartition, list[Missing]]] = []
        for assigned in assigned_partitions:
            if (span := assigned.to_scan()) is not None:
                assigned.scanned(*span, scan(self.alias, assigned.ref, *span, self.server), now)
            some = assigned.missing(self.horizon.value)
            if some:
                missing.append((assigned, some if assigned.weighed else some[:FIRST_READ]))
        asked = [Asked(each.ref, [offset for offset, _ in some], each.loadable) for each, some in missing]
        total = 0
        for (assigned, some), (found, count) in zip(missing, gather(self.alias, asked, self.server)):
            assigned.add_missing(some[:count], found, now)
            total += count
        return total

    def notice_rescheduled(
        self, group: str, topic: str, assigned_partitions: Mapping[PartitionRef, AssignedPartition], now: float
    ) -> bool:
        """Find rows that are due in the database but not in memory, because an operator has rescheduled them. A limited
        number at a time; return whether there are more."""
        partitions, sharing = ({getattr(ref, name) for ref in assigned_partitions} for name in ("partition", "slices"))
        beyond = self._noticed.pop((group, topic), FIRST)
        found = due(self.alias, group, topic, partitions, beyond, CHANGES_AT_ONCE, self.server)
        for partition, priority, offset in found:
            stream = (group, topic, partition, priority)
            refs = (PartitionRef(*stream, slice_of(offset, slices), slices) for slices in sharing)
            for assigned in filter(None, map(assigned_partitions.get, refs)):
                assigned.reschedule(offset, now)
        if len(found) < CHANGES_AT_ONCE:
            return False
        self._noticed[group, topic] = found[-1]
        return True

    def leave_out(self, assigned: AssignedPartition, now: float) -> None:
        """Settle messages in doubt that the consumer's filter leaves out, many at once: they need not wait until they
        could be dispatched alone."""
        for _ in range(READS_AT_ONCE):
            offsets = assigned.unfiltered_in_doubt(LEFT_OUT_AT_ONCE if assigned.weighed else FIRST_READ)
            if not offsets:
                return
            while offsets:
                ((found, count),) = load(self.alias, [Asked(assigned.ref, offsets, assigned.loadable)], self.server)
                offsets = offsets[count:]
                for offset, (row, message) in found.items():
                    if message is not None and not assigned.sieve.wants(message):
                        assigned.load(offset, row, message, now)

    def load_due(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> None:
        """Load the rows of partitions that are due, with their messages."""
        due_rows = ((assigned, assigned.due_rows(now, assigned.options.batch_size)) for assigned in assigned_partitions)
        self._load([(assigned, offsets) for assigned, offsets in due_rows if offsets], now)

    def load(self, assigned: AssignedPartition, offsets: Sequence[int], now: float) -> None:
        """Load these rows of a partition, with their messages."""
        self._load([(assigned, offsets)], now)

    def _load(self, rows: Sequence[tuple[AssignedPartition, Sequence[int]]], now: float) -> None:
        rows = [(assigned, some if assigned.weighed else some[:FIRST_READ]) for assigned, some in rows]
        asked = [Asked(assigned.ref, offsets, assigned.loadable) for assigned, offsets in rows]
        for (assigned, offsets), (found, count) in zip(rows, load(self.alias, asked, self.server)):
            for offset in offsets[:count]:
                row, message = found.get(offset, (None, None))
                assigned.load(offset, row, message, now)


def _light(assigned: AssignedPartition, read: Read) -> Read:
    """Return a read limited to few messages while it is not known how large the partition's messages are."""
    return read if assigned.weighed else read._replace(limit=min(read.limit, FIRST_READ))
