"""Redrive: a dead letter is delivered again, to the group that it died for, and to no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from django.db.models import Count, Max

from sqlqueue.conf import settings
from sqlqueue.core.bounds import checked_whole
from sqlqueue.core.keys import partition_of
from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.entry import LogRow
from sqlqueue.database.gate import insert_many
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.bell import ring_after_commit
from sqlqueue.log.groups import lock_topic, registered
from sqlqueue.log.topics import topic_info
from sqlqueue.models import Message, Topic
from sqlqueue.models.message import MessageQuerySet

AT_ONCE = 100
DISCARDED_AT_ONCE = 1_000
OFFSETS_AT_ONCE = 1_000  # that one statement names: a choice may name any number
MOST_AT_ALL = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead letters of a topic: of one group or all (""), of one fingerprint or any (""), at these offsets of the
    dead-letter topic or anywhere, above `after` and up to `through`; `groups`: only of these."""

    topic: str
    group: str = ""
    fingerprint: str = ""
    offsets: Sequence[int] | None = None
    through: int | None = None
    after: int = 0
    groups: Sequence[str] | None = None

    def letters(self, alias: str) -> Iterator[MessageQuerySet]:
        """Yield the queries of them, those of the lowest offsets first: each names a bounded number of offsets."""
        letters = Message.objects.using(alias).dead_letters(self.group, self.topic)
        if self.fingerprint:
            letters = letters.filter(fingerprint=self.fingerprint)
        if self.groups is not None:
            letters = letters.filter(failed_group__in=self.groups)
        if self.after:
            letters = letters.filter(offset__gt=self.after)
        if self.through is not None:
            letters = letters.filter(offset__lte=self.through)
        if self.offsets is None:
            yield letters
            return
        last = max(self.offsets, default=0) if self.through is None else self.through
        wanted = sorted({offset for offset in self.offsets if self.after < offset <= last})
        for start in range(0, len(wanted), OFFSETS_AT_ONCE):
            yield letters.filter(offset__in=wanted[start : start + OFFSETS_AT_ONCE])

    def extent(self, alias: str) -> tuple[int, int]:
        """Return how many there are, and where the last one stands (0: nowhere)."""
        found = [letters.aggregate(count=Count("offset"), last=Max("offset")) for letters in self.letters(alias)]
        return sum(some["count"] for some in found), max((some["last"] or 0 for some in found), default=0)

    def first(self, alias: str) -> int | None:
        """Return where the first one stands; None: there is none."""
        found = (letters.order_by("offset").values_list("offset", flat=True).first() for letters in self.letters(alias))
        return next((offset for offset in found if offset is not None), None)

    def deliverable(self, alias: str) -> Choice:
        """Return the same choice without the dead letters of groups that are no longer registered: as messages, they
        would reach no consumer, and collection would delete them."""
        return replace(self, groups=sorted(group for group, _ in registered(alias, [self.topic])))

    def undeliverable(self, alias: str) -> str:
        """Say which of its groups are registered no more; "" for none."""
        known = set(self.deliverable(alias).groups or ())
        if self.group in known:
            return ""
        groups = (letters.order_by().values_list("failed_group", flat=True) for letters in self.letters(alias))
        gone = {group for some in groups for group in some.distinct()} - known
        names = f"group {', '.join(sorted(gone))} of topic {self.topic}"
        return f"{names} is not registered any more: its dead letters stay" if gone else ""


class Redriven(NamedTuple):
    """A dead letter that was delivered again: where it stood, for which group, and its new partition and id."""

    offset: int
    group: str
    partition: int
    id: str


def redrive(
    topic: str,
    *,
    group: str = "",
    offsets: Iterable[int] | None = None,
    fingerprint: str = "",
    limit: int | None = None,
) -> int:
    """Deliver dead letters of a topic again, oldest first; return how many.

    group: only those of this group (else each goes back to its own); offsets: only these dead letters (their offsets in
    the dead-letter topic); fingerprint: only those that failed like this; limit: at most so many. Each becomes a fresh
    message at the log's end, for its group alone, and its dead letter is removed in the same transaction: none is lost,
    and none comes twice. Its attempts begin anew. What died for a group that is not registered any more is left.

    Raises ConfigurationError if `group` is not registered any more.
    """
    alias = settings.DATABASE
    limit = _limit(limit)
    if group and (gone := Choice(topic, group).undeliverable(alias)):
        raise ConfigurationError(gone)
    # What dies again meanwhile stands above this, and is left for another call.
    newest = Message.objects.using(alias).order_by("-offset").values_list("offset", flat=True).first() or 0
    chosen = Choice(topic, group, fingerprint, None if offsets is None else sorted(set(offsets)), newest)
    done = 0
    while limit is None or done < limit:
        most = AT_ONCE if limit is None else min(AT_ONCE, limit - done)
        moved = faults.run(alias, redrive_some, alias, chosen, most)
        if not moved:
            break
        done += len(moved)
        chosen = replace(chosen, after=moved[0].offset - 1)  # what is left below is another's
    return done


def discard(
    topic: str,
    *,
    group: str = "",
    offsets: Iterable[int] | None = None,
    fingerprint: str = "",
    through: int | None = None,
    limit: int | None = None,
) -> int:
    """Delete dead letters of a topic for good, oldest first; return how many. Selected as in redrive.

    through: only those up to this offset, for what is not to be discarded unseen; limit: at most so many.
    """
    alias = settings.DATABASE
    limit = _limit(limit)
    chosen = Choice(topic, group, fingerprint, None if offsets is None else sorted(set(offsets)), through)
    done = 0
    for letters in chosen.letters(alias):
        found = letters.order_by("offset").values_list("offset", flat=True)
        while some := list(found[: DISCARDED_AT_ONCE if limit is None else min(DISCARDED_AT_ONCE, limit - done)]):
            done += _delete(alias, some)
    return done


def _limit(given: int | None) -> int | None:
    return None if given is None else checked_whole(given, "limit", MOST_AT_ALL)


def _delete(alias: str, offsets: Sequence[int]) -> int:
    """Delete these messages and touch no others, which may be those of open transactions."""
    return int(execute(alias, dialect(alias).delete("sqlqueue_message", "offset", len(offsets)), offsets).rowcount)


def redrive_some(alias: str, choice: Choice, most: int) -> list[Redriven]:
    """Deliver at most so many of the chosen again, in the caller's transaction; none left: an empty list."""
    with suppress(Topic.DoesNotExist):  # then nothing has died in it
        lock_topic(alias, choice.topic)  # a group that is registered stays so until the commit
    chosen: list[Message] = []
    for letters in choice.deliverable(alias).letters(alias):
        # Locked rows are skipped: another redrive has them, or the settle that added them has yet to commit.
        free = letters.as_stored().select_for_update(skip_locked=True).order_by("offset")
        chosen += free[: most - len(chosen)]
        if len(chosen) == most:
            break
    if not chosen:
        return []
    topic = choice.topic
    info = topic_info(alias, topic)
    rows = [
        LogRow(
            topic,
            partition_of(letter.partition_key, info.partitions) if letter.partition_key else letter.partition,
            0,
            letter.partition_key,
            f"redrive:{letter.offset}",
            payload,
            headers,
            letter.failed_group,
        )
        for letter in chosen
        for payload, headers in (letter.to_copy(),)
    ]
    insert_many(alias, rows, may_repeat=False)
    _delete(alias, [letter.offset for letter in chosen])
    ring_after_commit(alias)
    return [Redriven(letter.offset, letter.failed_group, row.partition, row.id) for letter, row in zip(chosen, rows)]
