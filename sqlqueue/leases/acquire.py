"""Acquire: take free and expired leases, and recover what their last owner had in hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlqueue.core.plan import StoredRow
from sqlqueue.core.stream import ROWS_LIMIT, Address
from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.models import Offset

AT_ONCE = 64  # partitions in one transaction

# Who holds what of a group? Index: the unique (topic, group, partition).
LEASES = """
    SELECT "partition", holder, (holder = '' OR expires_at <= {now}) FROM sqlqueue_partition_lease
    WHERE topic = %s AND consumer_group = %s ORDER BY "partition"
"""
TAKE = """
    SELECT id, "partition", fencing_token FROM sqlqueue_partition_lease
    WHERE topic = %s AND consumer_group = %s AND "partition" IN ({marks}) AND (holder = '' OR expires_at <= {now})
    ORDER BY "partition"{skip}
"""
HOLD = """
    UPDATE sqlqueue_partition_lease SET holder = %s, fencing_token = fencing_token + 1, expires_at = {later}
    WHERE id IN ({marks})
"""
# What the last owner had handed out and not settled is a suspect from now on. Index: the log's (topic, partition, priority,
# offset); the states' unique key.
RECOVER = """
    INSERT INTO sqlqueue_delivery_state
    (topic, consumer_group, "partition", priority, message_offset, acked, in_flight, retry_count)
    SELECT m.topic, %s, m."partition", m.priority, m."offset", {false}, 1, 1 FROM sqlqueue_message m
    WHERE m.topic = %s AND m."partition" = %s AND m.priority = %s AND m."offset" > %s AND m."offset" <= %s
    AND m.target_group IN ('', %s) AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = m.topic
    AND s.consumer_group = %s AND s."partition" = m."partition" AND s.priority = m.priority
    AND s.message_offset = m."offset")
"""
# Every row of a stream that is remembered, with its message's key. Index: the states' unique key; the log's primary key.
ROWS = """
    SELECT s.message_offset, s.acked, s.in_flight, s.retry_count, {remaining}, m.partition_key
    FROM sqlqueue_delivery_state s LEFT JOIN sqlqueue_message m ON m."offset" = s.message_offset
    WHERE s.topic = %s AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s
    ORDER BY s.message_offset LIMIT %s
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
    """Return (partition, holder, whether it is to be had) of every lease of a group."""
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

    `horizon` must have been known before this call: the position may move up to it, once what lies between has a row.
    """
    taken: list[Taken] = []
    for start in range(0, len(partitions), AT_ONCE):
        some = list(partitions[start : start + AT_ONCE])
        taken += faults.run(
            alias, _acquire, alias, subscriber, group, topic, some, priorities, lease_duration, horizon
        )
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
    leased = execute(alias, text, (topic, group, *partitions)).fetchall()
    if not leased:
        return []
    text = HOLD.replace("{marks}", _marks(leased))
    execute(alias, text, (subscriber, round(lease_duration * 1_000_000), *(id for id, _, _ in leased)))
    tokens = {partition: token + 1 for _, partition, token in leased}
    taken: list[Taken] = []
    for offset in _offset_rows(alias, group, topic, tokens, priorities, start):
        taken.append(_recover(alias, offset, tokens[offset.partition], horizon))
    return taken


def _start(alias: str, group: str, topic: str) -> int | None:
    """Return where a group began; None if it is not registered. In share mode: its removal waits for this transaction."""
    text = "SELECT start FROM sqlqueue_consumer_group WHERE topic = %s AND consumer_group = %s{share}"  # the unique index
    row = execute(alias, text, (topic, group)).fetchone()
    return row[0] if row else None


def _offset_rows(
    alias: str, group: str, topic: str, tokens: dict[int, int], priorities: int, start: int
) -> list[Offset]:
    """Return the offset rows of these partitions, locked; those that are missing begin at the group's start."""
    offsets = Offset.objects.using(alias)
    mine = offsets.filter(topic=topic, consumer_group=group, partition__in=list(tokens)).order_by("partition", "priority")
    found = list(mine.select_for_update())
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
    stream = (address.topic, address.partition, address.priority)
    if claimed > position:
        execute(alias, RECOVER, (address.group, *stream, position, claimed, address.group, address.group))
        position = max(position, min(claimed, horizon))
    text = ROWS.replace("{remaining}", dialect(alias).remaining("s.invisible_until"))
    key = (address.topic, address.group, address.partition, address.priority)
    rows = [
        StoredRow(at, bool(acked), in_flight, count, float(remaining), key_ or "")
        for at, acked, in_flight, count, remaining, key_ in execute(alias, text, (*key, 3 * ROWS_LIMIT)).fetchall()
    ]
    unacked = [row.offset for row in rows if not row.acked and row.offset <= position]
    watermark = max(offset.offset_acked, min(unacked) - 1 if unacked else position)
    Offset.objects.using(alias).filter(id=offset.id).update(
        fencing_token=token, position=position, claimed_to=position, offset_acked=watermark
    )
    return Taken(address, offset.id, token, position, watermark, position, rows)


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))
