"""The epochs of topics: which there are, which of their partitions a group may start, and when one is retired.

A group starts a partition of a later epoch behind all that the earlier epochs have of its keys. Until then its lease
says WAITS, and no process takes it. Whatever lets a watermark of the group fall lets the leases of later epochs wait
again, with greater tokens (groups.revoke, under the lock of the topic's row). Acquiring looks once more, in its
transaction. An epoch of which the log has nothing more is forgotten, with its leases and offset rows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from itertools import product
from typing import NamedTuple

from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from sqlqueue.core.keys import Epoch, feeders, numbers_of, startable
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import delete_all
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.fetch import beyond
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Layout, Offset, PartitionLease, Topic
from sqlqueue.models.subscriber import WAITS

logger = logging.getLogger("sqlqueue")

LEASES_AT_ONCE = 500
# The epochs of a topic: those of its layouts, else the one of its own row. Index: the topics' primary key; the layouts'
# unique key.
EPOCHS = """
    SELECT 0, 0, t.partitions, NULL, NULL FROM sqlqueue_topic t WHERE t.name = %s
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_layout l WHERE l.topic = t.name)
    UNION SELECT l.epoch, l.base, l.partitions, l."end", l.retired_at FROM sqlqueue_layout l WHERE l.topic = %s
"""


def epochs(log: Log, topic: str, *, retired: bool = False) -> tuple[Epoch, ...]:
    """Return the epochs of a topic that are not retired, oldest first: the last one is open, or about to be. retired:
    also those that are. Raises ConfigurationError if there is no such topic."""
    rows = sorted(log.execute(EPOCHS, (topic, topic)).fetchall(), key=lambda row: row[0])
    if not rows:
        raise ConfigurationError(f"there is no topic {topic!r}")
    return tuple(
        Epoch(number, base, partitions, end)
        for number, base, partitions, end, retired_at in rows
        if retired or retired_at is None
    )


def numbers(log: Log, topic: str) -> list[int]:
    """Return the numbers of the partitions in which the topic can have messages: of all epochs that are not retired.
    Raises ConfigurationError if there is no such topic."""
    return numbers_of(epochs(log, topic))


def altered(log: Log) -> set[str]:
    """Return the topics that have had several epochs."""
    return set(Layout.objects.using(log.alias).filter(base__gt=0).values_list("topic", flat=True).distinct())


def with_present(topics: QuerySet[Topic]) -> QuerySet[Topic]:
    """Let topics have `present_partitions`: how many there are for new messages. The row's own are the first epoch's.
    Index: the layouts' unique key."""
    layouts = Layout.objects.filter(topic=OuterRef("name")).order_by("-generation")
    return topics.annotate(present_partitions=Coalesce(Subquery(layouts.values("partitions")[:1]), "partitions"))


class Leased(NamedTuple):
    """counted: the partitions that count for balance, those whose leases do not wait; waiting: those whose leases wait;
    more: leases are missing, or some need not wait any longer."""

    counted: set[int]
    waiting: set[int]
    more: bool


def _priorities(log: Log, topic: str) -> int:
    return Topic.objects.using(log.alias).values_list("priorities", flat=True).get(name=topic)


def unfinished(
    log: Log, group: ConsumerGroup, priorities: int, known: Sequence[Epoch], among: Collection[int] | None = None
) -> set[int]:
    """Return the partitions of closed epochs in which a group has messages above its watermark; `among`: of these.

    A priority that has no offset row is at the group's start. What is above the watermark and behind the
    epoch's end does not exist.
    """
    closed = [epoch for epoch in known[:-1] if epoch.end is not None]
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
    known = epochs(log, group.topic)
    before = {
        number
        for index, later in enumerate(known)
        for partition in set(later.numbers).intersection(partitions)
        for earlier in known[:index]
        for number in feeders(partition, later, earlier)
    }
    left = unfinished(log, group, _priorities(log, group.topic), known, before) if before else set()
    return startable(known, left).intersection(partitions)


def give_leases(log: Log, group: ConsumerGroup, topic: Topic) -> bool:
    """Insert the leases that a group has not, and let it start what it may; return whether any lease has become free.

    In the caller's transaction, which has locked the topic: so no watermark falls meanwhile.
    """
    leases = PartitionLease.objects.using(log.alias).filter(topic=topic.name, consumer_group=group.consumer_group)
    holders = dict(leases.values_list("partition", "holder"))
    known = epochs(log, topic.name)
    missing = [number for number in numbers_of(known) if number not in holders]
    waiting = {number for number, holder in holders.items() if holder == WAITS}
    if not missing and not waiting:
        return False
    left = unfinished(log, group, topic.priorities, known) if len(known) > 1 else set()
    ready = startable(known, left)
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
    rows = PartitionLease.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    holders = dict(rows.values_list("partition", "holder"))
    there = set(numbers(log, topic))
    waiting = {number for number in there if holders.get(number) == WAITS}
    counted = (there & holders.keys()) - waiting
    registered = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    if counted == there or (row := registered.first()) is None:
        return Leased(counted, waiting, False)
    missing = len(counted) + len(waiting) < len(there)
    return Leased(counted, waiting, missing or bool(may_start(log, row, waiting)))


def retire(log: Log, topic: str) -> list[int]:
    """Retire the epochs of a topic, the oldest first, that have ended, of which the log has no message, and no group
    anything unsettled; return their numbers. Partition numbers are never used again, so no fencing token returns."""
    found = []
    for epoch in epochs(log, topic)[:-1]:
        if _occupied(log, topic, epoch) or not retries.run(log, _retire, log, topic, epoch):
            break
        logger.info(logfmt("epoch_retired", topic=topic, epoch=epoch.number, end=epoch.end))
        found.append(epoch.number)
    return found


def _retire(log: Log, topic: str, epoch: Epoch) -> bool:
    """Retire one epoch, unless a group has something unsettled in it. Groups are neither registered nor moved
    meanwhile, and messages cannot come any more: the epoch has ended."""
    Topic.objects.using(log.alias).select_for_update().get(name=topic)
    # Leases before offsets, as acquiring does it, and those of removed groups, too.
    leases = PartitionLease.objects.using(log.alias).filter(topic=topic, partition__in=epoch.numbers)
    locked = leases.select_for_update().order_by("consumer_group", "partition").values_list("id", flat=True)
    ids = list(locked)
    # By group: the unique keys begin with topic and group.
    groups = ConsumerGroup.objects.using(log.alias).filter(topic=topic).values_list("consumer_group", flat=True)
    mine = {"topic": topic, "consumer_group__in": list(groups), "partition__in": epoch.numbers}
    states = DeliveryState.objects.using(log.alias).filter(**mine)
    ranges = BlockedRange.objects.using(log.alias).filter(**mine)
    if states.unsettled().exists() or ranges.exists():
        return False
    delete_all(log, "sqlqueue_partition_lease", "id", ids)  # by the primary key: a range may lock all others, too
    Offset.objects.using(log.alias).filter(**mine).delete()
    states.delete()
    Layout.objects.using(log.alias).filter(topic=topic, epoch=epoch.number).update(retired_at=DatabaseNow())
    return True


def _occupied(log: Log, topic: str, epoch: Epoch) -> bool:
    """Tell whether the epoch is not over, or the log has messages of it."""
    if epoch.end is None:
        return True
    streams = [PartitionRef("", topic, *at) for at in product(epoch.numbers, range(_priorities(log, topic)))]
    return bool(beyond(log, dict.fromkeys(streams, 0)))
