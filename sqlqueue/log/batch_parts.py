"""How many members a batch has: counted in the transaction that adds them, or takes them away, on the shard of that
transaction."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import F, QuerySet

from sqlqueue.core.membership import HEADER, batch_of
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.models import BatchPart, Message, RelayedMessage, ScheduledMessage

MOST_PARTS = 1_000  # that a thread remembers

_remembered = threading.local()


class PartKey(NamedTuple):
    """What a member counts for: its batch, its topic, the group that it is for ("": all), and the shard that it is
    relayed to ("": none)."""

    batch: str
    topic: str
    group: str
    shard: str = ""


def add(alias: str, batch: str, topic: str, members: Mapping[str, int]) -> None:
    """Count members in, by the group that they are for ("": all), in the caller's transaction."""
    for group, count in members.items():
        _change(alias, PartKey(batch, topic, group), added=count)


def change(
    alias: str, added: Mapping[PartKey, int] | None = None, replayed: Mapping[PartKey, int] | None = None
) -> None:
    """Count members in, or, if negative, out; and dead letters that are delivered again. In the caller's
    transaction."""
    for part_key, count in sorted((added or {}).items()):
        _change(alias, part_key, added=count)
    for part_key, count in sorted((replayed or {}).items()):
        _change(alias, part_key, replayed=count)


def of_rows(rows: Iterable[LogRow], shard: str = "") -> Counter[PartKey]:
    """Return where the members among these new messages count. shard: the one that they are relayed to."""
    return Counter(
        PartKey(batch, row.topic, row.target_group, shard) for row in rows if (batch := batch_of(row.headers))
    )


def name_shard(alias: str, batch: str, topic: str, shard: str) -> None:
    """Store on a shard which is known to have counts of a batch that another one may have some, too: before it has."""
    rows = BatchPart.objects.using(alias).filter(batch=batch, shard=shard)
    if not rows.exists():
        rows.create(batch=batch, part=-1 - secrets.randbits(62), topic=topic, shard=shard, added=1)


def add_arrived(alias: str, rows: Sequence[LogRow], created: Sequence[bool]) -> None:
    """Count what relayed messages are to their batches where they arrive, in the transaction that adds them: they were
    counted where they were published, so only those that were not created, for their id was taken, are taken out. A row
    that counts nothing tells operators' moves of groups that members of the topic are here."""
    here = of_rows(rows)
    if not here:
        return
    known = BatchPart.objects.using(alias).filter(batch__in={part_key.batch for part_key in here})
    pairs = set(known.values_list("batch", "topic"))
    for part_key in {PartKey(batch, topic, "") for batch, topic, *_ in here if (batch, topic) not in pairs}:
        known.create(batch=part_key.batch, part=secrets.randbits(62), topic=part_key.topic)
    take_out(alias, of_rows(row for row, was_created in zip(rows, created) if not was_created))


def members(rows: QuerySet[Any]) -> dict[int, str]:
    """Return the batches of those of these messages, of the log or the schedule, that belong to one."""
    found = rows.filter(headers__has_key=HEADER).values_list("pk", "headers")
    return {number: batch for number, headers in found if (batch := batch_of(headers))}


def in_log(alias: str, offsets: Collection[int]) -> dict[int, str]:
    """Return the batches of these messages, by offset, as far as they belong to one. One statement."""
    return members(Message.objects.using(alias).filter(offset__in=list(offsets)).order_by()) if offsets else {}


def lock_scheduled(alias: str, numbers: Collection[int]) -> Counter[PartKey]:
    """Lock those of these scheduled messages that belong to a batch, in the caller's transaction; return where they
    count. One statement, without locks if there are none."""
    rows = ScheduledMessage.objects.using(alias).filter(pk__in=list(numbers), headers__has_key=HEADER).order_by("pk")
    found = rows.select_for_update().values_list("topic", "target_group", "headers")
    return Counter(PartKey(batch, topic, group) for topic, group, headers in found if (batch := batch_of(headers)))


def lock_relayed(alias: str, numbers: Collection[int]) -> dict[int, PartKey]:
    """Lock those of these relayed messages that belong to a batch, in the caller's transaction; return where they
    count, by number. One statement, without locks if there are none."""
    rows = RelayedMessage.objects.using(alias).filter(pk__in=list(numbers), headers__contains=HEADER).order_by("pk")
    found = rows.select_for_update().values_list("pk", "topic", "target_group", "shard", "headers")
    return {
        number: PartKey(batch, topic, group, shard)
        for number, topic, group, shard, headers in found
        if (batch := batch_of(headers))
    }


def relay_scheduled(alias: str, numbers: Collection[int], shard: str) -> None:
    """Count scheduled messages that are about to be relayed where they go, in the caller's transaction."""
    parts = lock_scheduled(alias, numbers)
    change(alias, {part_key: -count for part_key, count in parts.items()})
    change(alias, {part_key._replace(shard=shard): count for part_key, count in parts.items()})


def take_out(alias: str, parts: Mapping[PartKey, int]) -> None:
    """Count members out that will never be in the log, in the caller's transaction."""
    change(alias, {part_key: -count for part_key, count in parts.items()})


def _change(alias: str, part_key: PartKey, **counts: int) -> None:
    """Add to the row of this thread, which no other thread writes; insert it if it is not there, or was rolled back."""
    if not any(counts.values()):
        return
    parts: dict[tuple[str, PartKey], int] = _remembered.__dict__.setdefault("parts", {})
    rows, columns = BatchPart.objects.using(alias), {"batch": part_key.batch, "topic": part_key.topic}
    if (part := parts.get((alias, part_key))) is not None:
        row = rows.filter(part=part, target_group=part_key.group, **columns)  # the part tells its shard
        if row.update(**{name: F(name) + count for name, count in counts.items()}):
            return
    if len(parts) >= MOST_PARTS:
        parts.clear()
    part = parts[alias, part_key] = secrets.randbits(62)
    rows.create(part=part, target_group=part_key.group, shard=part_key.shard, **columns, **counts)
