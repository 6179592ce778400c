"""Moves a group: rewinds it to an earlier offset, or lets it skip to a later one."""

from __future__ import annotations

import time
from typing import Final

from django.db.models import Min, QuerySet

from sqlqueue.database.horizon import Horizon, on_one_server
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import acked_marks, batch_recounts, grants
from sqlqueue.log.groups import lock_topic, revoke
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Offset, PartitionLease, Topic
from sqlqueue.models.delivery_state import DeliveryStateQuerySet

HORIZON_TIMEOUT: Final = 30.0  # seconds for the transactions that publish to end


def move(
    alias: str,
    group: str,
    topic: str,
    target: int,
    partition: int | None = None,
    timeout: float = HORIZON_TIMEOUT,
    forward_only: bool = False,
) -> int:
    """Move a group's position (in one partition or all) so that the next message it reads is the first above `target`.

    Backward it reads again what the log still holds, forward it skips, but never past the horizon. Delivery states
    above the target are deleted; those at or below it are kept, and so are the blocked ranges there. Returns the
    offset that was used.

    Raises ConfigurationError for a group, topic or partition that is not there, with `forward_only` if the group has
    read further than the target somewhere, and inside a transaction: the horizon cannot be known in one. Raises
    HorizonUnknown if a transaction that publishes stays open for `timeout` seconds.
    """
    leases = PartitionLease.objects.using(alias).filter(topic=topic, consumer_group=group)
    if not leases.filter(**({} if partition is None else {"partition": partition})).exists():
        where = f"topic {topic!r}" + ("" if partition is None else f", partition {partition}")
        raise ConfigurationError(f"group {group!r} has nothing to move in {where}: it is not registered there")
    give_up_at = time.monotonic() + timeout
    with on_one_server(alias) as server:
        horizon = Horizon(alias, server).wait(lambda: time.monotonic() > give_up_at)
        to = min(max(target, 0), horizon)
        return grants.without(alias, group, topic, _move, alias, group, topic, to, partition, forward_only, server)


def _move(
    alias: str,
    group: str,
    topic: str,
    target: int,
    partition: int | None,
    forward_only: bool,
    server: ServerIdentity,
) -> int:
    lock_topic(alias, topic)
    revoke(alias, group, topic, partition)
    acked_marks.forget_above(alias, topic, target)
    batch_recounts.before_move(alias, group, topic, partition, target)
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
    if forward_only and offsets.filter(position__gt=target).exists():  # its owners have lost their leases by now
        raise ConfigurationError(
            f"group {group!r} has read further than offset {target} meanwhile: it was not moved; try again"
        )
    states.filter(message_offset__gt=target).delete()
    ranges.filter(low__gte=target).delete()
    ranges.filter(high__gt=target).update(high=target)
    offsets.update(position=target, claimed_to=target, offset_acked=target)
    lower_watermarks(offsets, states, ranges)
    server.confirm()
    return target


def lower_watermarks(offsets: QuerySet[Offset], states: DeliveryStateQuerySet, ranges: QuerySet[BlockedRange]) -> None:
    """Lower the watermarks of these offset rows, which are locked, below their unsettled delivery states and ranges."""
    unsettled = states.unsettled().values("partition", "priority").annotate(lowest=Min("message_offset") - 1)
    for row in [*unsettled, *ranges.values("partition", "priority").annotate(lowest=Min("low"))]:
        rows = offsets.filter(partition=row["partition"], priority=row["priority"])
        rows.filter(offset_acked__gt=row["lowest"]).update(offset_acked=row["lowest"])


def _add_missing_offsets(alias: str, group: str, topic: str, partition: int, target: int) -> None:
    """Add the offset rows of a partition that no process has acquired yet, so that it begins at the target."""
    mine = {"topic": topic, "consumer_group": group, "partition": partition}
    leases = list(PartitionLease.objects.using(alias).filter(**mine).values_list("slice", "fencing_token"))
    known = set(Offset.objects.using(alias).filter(**mine).values_list("priority", "slice"))
    marks = {"position": target, "offset_acked": target, "claimed_to": target, "slices": len(leases)}
    priorities = Topic.objects.using(alias).values_list("priorities", flat=True).get(name=topic)
    Offset.objects.using(alias).bulk_create(
        [
            Offset(**mine, priority=priority, slice=slice, fencing_token=token, **marks)
            for priority in range(priorities)
            for slice, token in leases
            if (priority, slice) not in known
        ]
    )
