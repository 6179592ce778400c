"""Acquire: take free and expired leases, and recover what their last owner had in hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlqueue.core.plan import StoredRow
from sqlqueue.core.stream import Address
from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.models import Offset

AT_ONCE = 64  # partitions in one transaction
ROWS_AT_ONCE = 10_000

# Who holds what of a group? Index: the unique (topic, group, partition).
LEASES = """
    SELECT "partition", holder, (holder = '' OR valid_until <= {now}) FROM sqlqueue_partition_lease
    WHERE topic = %s AND consumer_group = %s ORDER BY "partition"
"""
TAKE = """
    SELECT id, "partition", fencing_token FROM sqlqueue_partition_lease WHERE topic = %s AND consumer_group = %s
    AND "partition" IN ({marks}) AND (holder = '' OR holder = %s OR valid_until <= {now})
    ORDER BY "partition"{skip}
"""
HOLD = """
    UPDATE sqlqueue_partition_lease SET holder = %s, fencing_token = fencing_token + 1, valid_until = {later}
    WHERE id IN ({marks})
"""
# What may the last owner have handed out and not settled? A plain SELECT: an INSERT … SELECT would, at REPEATABLE READ,
# wait for open publishers and lock the log's end. Index: the log's (topic, partition, priority, offset); the states'
# unique key.
HANDED = """
    SELECT m."offset" FROM sqlqueue_message m{by_stream}
    WHERE m.topic = %s AND m."partition" = %s AND m.priority = %s AND m."offset" > %s AND m."offset" <= %s
    AND m.target_group IN ('', %s) AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = m.topic
    AND s.consumer_group = %s AND s."partition" = m."partition" AND s.priority = m.priority
    AND s.message_offset = m."offset") ORDER BY m."offset" LIMIT %s
"""
# It is a suspect from now on.
SUSPECT = """
    INSERT INTO sqlqueue_delivery_state
    (topic, consumer_group, "partition", priority, message_offset, acked, in_flight, retry_count) VALUES
"""
# The rows of a stream that are remembered, with their messages' keys. Index: the states' unique key; the log's primary
# key.
ROWS = """
    SELECT s.message_offset, s.acked, s.in_flight, s.retry_count, {remaining}, m.partition_key
    FROM sqlqueue_delivery_state s LEFT JOIN sqlqueue_message m ON m."offset" = s.message_offset
    WHERE s.topic = %s AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s
    AND s.message_offset > %s ORDER BY s.message_offset LIMIT %s
"""


@dataclass(slots=True)
class Taken:
    """A stream as its new owner finds it."""

    address: Address
    id: int
    token: int
    position: int
    watermark: int
    claimed: int
    rows: list[StoredRow] = field(default_factory=list)


def leases(alias: str, group: str, topic: str) -> list[tuple[int, str, bool]]:
    """Return (partition, holder, whether it is free or expired) of every lease of a group."""
    rows = execute(alias, LEASES, (topic, group)).fetchall()
    return [(partition, holder, bool(free)) for partition, holder, free in rows]


def acquire(
    alias: str,
    subscriber: str,
    group: str,
    topic: str,
    partitions: Sequence[int],
    *,
    priorities: int,
    lease_duration: float,
    horizon: int,
) -> list[Taken]:
    """Take those of the partitions that are free or expired; return their streams, one for each priority.

    One that is the subscriber's own is taken again: an earlier call has committed, and its answer was lost.
    `horizon` must have been known before this call: the position may move up to it, once what lies between has a row.
    """
    taken: list[Taken] = []
    for start in range(0, len(partitions), AT_ONCE):
        some = list(partitions[start : start + AT_ONCE])
        taken += faults.run(alias, _acquire, alias, subscriber, group, topic, some, priorities, lease_duration, horizon)
    return taken


def _acquire(
    alias: str,
    subscriber: str,
    group: str,
    topic: str,
    partitions: list[int],
    priorities: int,
    lease_duration: float,
    horizon: int,
) -> list[Taken]:
    start = _start(alias, group, topic)
    if start is None:  # removed while it was served: its leases are kept for their tokens only
        return []
    text = TAKE.replace("{marks}", _marks(partitions))
    leased = execute(alias, text, (topic, group, *partitions, subscriber)).fetchall()
    found, busy = _lock_offset_rows(alias, group, topic, [partition for _, partition, _ in leased])
    leased = [lease for lease in leased if lease[1] not in busy]
    if not leased:
        return []
    text = HOLD.replace("{marks}", _marks(leased))
    execute(alias, text, (subscriber, round(lease_duration * 1_000_000), *(id for id, _, _ in leased)))
    tokens = {partition: token + 1 for _, partition, token in leased}
    taken: list[Taken] = []
    for offset in _with_missing_rows(alias, group, topic, tokens, priorities, start, found):
        taken.append(_recover(alias, offset, tokens[offset.partition], horizon))
    return taken


def _start(alias: str, group: str, topic: str) -> int | None:
    """Return where a group began; None if it is not registered. Locks it in share mode: its removal waits."""
    text = (
        "SELECT start FROM sqlqueue_consumer_group WHERE topic = %s AND consumer_group = %s{share}"  # the unique index
    )
    row = execute(alias, text, (topic, group)).fetchone()
    return row[0] if row else None


def _lock_offset_rows(alias: str, group: str, topic: str, partitions: list[int]) -> tuple[list[Offset], set[int]]:
    """Lock the offset rows of these partitions; return them, and the partitions of which somebody else has locked one.

    Never waits: the former owner is about to commit, or its host fell silent while it was, and then the server may keep
    its transaction for hours. The unlocked read comes second, so that no snapshot is older than the locks.
    """
    mine = Offset.objects.using(alias).filter(topic=topic, consumer_group=group, partition__in=partitions)
    found = list(mine.select_for_update(skip_locked=True).order_by("partition", "priority"))
    locked = {offset.id for offset in found}
    busy = {partition for id, partition in mine.values_list("id", "partition") if id not in locked}
    return [offset for offset in found if offset.partition not in busy], busy


def _with_missing_rows(
    alias: str, group: str, topic: str, tokens: dict[int, int], priorities: int, start: int, found: list[Offset]
) -> list[Offset]:
    """Return the offset rows of these partitions, locked; those that are missing begin at the group's start."""
    offsets = Offset.objects.using(alias)
    mine = offsets.filter(topic=topic, consumer_group=group, partition__in=list(tokens)).order_by(
        "partition", "priority"
    )
    known: dict[int, set[int]] = defaultdict(set)
    for offset in found:
        known[offset.partition].add(offset.priority)
    missing = [(p, q) for p in tokens for q in range(priorities) if q not in known[p]]
    if missing:
        offsets.bulk_create(
            [
                Offset(
                    topic=topic,
                    consumer_group=group,
                    partition=partition,
                    priority=priority,
                    position=start,
                    offset_acked=start,
                    claimed_to=start,
                    fencing_token=tokens[partition],
                )
                for partition, priority in missing
            ]
        )
        found = list(mine.select_for_update())
    return found


def _recover(alias: str, offset: Offset, token: int, horizon: int) -> Taken:
    address = Address(offset.consumer_group, offset.topic, offset.partition, offset.priority)
    position, claimed = offset.position, offset.claimed_to
    if claimed > position:
        _suspect(alias, address, position, claimed)
        position = max(position, min(claimed, horizon))
    rows = _rows(alias, address)
    unacked = [row.offset for row in rows if not row.acked and row.offset <= position]
    watermark = max(offset.offset_acked, min(unacked) - 1 if unacked else position)
    Offset.objects.using(alias).filter(id=offset.id).update(
        fencing_token=token, position=position, claimed_to=position, offset_acked=watermark
    )
    return Taken(address, offset.id, token, position, watermark, position, rows)


def _suspect(alias: str, address: Address, position: int, claimed: int) -> None:
    """Give every visible message in (position, claimed] that has no row one that is in flight."""
    size = dialect(alias).rows_of_one_insert
    stream = (address.topic, address.partition, address.priority)
    key = (address.topic, address.group, address.partition, address.priority)
    low, more = position, True
    while more:
        values = (*stream, low, claimed, address.group, address.group, size)
        found = [offset for (offset,) in execute(alias, HANDED, values).fetchall()]
        more = len(found) == size
        if found:
            low = found[-1]
            rows = ", ".join(["(%s, %s, %s, %s, %s, {false}, 1, 1)"] * len(found))
            execute(alias, SUSPECT + rows, [value for offset in found for value in (*key, offset)])


def _rows(alias: str, address: Address) -> list[StoredRow]:
    """Return every row of a stream, ascending; a bounded number with each statement."""
    text = ROWS.replace("{remaining}", dialect(alias).remaining("s.invisible_until"))
    key = (address.topic, address.group, address.partition, address.priority)
    rows: list[StoredRow] = []
    low, more = 0, True
    while more:
        found = execute(alias, text, (*key, low, ROWS_AT_ONCE)).fetchall()
        more = len(found) == ROWS_AT_ONCE
        for low, acked, in_flight, count, remaining, message_key in found:
            rows.append(StoredRow(low, bool(acked), in_flight, max(0, count), float(remaining), message_key or ""))
    return rows


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))
