"""Retirement: an epoch of which the log has nothing more is forgotten, with its leases and offset rows."""

from __future__ import annotations

import logging
from itertools import product

from sqlqueue.core.epochs import Epoch
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.log.fetch import beyond
from sqlqueue.log.groups import lock_topic
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Layout, Offset, PartitionLease, Topic

CHUNK = 500  # leases

logger = logging.getLogger("sqlqueue")


def retire(log: Log, topic: str) -> list[int]:
    """Retire the epochs of a topic, the oldest first, that have ended, of which the log has no message, and no group
    anything unsettled; return their numbers. Partition numbers are never used again, so no fencing token returns."""
    found = []
    for epoch in layouts.epochs(log, topic)[:-1]:
        if _occupied(log, topic, epoch) or not retries.run(log, _retire, log, topic, epoch):
            break
        logger.info(logfmt("epoch_retired", topic=topic, epoch=epoch.number, end=epoch.end))
        found.append(epoch.number)
    return found


def _retire(log: Log, topic: str, epoch: Epoch) -> bool:
    """Retire one epoch, unless a group has something unsettled in it. Groups are neither registered nor moved
    meanwhile, and messages cannot come any more: the epoch has ended."""
    lock_topic(log, topic)
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
    for start in range(0, len(ids), CHUNK):  # by the primary key: what deletes by a range may lock all others, too
        some = ids[start : start + CHUNK]
        log.execute(log.dialect.delete("sqlqueue_partition_lease", "id", len(some)), some)
    Offset.objects.using(log.alias).filter(**mine).delete()
    states.delete()
    Layout.objects.using(log.alias).filter(topic=topic, epoch=epoch.number).update(retired_at=DatabaseNow())
    return True


def _occupied(log: Log, topic: str, epoch: Epoch) -> bool:
    """Tell whether the epoch is not over, or the log has messages of it."""
    if epoch.end is None:
        return True
    priorities = Topic.objects.using(log.alias).values_list("priorities", flat=True).get(name=topic)
    streams = [PartitionRef("", topic, *at) for at in product(epoch.numbers, range(priorities))]
    return bool(beyond(log, dict.fromkeys(streams, 0)))
