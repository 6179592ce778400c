"""Succession: a group starts a partition of a later epoch behind all that the earlier epochs have of its keys.

Until then its lease says WAITS, and no process takes it. Whatever lets a watermark of the group fall lets the leases
of later epochs wait again, with greater tokens (groups.revoke, under the lock of the topic's row). Acquiring looks once
more, in its transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlqueue.core.epochs import Epoch, feeders, numbers_of, startable
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.log.fetch import beyond
from sqlqueue.models import ConsumerGroup, Offset, PartitionLease, Topic
from sqlqueue.models.partition_lease import WAITS

LEASES_AT_ONCE = 500


class Leased(NamedTuple):
    """counted: the partitions that count for balance, those whose leases do not wait; waiting: those whose leases wait;
    more: leases are missing, or some need not wait any longer."""

    counted: set[int]
    waiting: set[int]
    more: bool


def unfinished(
    log: Log, group: ConsumerGroup, priorities: int, epochs: Sequence[Epoch], among: Collection[int] | None = None
) -> set[int]:
    """Return the partitions of closed epochs in which a group has messages above its watermark; `among`: of these.

    A priority that has no offset row is at the group's start. What is above the watermark and behind the
    epoch's end does not exist.
    """
    closed = [epoch for epoch in epochs[:-1] if epoch.end is not None]
    if not closed:
        return set()
    rows = Offset.objects.using(log.alias).filter(
        topic=group.topic,
        consumer_group=group.consumer_group,
        partition__gte=closed[0].base,
        partition__lte=closed[-1].numbers[-1],
    )
    stored = {(p, q): acked for p, q, acked in rows.values_list("partition", "priority", "offset_acked")}
    found: set[int] = set()
    for epoch in closed:
        end = epoch.end or 0
        streams = {
            PartitionRef(group.consumer_group, group.topic, p, q): acked
            for p in epoch.numbers
            if among is None or p in among
            for q in range(priorities)
            if (acked := stored.get((p, q), group.start)) < end
        }
        found.update(ref.partition for ref in beyond(log, streams, end))
    return found


def may_start(log: Log, group: ConsumerGroup, partitions: Collection[int]) -> set[int]:
    """Return those of some partitions that a group may start now."""
    epochs = layouts.epochs(log, group.topic)
    priorities = Topic.objects.using(log.alias).values_list("priorities", flat=True).get(name=group.topic)
    before = {
        number
        for index, later in enumerate(epochs)
        for partition in set(later.numbers).intersection(partitions)
        for earlier in epochs[:index]
        for number in feeders(partition, later, earlier)
    }
    left = unfinished(log, group, priorities, epochs, before) if before else set()
    return startable(epochs, left).intersection(partitions)


def give_leases(log: Log, group: ConsumerGroup, topic: Topic) -> bool:
    """Insert the leases that a group has not, and let it start what it may; return whether any lease has become free.

    In the caller's transaction, which has locked the topic: so no watermark falls meanwhile.
    """
    leases = PartitionLease.objects.using(log.alias).filter(topic=topic.name, consumer_group=group.consumer_group)
    holders = dict(leases.values_list("partition", "holder"))
    epochs = layouts.epochs(log, topic.name)
    missing = [number for number in numbers_of(epochs) if number not in holders]
    waiting = {number for number, holder in holders.items() if holder == WAITS}
    if not missing and not waiting:
        return False
    left = unfinished(log, group, topic.priorities, epochs) if len(epochs) > 1 else set()
    ready = startable(epochs, left)
    leases.bulk_create(
        [
            PartitionLease(
                consumer_group=group.consumer_group,
                topic=topic.name,
                partition=number,
                holder="" if number in ready else WAITS,
            )
            for number in missing
        ],
        batch_size=LEASES_AT_ONCE,
    )
    freed = sorted(waiting & ready)
    for start in range(0, len(freed), LEASES_AT_ONCE):
        leases.filter(partition__in=freed[start : start + LEASES_AT_ONCE], holder=WAITS).update(holder="")
    return bool(freed) or not ready.isdisjoint(missing)


def leased(log: Log, group: str, topic: str) -> Leased:
    """Return what a group has leases of, and whether give_leases() has something to do. Two statements; a few more
    while leases wait."""
    epochs = layouts.epochs(log, topic)
    rows = PartitionLease.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    holders = dict(rows.values_list("partition", "holder"))
    numbers = {number for epoch in epochs for number in epoch.numbers}
    waiting = {number for number in numbers if holders.get(number) == WAITS}
    counted = (numbers & holders.keys()) - waiting
    if counted == numbers:
        return Leased(counted, waiting, False)
    registered = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group).first()
    if registered is None:
        return Leased(counted, waiting, False)
    missing = len(counted) + len(waiting) < len(numbers)
    return Leased(counted, waiting, missing or bool(may_start(log, registered, waiting)))
