"""Moves a group: rewinds it to an earlier offset, or lets it skip to a later one, and says before what that does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Final, NamedTuple

from django.db.models import F, Min, QuerySet
from django.db.models.functions import Least

from sqlqueue.database import retries
from sqlqueue.database.horizon import Horizon, highest_offset, on_one_server
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import layouts, retention, withdrawing
from sqlqueue.log.groups import lock_topic, revoke
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Offset, PartitionLease, Topic
from sqlqueue.models.consumer_group import DeliveryStateQuerySet
from sqlqueue.stats.counting import Range, count
from sqlqueue.stats.partitions import partitions_of

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
    with on_one_server(log) as server:
        to = min(max(target, 0), Horizon(log, server).wait(timeout))
        return retries.run(log, _move, log, group, topic, to, partition, forward_only, server)


class MovePreview(NamedTuple):
    """Counts of messages. above: those above the offset; again: those of them that the group has read already; skipped:
    those at or below the offset that it has not read; estimated: the counts are estimates."""

    above: int
    again: int
    skipped: int
    estimated: bool


def preview(log: Log, group: str, topic: str, target: int, partition: int | None = None) -> MovePreview:
    """Count what move() would do; change nothing.

    Exact up to counting.EXACT messages on each side of the group's positions, beyond that estimated. A few statements
    for every 60 partitions and priorities. Messages for another target group count, too.
    """
    highest = highest_offset(log)
    found = [one for one in partitions_of(log, topic, group) if partition in (None, one.partition)]
    between, beyond = [], []
    for one in found:
        low, high = sorted((target, one.position))
        between.append(Range(topic, one.partition, one.priority, low, high, "between"))
        beyond.append(Range(topic, one.partition, one.priority, high, highest))
    counts = count(log, [*between, *beyond])
    inside = [each.messages for each in counts[: len(found)]]
    again = sum(messages for messages, one in zip(inside, found) if one.position > target)
    above = again + sum(each.messages for each in counts[len(found) :])
    return MovePreview(above, again, sum(inside) - again, any(each.estimated for each in counts))


def _move(
    log: Log,
    group: str,
    topic: str,
    target: int,
    partition: int | None,
    forward_only: bool,
    server: ServerIdentity,
) -> int:
    rows = _take(log, group, topic, target, partition)
    if rows is None:
        raise ConfigurationError(f"group {group!r} has nothing to move in topic {topic!r}: it is not registered there")
    # No old checkpoint may undo this.
    rows.group.streamed_to, rows.group.start = 0, min(rows.group.start, target)
    rows.group.save(using=log.alias, update_fields=("streamed_to", "start"))
    if forward_only and rows.offsets.filter(position__gt=target).exists():  # its owners have lost their leases by now
        raise ConfigurationError(
            f"group {group!r} has read further than offset {target} meanwhile: it was not moved; try again"
        )
    retention.forget_above(log, topic, target)
    rows.states.filter(message_offset__gt=target).delete()
    rows.ranges.filter(low__gte=target).delete()
    rows.ranges.filter(high__gt=target).update(high=target)
    rows.offsets.update(position=target, claimed_to=target, offset_acked=target)
    _lower_watermarks(rows)
    server.confirm()
    return target


def settle_below(log: Log, group: str, topic: str, target: int, server: ServerIdentity) -> bool:
    """Settle everything up to `target`, which is at or below the horizon, on behalf of a group; return whether it is
    still registered. It moves the group as a skip does (docs/protocol.md), but keeps the delivery states above the
    target. In the caller's transaction."""
    rows = _take(log, group, topic, target, purges=True)
    if rows is None:
        return False
    rows.states.filter(message_offset__lte=target).delete()
    rows.ranges.filter(high__lte=target).delete()
    rows.ranges.filter(low__lt=target).update(low=target, messages=Least(F("messages"), F("high") - target))
    rows.offsets.filter(position__lt=target).update(position=target)
    # What the last owner may have dispatched above the position is recovered by the next one.
    rows.offsets.filter(claimed_to__lt=F("position")).update(claimed_to=F("position"))
    rows.offsets.update(offset_acked=F("position"))
    _lower_watermarks(rows)
    server.confirm()
    return True


class GroupRows(NamedTuple):
    """A registered group, and its offset rows, delivery states and blocked ranges in one partition or all."""

    group: ConsumerGroup
    offsets: QuerySet[Offset]
    states: DeliveryStateQuerySet
    ranges: QuerySet[BlockedRange]


def _take(
    log: Log, group: str, topic: str, target: int, partition: int | None = None, purges: bool = False
) -> GroupRows | None:
    """Lock the topic, take the leases of a group from their holders, and add the offset rows that it has not yet;
    return what is to be moved to `target`, None if the group is not registered. purges: it keeps the delivery states
    above the target, and its watermark does not fall. In the caller's transaction."""
    locked = lock_topic(log, topic)
    # Before any plain read: at REPEATABLE READ a read before it would fix a snapshot from before this lock.
    revoke(log, group, topic, partition, falls=not purges)
    mine: dict[str, Any] = {"topic": topic, "consumer_group": group}
    registered = ConsumerGroup.objects.using(log.alias).filter(**mine).first()
    if registered is None:
        return None
    withdrawing.before_move(log, group, topic, partition, target, keeps_states=purges)
    if not purges:
        check_part(log, registered, target, partition)
    _add_missing_offsets(log, registered, locked, layouts.numbers(log, topic) if partition is None else [partition])
    if partition is not None:
        mine["partition"] = partition
    offsets, ranges = (model._default_manager.using(log.alias).filter(**mine) for model in (Offset, BlockedRange))
    return GroupRows(registered, offsets, DeliveryState.objects.using(log.alias).filter(**mine), ranges)


def check_part(log: Log, group: ConsumerGroup, target: int, partition: int | None) -> None:
    """Raise ConfigurationError if one of several partitions is to be moved to below the start of a group. The start is
    that of all partitions: what the others have from before it would count as acked, and the group never got it."""
    if partition is None or target >= group.start or layouts.numbers(log, group.topic) == [partition]:
        return
    raise ConfigurationError(
        f"group {group.consumer_group!r} began at offset {group.start} of {group.topic!r}, in all partitions: it is "
        f"moved to offset {target} in all of them, not in partition {partition} alone"
    )


def _lower_watermarks(rows: GroupRows) -> None:
    """Lower the watermarks of offset rows, which are locked, below the unsettled delivery states and ranges."""
    unsettled = rows.states.unsettled().values("partition", "priority").annotate(lowest=Min("message_offset") - 1)
    for row in [*unsettled, *rows.ranges.values("partition", "priority").annotate(lowest=Min("low"))]:
        offsets = rows.offsets.filter(partition=row["partition"], priority=row["priority"])
        offsets.filter(offset_acked__gt=row["lowest"]).update(offset_acked=row["lowest"])


def _add_missing_offsets(log: Log, group: ConsumerGroup, topic: Topic, partitions: Sequence[int]) -> None:
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
