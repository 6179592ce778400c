"""Acquire: take free and expired leases, and recover what their last owner had in flight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlqueue.core.partition.blocked import StoredRange
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import StoredRow
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity, proof_condition
from sqlqueue.database.sizes import insert_all
from sqlqueue.log.layouts import may_start
from sqlqueue.models import ConsumerGroup, Offset
from sqlqueue.models.subscriber import WAITS

AT_ONCE = 200  # leases in one transaction
ROWS_AT_ONCE = 10_000

# A group's leases and their holders. Index: the unique (topic, group, partition).
LEASES = """
    SELECT "partition", holder FROM sqlqueue_partition_lease
    WHERE topic = %s AND consumer_group = %s ORDER BY "partition"
"""
# The ids of these leases. Index: the unique (topic, group, partition).
IDS = """
    SELECT id FROM sqlqueue_partition_lease WHERE topic = %s AND consumer_group = %s AND "partition" IN ({marks})
    ORDER BY "partition"
"""
# Locks those that can be taken now. Never waits, and locks nothing else. Index: the primary key.
TAKE = """
    SELECT id FROM sqlqueue_partition_lease{by_id} WHERE id IN ({marks})
    AND (holder = '' OR holder = %s OR valid_until <= {now}{waiting}){skip}
"""
OR_WAITING = f" OR holder = '{WAITS}'"
# The ranges of an assigned partition, in the order of their keys. Index: the unique (topic, group, partition, priority,
# key).
RANGES = """
    SELECT partition_key, low, high, messages FROM sqlqueue_blocked_range
    WHERE topic = %s AND consumer_group = %s AND "partition" = %s AND priority = %s AND partition_key > %s
    ORDER BY partition_key LIMIT %s
"""
# Their offset rows, except those that another transaction has locked: the former owner is about to commit, or its host
# was cut off while it was, and then the server may keep its transaction for hours. Index: the leases' primary key, the
# offsets' unique key.
LOCK_OFFSETS = """
    SELECT o.id FROM sqlqueue_partition_lease l{by_id} {then} sqlqueue_offset o
    ON o.topic = l.topic AND o.consumer_group = l.consumer_group AND o."partition" = l."partition"
    WHERE l.id IN ({marks}){skip}
"""
# Their offset rows, and whether one has delivery states or blocked ranges. A group that was removed while it was served
# has none: its leases are kept for their tokens only. And whether the topic has had several epochs. Index: the
# same, the groups', the states' and the layouts' keys.
OFFSETS = """
    SELECT l.id, l.topic, l.consumer_group, l."partition", l.fencing_token, start,
    o.id, o.priority, o.position, o.offset_acked, o.claimed_to,
    EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = o.topic AND s.consumer_group = o.consumer_group
    AND s."partition" = o."partition" AND s.priority = o.priority)
    OR EXISTS (SELECT 1 FROM sqlqueue_blocked_range b WHERE b.topic = o.topic AND b.consumer_group = o.consumer_group
    AND b."partition" = o."partition" AND b.priority = o.priority),
    EXISTS (SELECT 1 FROM sqlqueue_layout WHERE sqlqueue_layout.topic = l.topic AND base > 0)
    FROM sqlqueue_partition_lease l{by_id} {then} sqlqueue_consumer_group
    ON sqlqueue_consumer_group.topic = l.topic AND sqlqueue_consumer_group.consumer_group = l.consumer_group
    LEFT JOIN sqlqueue_offset o
    ON o.topic = l.topic AND o.consumer_group = l.consumer_group AND o."partition" = l."partition"
    WHERE l.id IN ({marks})
"""
# Lets leases that are locked wait. Index: the primary key.
WAIT = f"""
    UPDATE sqlqueue_partition_lease{{by_id}} SET holder = '{WAITS}', fencing_token = fencing_token + 1,
    valid_until = NULL WHERE id IN ({{marks}})
"""
HOLD = """
    UPDATE sqlqueue_partition_lease{by_id} SET holder = %s, fencing_token = fencing_token + 1, valid_until = {later}
    WHERE id IN ({marks}){proof}
"""
# Sets the tokens of partitions in which nothing is to be recovered. Index: the primary key; the leases' unique key.
TOKENS = """
    UPDATE sqlqueue_offset{by_id} SET offset_acked = position, claimed_to = position, fencing_token = (SELECT
    l.fencing_token FROM sqlqueue_partition_lease l WHERE l.topic = sqlqueue_offset.topic
    AND l.consumer_group = sqlqueue_offset.consumer_group AND l."partition" = sqlqueue_offset."partition")
    WHERE id IN ({marks})
"""
# What the last owner may have dispatched and not settled. A plain SELECT: an INSERT … SELECT would, at REPEATABLE READ,
# wait for open publishers and lock the log's end. Index: the log's (topic, partition, priority, offset); the states'
# unique key.
UNSETTLED = """
    SELECT m."offset" FROM sqlqueue_message m{by_stream}
    WHERE m.topic = %s AND m."partition" = %s AND m.priority = %s AND m."offset" > %s AND m."offset" <= %s
    AND m.target_group IN ('', %s) AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = m.topic
    AND s.consumer_group = %s AND s."partition" = m."partition" AND s.priority = m.priority
    AND s.message_offset = m."offset") ORDER BY m."offset" LIMIT %s
"""
# A row of a message in doubt.
IN_DOUBT = "(%s, %s, %s, %s, %s, {false}, 1, 1)"
ROW_COLUMNS = 'topic, consumer_group, "partition", priority, message_offset, acked, in_flight, retry_count'
# The delivery-state rows of an assigned partition, with their messages' keys. Index: the states' unique key; the log's
# primary key.
ROWS = """
    SELECT s.message_offset, s.acked, s.in_flight, s.retry_count, {remaining}, m.partition_key
    FROM sqlqueue_delivery_state s LEFT JOIN sqlqueue_message m ON m."offset" = s.message_offset
    WHERE s.topic = %s AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s
    AND s.message_offset > %s ORDER BY s.message_offset LIMIT %s
"""


@dataclass(slots=True)
class AcquiredPartition:
    """An assigned partition as its new owner finds it."""

    ref: PartitionRef
    id: int
    token: int
    position: int
    watermark: int
    claimed: int
    rows: list[StoredRow] = field(default_factory=list)
    ranges: list[StoredRange] = field(default_factory=list)
    server: ServerIdentity | None = None  # where it was acquired


def not_taken(log: Log, group: str, topic: str, taken: Iterable[AcquiredPartition]) -> dict[int, str]:
    """Return the holders of those leases of a group, by partition, that are not among the taken ones."""
    held = {one.ref.partition for one in taken if (one.ref.group, one.ref.topic) == (group, topic)}
    leases = log.execute(LEASES, (topic, group)).fetchall()
    return {partition: holder for partition, holder in leases if partition not in held}


def acquire(
    log: Log,
    subscriber: str,
    group: str,
    topic: str,
    partitions: Sequence[int],
    *,
    priorities: int,
    lease_duration: float,
    horizon: int,
    server: ServerIdentity | None = None,
    in_order: bool = True,
) -> list[AcquiredPartition]:
    """Take those partitions of one group that are free or expired, see acquire_leases."""
    if not partitions:
        return []
    text = IDS.replace("{marks}", _marks(partitions))
    ids = [id for (id,) in log.execute(text, (topic, group, *partitions)).fetchall()]
    at = {(group, topic): priorities}
    return acquire_leases(log, subscriber, ids, at, lease_duration, horizon, server, in_order)


def acquire_leases(
    log: Log,
    subscriber: str,
    ids: Sequence[int],
    priorities: Mapping[tuple[str, str], int],
    lease_duration: float,
    horizon: int,
    server: ServerIdentity | None = None,
    in_order: bool = True,
) -> list[AcquiredPartition]:
    """Take those leases, of any groups, that are free or expired; return their partitions, one for each priority.

    A lease of the subscriber's own is taken again: an earlier call has committed, and its reply was lost. A few
    statements for AT_ONCE leases; more only for partitions whose last owner had messages in flight or rows.
    priorities: how many each (group, topic) has; horizon: known before this call: the position may move up to it, once
    the messages between have rows. server: the one from which the horizon is known, and to which the partitions are
    bound; None: no server is compared. in_order: a partition of a later epoch that its group may not start yet is not
    taken; False for who reads all epochs together, by offset. Raises ServerChanged or SessionReplaced, and takes
    nothing more, if it is another server.
    """
    taken: list[AcquiredPartition] = []
    for start in range(0, len(ids), AT_ONCE):
        some = sorted(ids[start : start + AT_ONCE])
        taken += retries.run(
            log, _acquire, log, subscriber, some, priorities, lease_duration, horizon, server, in_order
        )
    return taken


def _acquire(
    log: Log,
    subscriber: str,
    wanted: list[int],
    priorities: Mapping[tuple[str, str], int],
    lease_duration: float,
    horizon: int,
    server: ServerIdentity | None,
    in_order: bool,
) -> list[AcquiredPartition]:
    # Locks come before the first plain read, so that no snapshot is older than they are. A group's removal either waits
    # for them, or came before them, and then the group is not found.
    text = TAKE.replace("{marks}", _marks(wanted)).replace("{waiting}", "" if in_order else OR_WAITING)
    free = [id for (id,) in log.execute(text, (*wanted, subscriber)).fetchall()]
    if not free:
        return []
    locked = {id for (id,) in log.execute(LOCK_OFFSETS.replace("{marks}", _marks(free)), free).fetchall()}
    leased = [lease for lease in _leased(log, free) if all(offset.id in locked for offset in lease.offsets)]
    if in_order:
        leased = _startable(log, leased)
    if not leased:
        return []
    _hold(log, subscriber, [lease.id for lease in leased], lease_duration, server)
    if _insert_missing(log, leased, priorities):
        leased = _leased(log, [lease.id for lease in leased])
    else:
        leased = [replace(lease, token=lease.token + 1) for lease in leased]
    taken: list[AcquiredPartition] = []
    plain: list[Offset] = []
    for lease in leased:
        for offset in lease.offsets:
            if offset.id in lease.to_recover or offset.claimed_to > offset.position:
                taken.append(_recover(log, offset, lease.token, horizon))
            else:
                plain.append(offset)
                ref, start = ref_of(offset), offset.position
                taken.append(AcquiredPartition(ref, offset.id, lease.token, start, start, start))
    if plain:
        log.execute(TOKENS.replace("{marks}", _marks(plain)), [offset.id for offset in plain])
    for one in taken:
        one.server = server
    return taken


def _startable(log: Log, leased: list[_Leased]) -> list[_Leased]:
    """Return those leases whose group may start their partition, see succession; the others wait from now on. Nothing
    is read for topics that have had one epoch only."""
    altered: dict[tuple[str, str], list[_Leased]] = defaultdict(list)
    for lease in leased:
        if lease.altered:
            altered[lease.group_topic].append(lease)
    refused: list[int] = []
    for group, some in altered.items():
        registered = ConsumerGroup(consumer_group=group[0], topic=group[1], start=some[0].start)
        ready = may_start(log, registered, {lease.partition for lease in some})
        refused += [lease.id for lease in some if lease.partition not in ready]
    if refused:
        log.execute(WAIT.replace("{marks}", _marks(refused)), refused)
    return [lease for lease in leased if lease.id not in refused]


def _hold(log: Log, subscriber: str, ids: Sequence[int], lease_duration: float, server: ServerIdentity | None) -> None:
    """Take leases that are locked, on this server."""
    proof, values = proof_condition(server)
    text = HOLD.replace("{marks}", _marks(ids)).replace("{proof}", proof)
    held = log.execute(text, (subscriber, round(lease_duration * 1_000_000), *ids, *values)).rowcount
    if server is not None and proof and held != len(ids):
        server.refuted()


@dataclass(slots=True)
class _Leased:
    """A lease with its offset rows. altered: its topic has had several epochs; to_recover: the ids of those rows that
    have delivery states or blocked ranges."""

    id: int
    group_topic: tuple[str, str]
    partition: int
    token: int
    start: int
    altered: bool
    offsets: list[Offset] = field(default_factory=list)
    to_recover: set[int] = field(default_factory=set)


def _leased(log: Log, ids: Sequence[int]) -> list[_Leased]:
    found: dict[int, _Leased] = {}
    for row in log.execute(OFFSETS.replace("{marks}", _marks(ids)), ids).fetchall():
        id, topic, group, partition, token, start, *row = row
        offset_id, priority, position, acked, claimed, recovers, altered = row
        lease = found.setdefault(id, _Leased(id, (group, topic), partition, token, start, bool(altered)))
        if offset_id is not None:
            key = {"topic": topic, "consumer_group": group, "partition": partition, "priority": priority}
            offsets = {"position": position, "offset_acked": acked, "claimed_to": claimed}
            lease.offsets.append(Offset(id=offset_id, **key, **offsets))
            if recovers:
                lease.to_recover.add(offset_id)
    return sorted(found.values(), key=lambda lease: lease.id)


def _insert_missing(log: Log, leased: Sequence[_Leased], priorities: Mapping[tuple[str, str], int]) -> bool:
    """Insert missing offset rows, at the group's start; return whether there were any."""
    missing = [
        Offset(
            topic=lease.group_topic[1],
            consumer_group=lease.group_topic[0],
            partition=lease.partition,
            priority=priority,
            position=lease.start,
            offset_acked=lease.start,
            claimed_to=lease.start,
            fencing_token=lease.token + 1,
        )
        for lease in leased
        for priority in sorted(
            set(range(priorities[lease.group_topic])) - {offset.priority for offset in lease.offsets}
        )
    ]
    Offset.objects.using(log.alias).bulk_create(missing)
    return bool(missing)


def ref_of(offset: Offset) -> PartitionRef:
    """Return the reference of an offset row."""
    return PartitionRef(offset.consumer_group, offset.topic, offset.partition, offset.priority)


def _recover(log: Log, offset: Offset, token: int, horizon: int) -> AcquiredPartition:
    ref = ref_of(offset)
    position, claimed = offset.position, offset.claimed_to
    if claimed > position:
        _insert_rows_in_doubt(log, ref, position, claimed)
        position = max(position, min(claimed, horizon))
    text = ROWS.replace("{remaining}", log.dialect.remaining("s.invisible_until"))
    rows = [
        StoredRow(row, bool(acked), in_flight, max(0, count), float(remaining), key or "")
        for row, acked, in_flight, count, remaining, key in _paged(log, text, ref, 0)
    ]
    blocked = [StoredRange(*row) for row in _paged(log, RANGES, ref, "")]
    unacked = [row.offset - 1 for row in rows if not row.acked and row.offset <= position]
    watermark = max(offset.offset_acked, min([position, *unacked, *(one.low for one in blocked)]))
    Offset.objects.using(log.alias).filter(id=offset.id).update(
        fencing_token=token, position=position, claimed_to=position, offset_acked=watermark
    )
    return AcquiredPartition(ref, offset.id, token, position, watermark, position, rows, blocked)


def _insert_rows_in_doubt(log: Log, ref: PartitionRef, low: int, high: int) -> None:
    """Insert a row for every visible message of a partition in (low, high] that has none."""
    size = log.dialect.rows_of_one_insert
    stream = (ref.topic, ref.partition, ref.priority)
    states_key = (ref.topic, ref.group, ref.partition, ref.priority)
    more = True
    while more:
        values = (*stream, low, high, ref.group, ref.group, size)
        found = [offset for (offset,) in log.execute(UNSETTLED, values).fetchall()]
        more = len(found) == size
        if found:
            low = found[-1]
            rows = [(*states_key, offset) for offset in found]
            insert_all(log, f"sqlqueue_delivery_state ({ROW_COLUMNS})", IN_DOUBT, "", rows, size)


def _paged(log: Log, text: str, ref: PartitionRef, after: object) -> Iterator[Sequence[Any]]:
    """Yield all that a statement finds of a partition, by its first column and beyond `after`: a bounded number with
    each statement."""
    more = True
    while more:
        found = log.execute(text, (ref.topic, ref.group, ref.partition, ref.priority, after, ROWS_AT_ONCE)).fetchall()
        more = len(found) == ROWS_AT_ONCE
        after = found[-1][0] if found else after
        yield from found


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))
