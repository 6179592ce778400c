"""Reset: a group reads again from an earlier offset, or skips to a later one."""

from __future__ import annotations

import time
from typing import Final

from django.db.models import Min

from sqlqueue.database import faults
from sqlqueue.database.horizon import Horizon
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.groups import lock_topic, revoke
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Offset, PartitionLease, Topic

PATIENCE: Final = 30.0  # seconds for the transactions that publish to end


def reset(alias: str, group: str, topic: str, target: int, partition: int | None = None) -> int:
    """Move a group's position (in one partition or all) so that the next message it reads is the first above `target`.

    Backward it replays what the log still holds, forward it skips; never past the horizon. Delivery states above the
    target are forgotten, those at or below it are kept, and so is what waits there behind its key. Returns the
    offset that was used.

    Raises ConfigurationError for a group, topic or partition that is not there, and inside a transaction: the horizon
    cannot be known in one. Raises HorizonUnknown if a transaction that publishes stays open for half a minute.
    """
    leases = PartitionLease.objects.using(alias).filter(topic=topic, consumer_group=group)
    if not leases.filter(**({} if partition is None else {"partition": partition})).exists():
        place = f"topic {topic!r}" + ("" if partition is None else f", partition {partition}")
        raise ConfigurationError(f"group {group!r} has nothing to reset in {place}: it is not registered there")
    give_up_at = time.monotonic() + PATIENCE
    horizon = Horizon(alias).wait(lambda: time.monotonic() > give_up_at)
    return faults.run(alias, _reset, alias, group, topic, min(max(target, 0), horizon), partition)


def _reset(alias: str, group: str, topic: str, target: int, partition: int | None) -> int:
    lock_topic(alias, topic)
    revoke(alias, group, topic, partition)
    mine = {"topic": topic, "consumer_group": group}
    ConsumerGroup.objects.using(alias).filter(**mine).update(streamed_to=0)  # no old checkpoint may undo this
    offsets = Offset.objects.using(alias).filter(**mine)
    states = DeliveryState.objects.using(alias).filter(**mine)
    ranges = BlockedRange.objects.using(alias).filter(**mine)
    if partition is not None:
        _add_missing_offsets(alias, group, topic, partition, target)
        offsets, states, ranges = (rows.filter(partition=partition) for rows in (offsets, states, ranges))
    else:
        # A partition without an offset row begins at the group's start.
        ConsumerGroup.objects.using(alias).filter(**mine).update(start=target)
    states.filter(message_offset__gt=target).delete()
    ranges.filter(low__gte=target).delete()
    ranges.filter(high__gt=target).update(high=target)
    offsets.update(position=target, claimed_to=target, offset_acked=target)
    unsettled = states.unsettled().values("partition", "priority").annotate(lowest=Min("message_offset") - 1)
    for row in [*unsettled, *ranges.values("partition", "priority").annotate(lowest=Min("low"))]:
        stream = offsets.filter(partition=row["partition"], priority=row["priority"])
        stream.filter(offset_acked__gt=row["lowest"]).update(offset_acked=row["lowest"])
    return target


def _add_missing_offsets(alias: str, group: str, topic: str, partition: int, target: int) -> None:
    """A partition that nobody has acquired yet has no offset row: give it one, so that it begins at the target."""
    mine = {"topic": topic, "consumer_group": group, "partition": partition}
    token = PartitionLease.objects.using(alias).values_list("fencing_token", flat=True).get(**mine)
    known = set(Offset.objects.using(alias).filter(**mine).values_list("priority", flat=True))
    marks = {"position": target, "offset_acked": target, "claimed_to": target, "fencing_token": token}
    priorities = Topic.objects.using(alias).values_list("priorities", flat=True).get(name=topic)
    missing = [priority for priority in range(priorities) if priority not in known]
    Offset.objects.using(alias).bulk_create([Offset(**mine, priority=priority, **marks) for priority in missing])
