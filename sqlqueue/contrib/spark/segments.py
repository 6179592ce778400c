"""The archive's operations: which range comes next, what the log holds of it, and the transaction that makes a segment
count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NamedTuple, TypeVar

from django.db.models import Count, F, Max, Sum

from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.contrib.spark.models.archive_segment import MESSAGES, RECEIPTS
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.exceptions import LeaseLost
from sqlqueue.log import fence
from sqlqueue.log.fence import Owner
from sqlqueue.models import Message, Receipt, Topic

T = TypeVar("T")


class OffsetRange(NamedTuple):
    """Offsets of messages, or ids of receipts, from `first` to `last` inclusive."""

    first: int
    last: int


def next_range(log: Log, topic: str, kind: str, up_to: int, most: int) -> OffsetRange | None:
    """Return the range behind the topic's last segment that has at most `most` rows and ends at `up_to` at the latest;
    None if the topic has no row there.

    It begins right behind the last segment, so that segments leave no gap, unless messages behind that were collected:
    the offset of the last one of these is in no segment.
    """
    frontier = ArchiveSegment.objects.using(log.alias).frontier(topic, kind)
    if up_to <= frontier:
        return None
    rows = _rows(log, topic, kind, OffsetRange(frontier + 1, up_to)).order_by("number")
    lowest = rows.values_list("number", flat=True).first()
    if lowest is None:
        return None
    first = frontier + 1
    if lost := lost_to(log, topic, kind, frontier):
        first, up_to = lowest, min(up_to, lost - 1) if lowest < lost else up_to
    full = list(rows.filter(number__lte=up_to).values_list("number", flat=True)[most - 1 : most])
    return OffsetRange(first, full[0] if full else up_to)


def lost_to(log: Log, topic: str, kind: str, frontier: int) -> int:
    """Return the highest offset of a message that was collected behind the last segment, whose end is `frontier`: while
    the topic had no archive group. 0: there is none."""
    if kind != MESSAGES or not frontier:
        return 0
    collected_to = Topic.objects.using(log.alias).values_list("collected_to", flat=True).get(name=topic)
    return collected_to if collected_to > frontier else 0


def held_in(log: Log, topic: str, kind: str, within: OffsetRange) -> tuple[int, int]:
    """Return how many rows of a topic the database holds in a range, and the sum of their offsets (ids)."""
    found = _rows(log, topic, kind, within).aggregate(rows=Count("*"), total=Sum("number"))
    return found["rows"], int(found["total"] or 0)


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


def commit_segment(
    log: Log, segment: ArchiveSegment, partitions: Iterable[Owner], move_files: Callable[[], None]
) -> None:
    """Move the archive group's watermarks to the segment's end, call `move_files`, and add the segment's row: in one
    transaction, fenced by the token of every partition.

    The fence comes first: while the offset rows are locked no other process can acquire the leases, so only the owner
    moves files, and the messages that they hold cannot be collected before. `move_files` may be called twice (the
    transaction is run again after a deadlock). If this fails after the move, the files have no row, and the next owner
    removes them. Raises LeaseLost if a token is stale; then nothing has changed, and no file was moved.
    """
    retries.run(log, _commit, log, segment, _in_order(partitions), move_files)


def as_owner(log: Log, partitions: Iterable[Owner], action: Callable[[], T]) -> T:
    """Call `action` while no other process can acquire the leases, and no former owner can move files or commit a
    segment.

    It may be called twice. Raises LeaseLost, and does not call it, if a token is stale.
    """
    return retries.run(log, _as_owner, log, _in_order(partitions), action)


def _commit(log: Log, segment: ArchiveSegment, partitions: list[Owner], move_files: Callable[[], None]) -> None:
    _fence(log, partitions, segment.last_offset if segment.kind == MESSAGES else 0)
    move_files()
    segment.pk = None
    segment.save(using=log.alias, force_insert=True)


def _as_owner(log: Log, partitions: list[Owner], action: Callable[[], T]) -> T:
    _fence(log, partitions, 0)
    return action()


def _in_order(partitions: Iterable[Owner]) -> list[Owner]:
    """Return the partitions in the order in which their rows are locked."""
    return sorted(partitions, key=lambda partition: partition.id)


def _fence(log: Log, partitions: list[Owner], to: int) -> None:
    """Lock the offset row of every partition, and settle everything up to this offset for the archive group. Raises
    LeaseLost if a token is stale."""
    for partition in partitions:
        if not fence.advance(log, partition, to, to, to):
            raise LeaseLost("another process archives this topic now: what this one was doing has changed nothing")


def _rows(log: Log, topic: str, kind: str, within: OffsetRange):  # type: ignore[no-untyped-def]
    """Return a topic's rows in a range, their offsets or ids as `number`."""
    rows = Message.objects if kind == MESSAGES else Receipt.objects
    key = "offset" if kind == MESSAGES else "id"
    found = rows.using(log.alias).filter(topic=topic, **{f"{key}__gte": within.first, f"{key}__lte": within.last})
    return found.annotate(number=F(key)).values("number")
