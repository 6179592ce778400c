"""Epochs by hand: layouts, ends and messages as `queuetopic alter --partitions` and publishers would write them."""

from typing import Any

from django.db import transaction
from django.db.models import Max

from sqlqueue import publish
from sqlqueue.conf import settings
from sqlqueue.core.keys import Epoch
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.models import Layout, Message, PartitionLease
from sqlqueue.models.subscriber import WAITS


def epochs(topic: str) -> tuple[Epoch, ...]:
    return layouts.epochs(Log.of(settings.DATABASE), topic)


def begin(topic: str, partitions: int) -> Epoch:
    """Let a further epoch begin, whose predecessor has not ended yet."""
    last = layouts.epochs(Log.of(settings.DATABASE), topic, retired=True)[-1]
    steady = {"topic": topic, "phase": Layout.STEADY}
    if not last.number:
        Layout.objects.create(**steady, generation=0, epoch=0, partitions=last.partitions, base=0)
    number, base = last.number + 1, last.base + last.partitions
    Layout.objects.create(**steady, generation=number, epoch=number, partitions=partitions, base=base)
    return epochs(topic)[-1]


def end(topic: str) -> int:
    """End the last epoch but one, which publishers have left; return its end."""
    highest = Message.objects.aggregate(highest=Max("offset"))["highest"] or 0
    Layout.objects.filter(topic=topic, epoch=epochs(topic)[-2].number).update(end=highest)
    return highest


def alter(topic: str, partitions: int) -> Epoch:
    begun = begin(topic, partitions)
    end(topic)
    return begun


def publish_into(topic: str, payload: Any, key: str, **options: Any) -> int:
    """Publish a message into the topic's last epoch; return its offset."""
    with transaction.atomic():
        id = publish(topic, payload, key=key, **options).id
        rows = Message.objects.filter(topic=topic, message_id=id, partition_key=key)
        (offset,) = rows.values_list("offset", flat=True)
        rows.update(partition=epochs(topic)[-1].partition_of(key))
    return offset


def waiting(topic: str, group: str = "default") -> set[int]:
    """Return the partitions whose leases wait."""
    leases = PartitionLease.objects.filter(topic=topic, consumer_group=group, holder=WAITS)
    return set(leases.values_list("partition", flat=True))


def leased(topic: str, group: str = "default") -> set[int]:
    """Return the partitions that have leases."""
    leases = PartitionLease.objects.filter(topic=topic, consumer_group=group)
    return set(leases.values_list("partition", flat=True))
