"""Sharing: how many slices, each with a lease and offset rows of its own, a group's partitions have.

Its processes say in their heartbeats how many they ask for. The first of them to see that none of them holds a lease
any more makes the change, in one transaction. Afterwards every slice begins at the position that the one furthest
behind had; what the others had settled above it has acked rows, as messages have that are settled out of order. All
other delivery states belong to a slice by their offset, and stay as they are.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.slices import asked
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.statements import execute
from sqlqueue.leases.acquire import AT_ONCE, IN_DOUBT, LOCK_OFFSETS, SETTLED, WAITING, insert_rows, ref_of
from sqlqueue.log import blocked_ranges
from sqlqueue.log.groups import lock_topic, revoke, set_slices
from sqlqueue.models import BlockedRange, ConsumerGroup, Offset, PartitionLease, SubscriberHeartbeat

logger = logging.getLogger("sqlqueue")


def change(alias: str, group: str, topic: str, *, revoke_held: bool = False) -> bool:
    """Give a group's partitions as many slices as its processes ask for; return whether that was another number.

    Nothing changes while a lease is held; with `revoke_held` only while another transaction uses an offset row: what is
    in flight then is delivered again by the next owners, as after a crash.
    """
    change = retries.run(alias, _change, alias, group, topic, revoke_held)
    if change is None:
        return False
    before, slices = change
    logger.info(logfmt("sharing_changed", group=group, topic=topic, before=before, slices=slices))
    return True


def _change(alias: str, group: str, topic: str, revoke_held: bool) -> tuple[int, int] | None:
    lock_topic(alias, topic)
    mine = {"topic": topic, "consumer_group": group}
    leases = PartitionLease.objects.using(alias).filter(**mine)
    # Locks come before the first plain read, as in acquiring: no snapshot is older than they are.
    locked = [lease.pk for lease in leases.select_for_update().order_by("partition", "slice")]
    ready = {id for start in range(0, len(locked), AT_ONCE) for id in _lock_offsets(alias, locked[start:][:AT_ONCE])}
    registered = ConsumerGroup.objects.using(alias).filter(**mine).first()
    beats = SubscriberHeartbeat.objects.using(alias).alive().filter(**mine)
    slices = asked(set(beats.values_list("sharing", flat=True)))
    if registered is None or slices in (None, registered.sharing):
        return None
    held = leases.exclude(holder="").filter(valid_until__gt=DatabaseNow())
    offsets = list(Offset.objects.using(alias).filter(**mine).order_by("partition", "priority", "slice"))
    if not {offset.pk for offset in offsets} <= ready or (held.exists() and not revoke_held):
        return None
    revoke(alias, group, topic, falls=False)
    tokens = set_slices(alias, group, topic, slices)
    streams: dict[tuple[int, int], list[Offset]] = defaultdict(list)
    for offset in offsets:
        streams[offset.partition, offset.priority].append(offset)
    merged = [_merge(alias, some, registered) for some in streams.values()]
    Offset.objects.using(alias).filter(**mine).delete()
    Offset.objects.using(alias).bulk_create(
        [
            Offset(
                **mine,
                partition=one.partition,
                priority=one.priority,
                slice=slice,
                slices=slices,
                position=one.position,
                claimed_to=one.position,
                offset_acked=one.offset_acked,
                fencing_token=tokens[one.partition],
            )
            for one in merged
            for slice in range(slices)
        ],
        batch_size=AT_ONCE,
    )
    ConsumerGroup.objects.using(alias).filter(pk=registered.pk).update(sharing=slices)
    return registered.sharing, slices


def _lock_offsets(alias: str, leases: Sequence[int]) -> list[int]:
    """Lock the offset rows of these leases, but for those that another transaction has locked; return their ids."""
    text = LOCK_OFFSETS.replace("{marks}", ", ".join(["%s"] * len(leases)))
    return [id for (id,) in execute(alias, text, leases).fetchall()]


def _merge(alias: str, offsets: Sequence[Offset], group: ConsumerGroup) -> Offset:
    """Return where every new slice of a partition begins, once rows say what the old ones had beyond it."""
    first = offsets[0]
    missing = [group.start] * (group.sharing - len(offsets))  # slices that no process has ever acquired
    position = min([*missing, *(offset.position for offset in offsets)])
    for offset in offsets:
        ref = ref_of(offset)
        if ranges := blocked_ranges.ranges(alias, ref):
            low, high = min(one.low for one in ranges), max(one.high for one in ranges)
            insert_rows(alias, ref, low, high, WAITING, blocked=True)
        insert_rows(alias, ref, position, offset.position, SETTLED)
        insert_rows(alias, ref, offset.position, offset.claimed_to, IN_DOUBT)
    columns = {"topic": group.topic, "consumer_group": group.consumer_group, "partition": first.partition}
    BlockedRange.objects.using(alias).filter(**columns, priority=first.priority).delete()
    watermark = min([*missing, *(offset.offset_acked for offset in offsets)])
    return Offset(partition=first.partition, priority=first.priority, position=position, offset_acked=watermark)
