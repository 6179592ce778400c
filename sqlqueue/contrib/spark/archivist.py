"""The archivist: one process that owns all partitions of a topic in the archive group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from django.db import Error
from django.db.models import Count, F, Max, Sum

from sqlqueue.conf import settings
from sqlqueue.contrib.spark.manifest import MESSAGES, RECEIPTS
from sqlqueue.contrib.spark.models import ArchiveSegment, ArchiveSegmentQuerySet
from sqlqueue.contrib.spark.whole_topic import Holders, RenewalLoop, take_all
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError, LeaseLost
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.acquire import AcquiredPartition
from sqlqueue.log import fence, groups
from sqlqueue.models import Message, Receipt, Topic

logger = logging.getLogger("sqlqueue")

T = TypeVar("T")

GROUP = "archive"


class OffsetRange(NamedTuple):
    """Offsets of messages, or ids of receipts, from `first` to `last` inclusive."""

    first: int
    last: int


class Archivist:
    """Holds a topic for the archive group; `archivist()` makes one. Only its own thread may use it."""

    def __init__(self, log: Log, topic: Topic, name: str, horizon: Horizon, taken: list[AcquiredPartition]) -> None:
        self.log, self.topic, self.name = log, topic.name, name
        self.identity = identity_of(topic)
        self._horizon = horizon
        self._partitions = taken

    @property
    def token(self) -> int:
        """The highest fencing token of the topic's leases: each later owner has a higher one."""
        return max(partition.token for partition in self._partitions)

    def next_range(self, kind: str, most: int, receipts_to: int) -> OffsetRange | None:
        """Return the range to archive next, at most `most` rows; None if there is nothing.

        Of messages never anything above the horizon, of receipts nothing above the id `receipts_to`. It begins right
        behind the last segment, so that segments leave no gap, unless messages behind that were collected: the offset
        of the last one of these is in no segment.
        """
        up_to = self._horizon.value if kind == MESSAGES else receipts_to
        frontier = self._segments.frontier(self.topic, kind)
        if up_to <= frontier:
            return None
        rows = _rows(self.log, self.topic, kind, frontier + 1, up_to).order_by("number")
        lowest = rows.values_list("number", flat=True).first()
        if lowest is None:
            return None
        first = frontier + 1
        if lost := self.lost_to(kind):
            first, up_to = lowest, min(up_to, lost - 1) if lowest < lost else up_to
        full = list(rows.filter(number__lte=up_to).values_list("number", flat=True)[most - 1 : most])
        return OffsetRange(first, full[0] if full else up_to)

    def lost_to(self, kind: str) -> int:
        """Return the highest offset of a message that was collected behind the last segment, while the topic had no
        archive group. 0: there is none."""
        frontier = self._segments.frontier(self.topic, kind) if kind == MESSAGES else 0
        if not frontier:
            return 0
        topics = Topic.objects.using(self.log.alias)
        collected_to = topics.values_list("collected_to", flat=True).get(name=self.topic)
        return collected_to if collected_to > frontier else 0

    def held_in(self, kind: str, first: int, last: int) -> tuple[int, int]:
        """Return how many rows the database holds in a range, and the sum of their offsets (ids)."""
        found = _rows(self.log, self.topic, kind, first, last).aggregate(rows=Count("*"), total=Sum("number"))
        return found["rows"], int(found["total"] or 0)

    def segments(self, kind: str) -> list[ArchiveSegment]:
        """Return the topic's segments that count, oldest first."""
        retries.close_lost_connections()  # the last ones' reading may have taken longer than an idle one lasts
        return list(self._segments.of(self.topic, kind))

    def ends(self) -> list[ArchiveSegment]:
        """Return the last segment of each topic and kind."""
        return self._segments.ends()

    def logs(self) -> set[str]:
        """Return the identities of all logs of this database, see identity_of()."""
        return {identity_of(topic) for topic in Topic.objects.using(self.log.alias)}

    def as_owner(self, action: Callable[[], T], to: int = 0) -> T:
        """Move the archive group's watermarks up to offset `to`, and call `action`, in one transaction that is fenced
        by the token of every partition.

        The fence comes first: while the offset rows are locked no other process can acquire the leases, and no former
        owner can move files or commit a segment. `action` may be called twice: the transaction is run again after a
        deadlock. Raises LeaseLost, and does not call it, if a token is stale.
        """
        return retries.run(self.log, self._fenced, action, to)

    def commit(
        self, kind: str, first: int, last: int, move_files: Callable[[], None], **columns: Any
    ) -> ArchiveSegment:
        """Make a segment count: as the owner, call `move_files`, and add and return the segment's row.

        Only the owner moves files, and the messages that they hold cannot be collected before. If this fails after the
        move, the files have no row, and the next owner removes them. Raises LeaseLost if another process has taken
        over; then no file was moved.
        """
        retries.close_lost_connections()  # the segment's writing may have taken longer than an idle one lasts
        segment = ArchiveSegment(kind=kind, topic=self.topic, first_offset=first, last_offset=last, **columns)

        def add() -> None:
            move_files()
            segment.pk = None
            segment.save(using=self.log.alias, force_insert=True)

        self.as_owner(add, last if kind == MESSAGES else 0)
        return segment

    def _fenced(self, action: Callable[[], T], to: int) -> T:
        for partition in sorted(self._partitions, key=lambda partition: partition.id):
            if not fence.advance(self.log, partition, to, to, to):
                raise LeaseLost("another process archives this topic now: what this one was doing has changed nothing")
        return action()

    @property
    def _segments(self) -> ArchiveSegmentQuerySet:
        return ArchiveSegment.objects.using(self.log.alias)


def identity_of(topic: Topic) -> str:
    """Return a text that identifies a topic's log, also among those of other databases."""
    return f"{topic.name} since {topic.created_at.isoformat()}"


@contextmanager
def archivist(
    log: Log, topic: str, *, timeout: float, group: str = GROUP, say: Callable[[str], None] = lambda line: None
) -> Iterator[Archivist]:
    """Register the archive group for a topic and hold all of its partitions while the body runs.

    What is published from then on is collected only once it is archived. timeout: seconds to wait for an archivist
    that holds the topic, and for transactions that publish; one that was killed holds it until its leases expire.
    Raises ConfigurationError for an unknown topic and for a dead-letter topic; LeaseLost after the timeout;
    HorizonUnknown if a publishing transaction stays open that long.
    """
    if topic.endswith(DEAD_LETTER_SUFFIX):
        raise ConfigurationError(
            f"{topic!r} holds dead letters: they are kept until an operator replays or discards them"
        )
    options = Topic.objects.using(log.alias).filter(name=topic).first()
    if options is None:
        raise ConfigurationError(f"there is no topic {topic!r}: nothing was ever published to it")
    groups.register(log, group, topic)
    server = ServerIdentity(log)
    horizon = Horizon(log, server)
    deadline = time.monotonic() + timeout
    horizon.wait(timeout)
    name = heartbeat.subscriber_name()
    # A segment may take longer than a lease lasts; that they are lost shows at the commit.
    times = settings.HEARTBEAT_INTERVAL, settings.LEASE_DURATION
    renewing = RenewalLoop(log, name, [(group, topic)], *times, _not_renewed)
    renewing.start()
    try:
        release.shorten_stale(log, settings.LEASE_DURATION)  # there may be no consumer process that does it
        taken = take_all(
            log,
            name,
            group,
            topic,
            priorities=options.priorities,
            horizon=horizon.value,
            server=server,
            deadline=deadline,
            refused=lambda others: LeaseLost(
                f"topic {topic!r} is being archived by {_holders(others)}: let it end, or wait longer"
            ),
            waiting=lambda others: say(f"{topic}: waiting for {_holders(others) or 'its partitions'}"),
        )
        yield Archivist(log, options, name, horizon, taken)
    finally:
        renewing.leave()


def _not_renewed(error: Error) -> None:
    logger.warning(logfmt("archive_heartbeat_failed", error=error))


def _holders(others: Holders) -> str:
    return ", ".join(filter(None, sorted(set(others.values()))))


def waiting(log: Log, topic: str, kind: str, receipts_to: int) -> int:
    """Return how many rows of a topic wait for the archive, without holding it."""
    up_to = highest_offset(log) if kind == MESSAGES else receipts_to
    return _rows(log, topic, kind, ArchiveSegment.objects.using(log.alias).frontier(topic, kind) + 1, up_to).count()


def newest_receipts(log: Log, topics: Iterable[str], lag: float) -> dict[str, int]:
    """Return, by topic, the id of the newest receipt that is at least `lag` seconds old; of those topics only that have
    one behind their last segment. One statement for all topics, for no index knows them: the primary key's end.

    A receipt's id is taken before its settle commits, and no gate tells when: the lag must be longer than a settle.
    """
    frontiers = {topic: ArchiveSegment.objects.using(log.alias).frontier(topic, RECEIPTS) for topic in topics}
    lowest = min(frontiers.values(), default=0)
    old = Receipt.objects.using(log.alias).filter(
        id__gt=lowest, finished_at__lte=DatabaseNow() - timedelta(seconds=lag)
    )
    newest = old.order_by().values_list("topic").annotate(newest=Max("id"))
    return {topic: id for topic, id in newest if id > frontiers.get(topic, id)}


def _rows(log: Log, topic: str, kind: str, first: int, last: int):  # type: ignore[no-untyped-def]
    """Return a topic's rows in a range, their offsets or ids as `number`."""
    rows = Message.objects if kind == MESSAGES else Receipt.objects
    key = "offset" if kind == MESSAGES else "id"
    found = rows.using(log.alias).filter(topic=topic, **{f"{key}__gte": first, f"{key}__lte": last})
    return found.annotate(number=F(key)).values("number")
