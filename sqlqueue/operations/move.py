"""Moves a group: rewinds it to an earlier offset, or lets it skip to a later one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from typing import Final

from django.db.models import Min, QuerySet

from sqlqueue.database import retries
from sqlqueue.database.horizon import Horizon, on_one_server
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import acked_marks, layouts, withdrawing
from sqlqueue.log.groups import lock_topic, revoke
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Offset, PartitionLease, Topic
from sqlqueue.models.delivery_state import DeliveryStateQuerySet

HORIZON_TIMEOUT: Final = 30.0  # seconds for the transactions that publish to end
ROWS_AT_ONCE: Final = 500


def move(
    log: Log,
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

    Raises ConfigurationError for a group, topic or partition that is not there, for what check_part refuses, with
    `forward_only` if the group has read further than the target somewhere, and inside a transaction: the horizon cannot
    be known in one. Raises HorizonUnknown if a transaction that publishes stays open for `timeout` seconds.
    """
    leases = PartitionLease.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    if not leases.filter(**({} if partition is None else {"partition": partition})).exists():
        where = f"topic {topic!r}" + ("" if partition is None else f", partition {partition}")
        raise ConfigurationError(f"group {group!r} has nothing to move in {where}: it is not registered there")
    give_up_at = time.monotonic() + timeout
    with on_one_server(log) as server:
        horizon = Horizon(log, server).wait(lambda: time.monotonic() > give_up_at)
        to = min(max(target, 0), horizon)
        return retries.run(log, _move, log, group, topic, to, partition, forward_only, server)


def _move(
    log: Log,
    group: str,
    topic: str,
    target: int,
    partition: int | None,
    forward_only: bool,
    server: ServerIdentity,
) -> int:
    locked = lock_topic(log, topic)
    revoke(log, group, topic, partition)
    acked_marks.forget_above(log, topic, target)
    withdrawing.before_move(log, group, topic, partition, target)
    mine = {"topic": topic, "consumer_group": group}
    registered = ConsumerGroup.objects.using(log.alias).filter(**mine)
    one = registered.first()
    if one is None:
        raise ConfigurationError(f"group {group!r} has nothing to move in topic {topic!r}: it is not registered there")
    check_part(log, one, target, partition)
    numbers = layouts.numbers(log, topic) if partition is None else [partition]
    add_missing_offsets(log, one, locked, numbers)
    # No old checkpoint may undo this.
    registered.update(streamed_to=0, start=min(one.start, target))
    offsets = Offset.objects.using(log.alias).filter(**mine)
    states = DeliveryState.objects.using(log.alias).filter(**mine)
    ranges = BlockedRange.objects.using(log.alias).filter(**mine)
    if partition is not None:
        offsets, states, ranges = (rows.filter(partition=partition) for rows in (offsets, states, ranges))
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


def check_part(log: Log, group: ConsumerGroup, target: int, partition: int | None) -> None:
    """Raise ConfigurationError if one of several partitions is to be moved to below the start of a group. The start is
    that of all partitions: what the others have from before it would count as acked, and the group never got it."""
    if partition is None or target >= group.start or layouts.numbers(log, group.topic) == [partition]:
        return
    raise ConfigurationError(
        f"group {group.consumer_group!r} began at offset {group.start} of {group.topic!r}, in all partitions: it is "
        f"moved to offset {target} in all of them, not in partition {partition} alone"
    )


def lower_watermarks(offsets: QuerySet[Offset], states: DeliveryStateQuerySet, ranges: QuerySet[BlockedRange]) -> None:
    """Lower the watermarks of these offset rows, which are locked, below their unsettled delivery states and ranges."""
    unsettled = states.unsettled().values("partition", "priority").annotate(lowest=Min("message_offset") - 1)
    for row in [*unsettled, *ranges.values("partition", "priority").annotate(lowest=Min("low"))]:
        rows = offsets.filter(partition=row["partition"], priority=row["priority"])
        rows.filter(offset_acked__gt=row["lowest"]).update(offset_acked=row["lowest"])


def add_missing_offsets(log: Log, group: ConsumerGroup, topic: Topic, partitions: Sequence[int]) -> None:
    """Add the offset rows that a group has not yet in these partitions, at its start: no process has acquired them. In
    the caller's transaction, which has revoked the leases; what moves the group changes offset rows only."""
    mine = {"topic": group.topic, "consumer_group": group.consumer_group}
    known = set(Offset.objects.using(log.alias).filter(**mine).values_list("partition", "priority"))
    missing = [at for at in product(partitions, range(topic.priorities)) if at not in known]
    if not missing:
        return
    leases = PartitionLease.objects.using(log.alias).filter(**mine).values_list("partition", "fencing_token")
    tokens = dict(leases)
    marks = dict.fromkeys(("position", "offset_acked", "claimed_to"), group.start)
    rows = [
        Offset(
            **mine,
            **marks,
            partition=partition,
            priority=priority,
            fencing_token=tokens.get(partition, 0),
        )
        for partition, priority in missing
    ]
    Offset.objects.using(log.alias).bulk_create(rows, batch_size=ROWS_AT_ONCE)
