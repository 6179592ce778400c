"""The archive's verbs: which range comes next, what the log holds of it, and the transaction that makes a segment
count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NamedTuple, TypeVar

from django.db.models import Count, F, Max, Sum

from sqlqueue.database import faults
from sqlqueue.database.dialects import execute
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.exceptions import LeaseLost
from sqlqueue.models import ArchiveSegment, Message, Receipt
from sqlqueue.models.archive_segment import MESSAGES, RECEIPTS

T = TypeVar("T")

# Everything up to the segment's end is settled for the archive group. Index: the primary key.
PASS = """
    UPDATE sqlqueue_offset SET position = {greatest}(position, %s), claimed_to = {greatest}(claimed_to, %s),
    offset_acked = {greatest}(offset_acked, %s), updated_at = {now} WHERE id = %s AND fencing_token = %s
"""


class Range(NamedTuple):
    """Offsets of messages (ids of receipts) from `first` to `last`, both in it."""

    first: int
    last: int


class Held(NamedTuple):
    """A stream's offset row and the fencing token that its owner holds."""

    id: int
    token: int


def next_range(alias: str, topic: str, kind: str, up_to: int, most: int) -> Range | None:
    """Return the range behind the topic's last segment that has at most `most` rows and ends at `up_to` at the latest;
    None if nothing of the topic is there.

    It begins right behind the last one, so that segments leave no gap.
    """
    frontier = ArchiveSegment.objects.using(alias).frontier(topic, kind)
    if up_to <= frontier:
        return None
    places = _places(alias, topic, kind, Range(frontier + 1, up_to))
    if not places.exists():
        return None
    full = list(places.order_by("place").values_list("place", flat=True)[most - 1 : most])
    return Range(frontier + 1, full[0] if full else up_to)


def held_in(alias: str, topic: str, kind: str, within: Range) -> tuple[int, int]:
    """Return how many rows of a topic the database holds in a range, and the sum of their offsets (ids)."""
    found = _places(alias, topic, kind, within).aggregate(rows=Count("*"), total=Sum("place"))
    return found["rows"], int(found["total"] or 0)


def newest_receipts(alias: str, topics: Iterable[str], lag: float) -> dict[str, int]:
    """Return, by topic, the id of the newest receipt that is at least `lag` seconds old; of those topics only that have
    one behind their last segment. One statement for all topics, for no index knows them: the primary key's end.

    A receipt's id is taken before its settle commits, and no gate tells when: the lag must be longer than a settle.
    """
    frontiers = {topic: ArchiveSegment.objects.using(alias).frontier(topic, RECEIPTS) for topic in topics}
    lowest = min(frontiers.values(), default=0)
    old = Receipt.objects.using(alias).filter(id__gt=lowest, finished_at__lte=DatabaseNow() - timedelta(seconds=lag))
    newest = old.order_by().values_list("topic").annotate(newest=Max("id"))
    return {topic: id for topic, id in newest if id > frontiers.get(topic, id)}


def commit_segment(
    alias: str, segment: ArchiveSegment, streams: Iterable[Held], put_in_place: Callable[[], None]
) -> None:
    """Move the archive group's watermarks to the segment's end, let `put_in_place` move the files, and add the
    segment's row: all in one transaction, fenced by every stream's token.

    The fence comes first: while the offset rows are locked nobody can take the leases, so files are moved by their
    owner only, and before anybody can delete what they hold. `put_in_place` may be called twice (the transaction is run
    again after a deadlock). If this fails after the move, the files have no row, and the next owner sweeps them.
    Raises LeaseLost if a token is stale; nothing has changed then, and no file was moved.
    """
    faults.run(alias, _commit, alias, segment, sorted(streams), put_in_place)


def as_owner(alias: str, streams: Iterable[Held], action: Callable[[], T]) -> T:
    """Call `action` while nobody can take the leases, and while no former owner can move files or commit a segment.

    It may be called twice. Raises LeaseLost, and does not call it, if a token is stale.
    """
    return faults.run(alias, _as_owner, alias, sorted(streams), action)


def _commit(alias: str, segment: ArchiveSegment, streams: list[Held], put_in_place: Callable[[], None]) -> None:
    _fence(alias, streams, segment.last_offset if segment.kind == MESSAGES else 0)
    put_in_place()
    segment.pk = None
    segment.save(using=alias, force_insert=True)


def _as_owner(alias: str, streams: list[Held], action: Callable[[], T]) -> T:
    _fence(alias, streams, 0)
    return action()


def _fence(alias: str, streams: list[Held], to: int) -> None:
    for stream in streams:
        if execute(alias, PASS, (to, to, to, stream.id, stream.token)).rowcount != 1:
            raise LeaseLost("somebody else archives this topic now: what was being done changes nothing")


def _places(alias: str, topic: str, kind: str, within: Range):  # type: ignore[no-untyped-def]
    """Return a topic's rows in a range, their offsets or ids as `place`."""
    rows = Message.objects if kind == MESSAGES else Receipt.objects
    key = "offset" if kind == MESSAGES else "id"
    found = rows.using(alias).filter(topic=topic, **{f"{key}__gte": within.first, f"{key}__lte": within.last})
    return found.annotate(place=F(key)).values("place")
