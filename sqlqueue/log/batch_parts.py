"""How many members a batch has: counted in the transaction that adds them, or takes them away."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from django.db.models import F, QuerySet

from sqlqueue.core.membership import HEADER, batch_of
from sqlqueue.database.log import Log
from sqlqueue.models import BatchPart, Message, ScheduledMessage

MOST_PARTS = 1_000  # that a thread remembers

_remembered = threading.local()


class PartKey(NamedTuple):
    """What a member counts for: its batch, its topic, and the group that it is for ("": all)."""

    batch: str
    topic: str
    group: str


def add(log: Log, batch: str, topic: str, members: Mapping[str, int]) -> None:
    """Count members in, by the group that they are for ("": all), in the caller's transaction."""
    for group, count in members.items():
        _change(log, PartKey(batch, topic, group), added=count)


def change(log: Log, added: Mapping[PartKey, int] | None = None, replayed: Mapping[PartKey, int] | None = None) -> None:
    """Count members in, or, if negative, out; and dead letters that are delivered again. In the caller's
    transaction."""
    for part_key, count in sorted((added or {}).items()):
        _change(log, part_key, added=count)
    for part_key, count in sorted((replayed or {}).items()):
        _change(log, part_key, replayed=count)


def members(rows: QuerySet[Any]) -> dict[int, str]:
    """Return the batches of those of these messages, of the log or the schedule, that belong to one."""
    found = rows.filter(headers__has_key=HEADER).values_list("pk", "headers")
    return {number: batch for number, headers in found if (batch := batch_of(headers))}


def in_log(log: Log, offsets: Collection[int]) -> dict[int, str]:
    """Return the batches of these messages, by offset, as far as they belong to one. One statement."""
    return members(Message.objects.using(log.alias).filter(offset__in=list(offsets)).order_by()) if offsets else {}


def lock_scheduled(log: Log, numbers: Collection[int]) -> Counter[PartKey]:
    """Lock those of these scheduled messages that belong to a batch, in the caller's transaction; return where they
    count. One statement, without locks if there are none."""
    rows = (
        ScheduledMessage.objects.using(log.alias).filter(pk__in=list(numbers), headers__has_key=HEADER).order_by("pk")
    )
    found = rows.select_for_update().values_list("topic", "target_group", "headers")
    return Counter(PartKey(batch, topic, group) for topic, group, headers in found if (batch := batch_of(headers)))


def take_out(log: Log, parts: Mapping[PartKey, int]) -> None:
    """Count members out that will never be in the log, in the caller's transaction."""
    change(log, {part_key: -count for part_key, count in parts.items()})


def _change(log: Log, part_key: PartKey, **counts: int) -> None:
    """Add to the row of this thread, which no other thread writes; insert it if it is not there, or was rolled back."""
    if not any(counts.values()):
        return
    parts: dict[tuple[Log, PartKey], int] = _remembered.__dict__.setdefault("parts", {})
    rows, columns = BatchPart.objects.using(log.alias), {"batch": part_key.batch, "topic": part_key.topic}
    if (part := parts.get((log, part_key))) is not None:
        row = rows.filter(part=part, target_group=part_key.group, **columns)
        if row.update(**{name: F(name) + count for name, count in counts.items()}):
            return
    if len(parts) >= MOST_PARTS:
        parts.clear()
    part = parts[log, part_key] = secrets.randbits(62)
    rows.create(part=part, target_group=part_key.group, **columns, **counts)
