"""The archivist: one process that owns all partitions of a topic in the archive group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlqueue.conf import settings
from sqlqueue.contrib.spark import segments
from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.contrib.spark.models.archive_segment import MESSAGES
from sqlqueue.contrib.spark.segments import OffsetRange
from sqlqueue.contrib.spark.whole_topic import Holders, RenewalLoop, insist, take_all
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database import retries
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError, LeaseLost
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.acquire import AcquiredPartition
from sqlqueue.leases.renewal import Renewal
from sqlqueue.log import groups
from sqlqueue.models import Topic

T = TypeVar("T")

GROUP = "archive"


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

        Of messages never anything above the horizon, of receipts nothing above the id `receipts_to`.
        """
        up_to = self._horizon.value if kind == MESSAGES else receipts_to
        return segments.next_range(self.log, self.topic, kind, up_to, most)

    def held_in(self, kind: str, first: int, last: int) -> tuple[int, int]:
        """Return how many rows the database holds in a range, and the sum of their offsets (ids)."""
        return segments.held_in(self.log, self.topic, kind, OffsetRange(first, last))

    @staticmethod
    def waiting(log: Log, topic: str, kind: str, receipts_to: int) -> int:
        """Return how many rows of a topic wait for the archive, without holding it."""
        up_to = highest_offset(log) if kind == MESSAGES else receipts_to
        first = ArchiveSegment.objects.using(log.alias).frontier(topic, kind) + 1
        return segments.held_in(log, topic, kind, OffsetRange(first, up_to))[0] if up_to >= first else 0

    def segments(self, kind: str) -> list[ArchiveSegment]:
        """Return the topic's segments that count, oldest first."""
        retries.close_lost_connections()  # the last ones' reading may have taken longer than an idle one lasts
        return list(ArchiveSegment.objects.using(self.log.alias).of(self.topic, kind))

    def lost_to(self, kind: str) -> int:
        """Return up to where messages behind the last segment were collected, see segments.lost_to."""
        frontier = ArchiveSegment.objects.using(self.log.alias).frontier(self.topic, kind)
        return segments.lost_to(self.log, self.topic, kind, frontier)

    def ends(self) -> list[ArchiveSegment]:
        """Return the last segment of each topic and kind."""
        return ArchiveSegment.objects.using(self.log.alias).ends()

    def logs(self) -> set[str]:
        """Return the identities of all logs of this database, see identity_of()."""
        return {identity_of(topic) for topic in Topic.objects.using(self.log.alias)}

    def as_owner(self, action: Callable[[], T]) -> T:
        """Call `action` while no other process can own the topic, see segments.as_owner. Raises LeaseLost likewise."""
        return segments.as_owner(self.log, self._partitions, action)

    def commit(self, kind: str, first: int, last: int, move_files: Callable[[], None], **columns: Any) -> None:
        """Make a segment count, see segments.commit_segment. Raises LeaseLost if another process has taken over."""
        retries.close_lost_connections()  # the segment's writing may have taken longer than an idle one lasts
        segment = ArchiveSegment(kind=kind, topic=self.topic, first_offset=first, last_offset=last, **columns)
        segments.commit_segment(self.log, segment, self._partitions, move_files)


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
    horizon.wait(give_up=lambda: time.monotonic() > deadline)
    name = heartbeat.subscriber_name()
    # A segment may take longer than a lease lasts; that they are lost shows at the commit.
    renewal = Renewal(log, name, [(group, topic)], settings.LEASE_DURATION)
    renewing = RenewalLoop(renewal, settings.HEARTBEAT_INTERVAL, insist)
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
        renewing.stop()
        retries.close_lost_connections()
        release.free(log, name)
        heartbeat.leave(log, name)


def _holders(others: Holders) -> str:
    return ", ".join(filter(None, sorted(set(others.values()))))
