"""Replays dead letters: each is delivered again, only to the group in which it failed; or discards them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from django.db.models import Count, Max

from sqlqueue.core.bounds import checked_whole
from sqlqueue.core.keys import numbered, partition_of
from sqlqueue.core.outcomes import REPLAYED
from sqlqueue.database import retries
from sqlqueue.database.gate import insert_many
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import insert_all
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import withdrawing
from sqlqueue.log.groups import lock_topic, registered
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.placement import worked_on
from sqlqueue.log.settle import RECEIPT, RECEIPT_COLUMNS
from sqlqueue.log.topics import topic_info
from sqlqueue.models import Message, Topic
from sqlqueue.models.message import MessageQuerySet
from sqlqueue.twins import refuse_in_async

AT_ONCE = 100
DISCARDED_AT_ONCE = 1_000
OFFSETS_AT_ONCE = 1_000  # of one statement: a selection may name any number
HIGHEST_LIMIT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Selects dead letters of a topic: of one group or ("") of all, of one fingerprint or ("") any, at these offsets of
    the dead-letter topic or (None) any, above `after` and up to `through`; groups: only of these groups."""

    topic: str
    group: str = ""
    fingerprint: str = ""
    offsets: Sequence[int] | None = None
    through: int | None = None
    after: int = 0
    groups: Sequence[str] | None = None

    def querysets(self, log: Log) -> Iterator[MessageQuerySet]:
        """Yield querysets of them, lowest offsets first; each names a bounded number of offsets."""
        rows = Message.objects.using(log.alias).dead_letters(self.group, self.topic)
        if self.fingerprint:
            rows = rows.filter(fingerprint=self.fingerprint)
        if self.groups is not None:
            rows = rows.filter(failed_group__in=self.groups)
        if self.after:
            rows = rows.filter(offset__gt=self.after)
        if self.through is not None:
            rows = rows.filter(offset__lte=self.through)
        if self.offsets is None:
            yield rows
            return
        last = max(self.offsets, default=0) if self.through is None else self.through
        wanted = sorted({offset for offset in self.offsets if self.after < offset <= last})
        for start in range(0, len(wanted), OFFSETS_AT_ONCE):
            yield rows.filter(offset__in=wanted[start : start + OFFSETS_AT_ONCE])

    def extent(self, log: Log) -> tuple[int, int]:
        """Return how many there are, and the offset of the last one (0 if there is none)."""
        found = [rows.aggregate(count=Count("offset"), last=Max("offset")) for rows in self.querysets(log)]
        return sum(some["count"] for some in found), max((some["last"] or 0 for some in found), default=0)

    def first(self, log: Log) -> int | None:
        """Return the offset of the first one; None if there is none."""
        found = (rows.order_by("offset").values_list("offset", flat=True).first() for rows in self.querysets(log))
        return next((offset for offset in found if offset is not None), None)

    def deliverable(self, log: Log) -> DeadLetterSelection:
        """Return this selection without the dead letters of groups that are no longer registered: replayed, they would
        reach no consumer, and collection would delete them."""
        return replace(self, groups=sorted(group for group, _ in registered(log, [self.topic])))

    def undeliverable(self, log: Log) -> str:
        """Return a text that names the groups of it that are not registered any more; "" if all are."""
        known = set(self.deliverable(log).groups or ())
        if self.group in known:
            return ""
        groups = (rows.order_by().values_list("failed_group", flat=True) for rows in self.querysets(log))
        gone = {group for some in groups for group in some.distinct()} - known
        names = f"group {', '.join(sorted(gone))} of topic {self.topic}"
        return f"{names} is not registered any more: its dead letters stay" if gone else ""


class Replayed(NamedTuple):
    """A dead letter that was replayed: its offset, group and key, and the new message's id."""

    offset: int
    group: str
    key: str
    id: str


def replay(
    topic: str,
    *,
    group: str = "",
    offsets: Iterable[int] | None = None,
    fingerprint: str = "",
    limit: int | None = None,
    database: str = "",
) -> int:
    """Deliver dead letters of a topic again, oldest first, each to its group alone; return how many.

    group: only those of this group
    offsets: only these, by their offsets in the dead-letter topic
    fingerprint: only those that failed like this
    limit: at most so many
    database: only those of this one

    A dead letter is deleted in the transaction that publishes its message. Those of groups that are not registered
    stay.

    Raises ConfigurationError if `group` is not registered.
    """
    refuse_in_async("replay", "await sync_to_async(replay)(…)")
    limit = _limit(limit)
    done = 0
    for log in worked_on(topic, database, offsets):
        left = None if limit is None else limit - done
        done += _replay(log, topic, group, offsets, fingerprint, left)
    return done


def _replay(
    log: Log, topic: str, group: str, offsets: Iterable[int] | None, fingerprint: str, limit: int | None
) -> int:
    if group and (gone := DeadLetterSelection(topic, group).undeliverable(log)):
        raise ConfigurationError(gone)
    # A message that becomes a dead letter again meanwhile is above this, and left for another call.
    newest = Message.objects.using(log.alias).order_by("-offset").values_list("offset", flat=True).first() or 0
    chosen = DeadLetterSelection(topic, group, fingerprint, None if offsets is None else sorted(set(offsets)), newest)
    done = 0
    while limit is None or done < limit:
        most = AT_ONCE if limit is None else min(AT_ONCE, limit - done)
        moved = retries.run(log, replay_some, log, chosen, most)
        if not moved:
            break
        done += len(moved)
        chosen = replace(chosen, after=moved[0].offset - 1)  # another transaction has what is left below
    return done


def discard(
    topic: str,
    *,
    group: str = "",
    offsets: Iterable[int] | None = None,
    fingerprint: str = "",
    through: int | None = None,
    limit: int | None = None,
    database: str = "",
) -> int:
    """Delete dead letters of a topic for good, oldest first; return how many. Selected as in replay.

    through: only those up to this offset, so that none is discarded unseen; limit: at most so many.
    """
    refuse_in_async("discard", "await sync_to_async(discard)(…)")
    limit = _limit(limit)
    of_one = offsets if offsets is not None else None if through is None else [through]
    chosen = DeadLetterSelection(topic, group, fingerprint, None if offsets is None else sorted(set(offsets)), through)
    done = 0
    for log in worked_on(topic, database, of_one):
        for rows in chosen.querysets(log):
            found = rows.order_by("offset").values_list("offset", flat=True)
            while some := list(found[: DISCARDED_AT_ONCE if limit is None else min(DISCARDED_AT_ONCE, limit - done)]):
                done += _delete(log, some)
    return done


def _limit(given: int | None) -> int | None:
    return None if given is None else checked_whole(given, "limit", HIGHEST_LIMIT)


def _delete(log: Log, offsets: Sequence[int]) -> int:
    """Delete these messages and lock no others, which may belong to open transactions."""
    return int(log.execute(log.dialect.delete("sqlqueue_message", "offset", len(offsets)), offsets).rowcount)


def replay_some(log: Log, selection: DeadLetterSelection, most: int) -> list[Replayed]:
    """Replay at most `most` of the selected dead letters, in the caller's transaction; return [] if none is left."""
    with suppress(Topic.DoesNotExist):  # then it has no dead letters
        lock_topic(log, selection.topic)  # a group that is registered stays so until the commit
    chosen: list[Message] = []
    for rows in selection.deliverable(log).querysets(log):
        # Locked rows are skipped: another replay has them, or the settle that added them has yet to commit.
        free = rows.as_stored().select_for_update(skip_locked=True).order_by("offset")
        chosen += free[: most - len(chosen)]
        if len(chosen) == most:
            break
    if not chosen:
        return []
    topic = selection.topic
    info = topic_info(log, topic)
    copies = [
        LogRow(
            topic,
            partition_of(one.partition_key, info.partitions) if one.partition_key else one.partition,
            0,
            one.partition_key,
            copy_id(log, one.offset),
            payload,
            headers,
            one.failed_group,
        )
        for one in chosen
        for payload, headers in (one.to_copy(),)
    ]
    insert_many(log, copies)
    for group in sorted({one.failed_group for one in chosen}):
        withdrawing.give_back(log, topic, group, [one.offset for one in chosen if one.failed_group == group])
    _write_receipts(log, topic, chosen, [copy.id for copy in copies])
    _delete(log, [one.offset for one in chosen])
    notify_after_commit(log)
    return [Replayed(one.offset, one.failed_group, copy.key, copy.id) for one, copy in zip(chosen, copies)]


def copy_id(log: Log, dead_letter: int) -> str:
    """Return the id of the message that a dead letter is replayed as."""
    return f"replay:{numbered(dead_letter, log.label)}"


def _write_receipts(log: Log, topic: str, dead_letters: Sequence[Message], copies: Sequence[str]) -> None:
    """Write for each original which message it was replayed as, whatever the topic's history asks for: nothing else
    tells it once the dead letter is gone."""
    rows: list[tuple[object, ...]] = []
    for one, copy in zip(dead_letters, copies):
        ended = (one.partition, one.original_offset or 0, REPLAYED, one.failure_count or 0)
        rows.append((one.failed_group, topic, *ended, copy, one.offset, 0, 0))
    insert_all(log, f"sqlqueue_receipt ({RECEIPT_COLUMNS})", RECEIPT, "", rows, AT_ONCE)
