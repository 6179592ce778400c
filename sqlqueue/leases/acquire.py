"""Acquire: take free and expired leases, and recover what their last owner had in hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlqueue.core.blocked import StoredRange
from sqlqueue.core.plan import StoredRow
from sqlqueue.core.stream import Address
from sqlqueue.database import faults
from sqlqueue.database.chunks import insert_all
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.log.ranges import ranges
from sqlqueue.models import Offset

AT_ONCE = 200  # leases in one transaction
ROWS_AT_ONCE = 10_000

# Who holds what of a group? Index: the unique (topic, group, partition).
LEASES = """
    SELECT "partition", holder, (holder = '' OR valid_until <= {now}) FROM sqlqueue_partition_lease
    WHERE topic = %s AND consumer_group = %s ORDER BY "partition"
"""
# The ids of these leases. Index: the unique (topic, group, partition).
IDS = """
    SELECT id FROM sqlqueue_partition_lease WHERE topic = %s AND consumer_group = %s AND "partition" IN ({marks})
    ORDER BY "partition"
"""
# Those that are to be had now. Never waits, and locks nothing else. Index: the primary key.
TAKE = """
    SELECT id FROM sqlqueue_partition_lease{by_id} WHERE id IN ({marks})
    AND (holder = '' OR holder = %s OR valid_until <= {now}){skip}
"""
# Their offset rows, but for those that somebody else has locked: the former owner is about to commit, or its host fell
# silent while it was, and then the server may keep its transaction for hours. Index: the leases' primary key, the
# offsets' unique key.
LOCK_OFFSETS = """
    SELECT o.id FROM sqlqueue_partition_lease l{by_id} {then} sqlqueue_offset o
    ON o.topic = l.topic AND o.consumer_group = l.consumer_group AND o."partition" = l."partition"
    WHERE l.id IN ({marks}){skip}
"""
# Where their streams stand, and whether there is more to remember of one; a group that was removed while it was served
# has nothing here: its leases are kept for their tokens only. Index: the same, the groups' and the states' unique keys.
STANDING = """
    SELECT l.id, l.topic, l.consumer_group, l."partition", l.fencing_token, start,
    o.id, o.priority, o.position, o.offset_acked, o.claimed_to,
    EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = o.topic AND s.consumer_group = o.consumer_group
    AND s."partition" = o."partition" AND s.priority = o.priority)
    OR EXISTS (SELECT 1 FROM sqlqueue_blocked_range b WHERE b.topic = o.topic AND b.consumer_group = o.consumer_group
    AND b."partition" = o."partition" AND b.priority = o.priority)
    FROM sqlqueue_partition_lease l{by_id} {then} sqlqueue_consumer_group
    ON sqlqueue_consumer_group.topic = l.topic AND sqlqueue_consumer_group.consumer_group = l.consumer_group
    LEFT JOIN sqlqueue_offset o
    ON o.topic = l.topic AND o.consumer_group = l.consumer_group AND o."partition" = l."partition"
    WHERE l.id IN ({marks})
"""
HOLD = """
    UPDATE sqlqueue_partition_lease{by_id} SET holder = %s, fencing_token = fencing_token + 1, valid_until = {later}
    WHERE id IN ({marks})
"""
# The tokens of streams of which nothing is to be recovered. Index: the primary key; the leases' unique key.
TOKENS = """
    UPDATE sqlqueue_offset{by_id} SET offset_acked = position, claimed_to = position, fencing_token = (SELECT
    l.fencing_token FROM sqlqueue_partition_lease l WHERE l.topic = sqlqueue_offset.topic
    AND l.consumer_group = sqlqueue_offset.consumer_group AND l."partition" = sqlqueue_offset."partition")
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
SUSPECT = "(%s, %s, %s, %s, %s, {false}, 1, 1)"
ROW_COLUMNS = 'topic, consumer_group, "partition", priority, message_offset, acked, in_flight, retry_count'
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
    ranges: list[StoredRange] = field(default_factory=list)


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
    """Take those partitions of one group that are free or expired, see acquire_leases."""
    if not partitions:
        return []
    text = IDS.replace("{marks}", _marks(partitions))
    ids = [id for (id,) in execute(alias, text, (topic, group, *partitions)).fetchall()]
    return acquire_leases(alias, subscriber, ids, {(group, topic): priorities}, lease_duration, horizon)


def acquire_leases(
    alias: str,
    subscriber: str,
    ids: Sequence[int],
    priorities: Mapping[tuple[str, str], int],
    lease_duration: float,
    horizon: int,
) -> list[Taken]:
    """Take those leases, of any groups, that are free or expired; return their streams, one for each priority.

    One that is the subscriber's own is taken again: an earlier call has committed, and its answer was lost. A few
    statements for AT_ONCE leases; more only for streams whose last owner had something in hand, or remembered.
    `priorities`: how many each (group, topic) has. `horizon` must have been known before this call: the position may
    move up to it, once what lies between has a row.
    """
    taken: list[Taken] = []
    for start in range(0, len(ids), AT_ONCE):
        some = sorted(ids[start : start + AT_ONCE])
        taken += faults.run(alias, _acquire, alias, subscriber, some, priorities, lease_duration, horizon)
    return taken


def _acquire(
    alias: str,
    subscriber: str,
    wanted: list[int],
    priorities: Mapping[tuple[str, str], int],
    lease_duration: float,
    horizon: int,
) -> list[Taken]:
    # Locks come before the first plain read, so that no snapshot is older than they are. A group's removal waits for
    # them, or has been before them, and then the group is not found.
    free = [id for (id,) in execute(alias, TAKE.replace("{marks}", _marks(wanted)), (*wanted, subscriber)).fetchall()]
    if not free:
        return []
    locked = {id for (id,) in execute(alias, LOCK_OFFSETS.replace("{marks}", _marks(free)), free).fetchall()}
    leased = [lease for lease in _standing(alias, free) if all(offset.id in locked for offset in lease.offsets)]
    if not leased:
        return []
    text = HOLD.replace("{marks}", _marks(leased))
    execute(alias, text, (subscriber, round(lease_duration * 1_000_000), *(lease.id for lease in leased)))
    if _insert_missing(alias, leased, priorities):
        leased = _standing(alias, [lease.id for lease in leased])
    else:
        leased = [replace(lease, token=lease.token + 1) for lease in leased]
    taken: list[Taken] = []
    plain: list[Offset] = []
    for lease in leased:
        for offset in lease.offsets:
            if offset.id in lease.remembering or offset.claimed_to > offset.position:
                taken.append(_recover(alias, offset, lease.token, horizon))
            else:
                plain.append(offset)
                address = Address(offset.consumer_group, offset.topic, offset.partition, offset.priority)
                place = offset.position
                taken.append(Taken(address, offset.id, lease.token, place, place, place))
    if plain:
        execute(alias, TOKENS.replace("{marks}", _marks(plain)), [offset.id for offset in plain])
    return taken


@dataclass(slots=True)
class _Leased:
    """A lease with the offset rows that it has, and which of those have delivery states or blocked ranges."""

    id: int
    place: tuple[str, str]
    partition: int
    token: int
    start: int
    offsets: list[Offset] = field(default_factory=list)
    remembering: set[int] = field(default_factory=set)


def _standing(alias: str, ids: Sequence[int]) -> list[_Leased]:
    found: dict[int, _Leased] = {}
    for row in execute(alias, STANDING.replace("{marks}", _marks(ids)), ids).fetchall():
        id, topic, group, partition, token, start, offset_id, priority, position, acked, claimed, remembers = row
        lease = found.setdefault(id, _Leased(id, (group, topic), partition, token, start))
        if offset_id is not None:
            place = {"topic": topic, "consumer_group": group, "partition": partition, "priority": priority}
            marks = {"position": position, "offset_acked": acked, "claimed_to": claimed}
            lease.offsets.append(Offset(id=offset_id, **place, **marks))
            if remembers:
                lease.remembering.add(offset_id)
    return sorted(found.values(), key=lambda lease: lease.id)


def _insert_missing(alias: str, leased: Sequence[_Leased], priorities: Mapping[tuple[str, str], int]) -> bool:
    """Insert the offset rows that are missing: they begin at the group's start. Return whether there were any."""
    missing = [
        Offset(
            topic=lease.place[1],
            consumer_group=lease.place[0],
            partition=lease.partition,
            priority=priority,
            position=lease.start,
            offset_acked=lease.start,
            claimed_to=lease.start,
            fencing_token=lease.token + 1,
        )
        for lease in leased
        for priority in sorted(set(range(priorities[lease.place])) - {offset.priority for offset in lease.offsets})
    ]
    Offset.objects.using(alias).bulk_create(missing)
    return bool(missing)


def _recover(alias: str, offset: Offset, token: int, horizon: int) -> Taken:
    address = Address(offset.consumer_group, offset.topic, offset.partition, offset.priority)
    position, claimed = offset.position, offset.claimed_to
    if claimed > position:
        _suspect(alias, address, position, claimed)
        position = max(position, min(claimed, horizon))
    rows, blocked = _rows(alias, address), ranges(alias, address)
    unacked = [row.offset - 1 for row in rows if not row.acked and row.offset <= position]
    watermark = max(offset.offset_acked, min([position, *unacked, *(one.low for one in blocked)]))
    Offset.objects.using(alias).filter(id=offset.id).update(
        fencing_token=token, position=position, claimed_to=position, offset_acked=watermark
    )
    return Taken(address, offset.id, token, position, watermark, position, rows, blocked)


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
            rows = [(*key, offset) for offset in found]
            insert_all(alias, f"sqlqueue_delivery_state ({ROW_COLUMNS})", SUSPECT, "", rows, size)


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
