"""Finds partitions whose watermark stands still, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from sqlqueue.database.fields import DatabaseNow
from sqlqueue.models import Progress
from sqlqueue.stats.backlogs import Backlog
from sqlqueue.stats.full_partitions import full_partitions, held_partitions
from sqlqueue.stats.positions import StoredPartition

STANDS_STILL = 60.0  # seconds without a settle, although there is something to do
HELD_BACK = 300.0  # seconds for which a failing message may hold the watermark before the partition is stuck


@dataclass(frozen=True, slots=True)
class Stuck:
    """A partition whose watermark stands still at `offset`, the oldest message that is not acked, for `seconds`.

    why: "failing" (that message fails again and again, and is retried), "standing" (nothing was settled lately), "full"
    or "held" (a limit is reached, and nothing new is read: too many messages fail, or too many were delivered beyond a
    publishing transaction that is still open).
    """

    partition: int
    priority: int
    offset: int
    seconds: float
    why: str
    slice: int = 0


def limits_reached(
    alias: str, failing: Iterable[StoredPartition], backlogs: dict[StoredPartition, Backlog], horizon: int | None
) -> dict[StoredPartition, str]:
    """Return which partitions have reached a limit, so that nothing new is read there: "full" or "held".

    failing: partitions in which many messages may wait; horizon: the highest that a consumer knows, None without one.
    """
    beyond = [
        stored
        for stored, backlog in backlogs.items()
        if horizon is not None and backlog.first > horizon and backlog.last > stored.claimed
    ]
    full = full_partitions(alias, [stored for stored in failing if stored in backlogs])
    return {**dict.fromkeys(held_partitions(alias, beyond), "held"), **dict.fromkeys(full, "full")}


def reporting_groups(alias: str, first: dict[StoredPartition, tuple[int, float]]) -> set[tuple[str, str]]:
    """Return the (topic, group) of which a handler has reported progress lately; no statement if nothing has waited for
    longer. While one does, what is behind it waits for a handler that works. One that hangs is ended at its limit."""
    if all(age <= STANDS_STILL for _, age in first.values()):
        return set()
    lately = Progress.objects.using(alias).filter(updated_at__gt=DatabaseNow() - timedelta(seconds=STANDS_STILL))
    return set(lately.values_list("topic", "consumer_group").distinct())


def stuck_partitions(
    partitions: Iterable[StoredPartition],
    first: dict[StoredPartition, tuple[int, float]],
    limits: dict[StoredPartition, str],
    working_for: float | None = None,
    reporting: Collection[tuple[str, str]] = (),
) -> Iterator[Stuck]:
    """Yield the partitions whose watermark stands still, except for paused ones and those that wait for an earlier
    epoch. limits: those that have reached a limit;
    working_for: seconds since the group's active hours began: before that nothing was to move; reporting: the (topic,
    group) of which a handler reports progress, see reporting_groups()."""
    for stored in partitions:
        offset, age = first[stored]
        if working_for is not None:
            age = min(age, working_for)
        if stored.paused or stored.waits:
            continue
        if stored in limits:
            yield Stuck(stored.partition, stored.priority, offset, age, limits[stored], stored.slice)
        elif offset <= stored.position:  # an unacked message there has a row: it failed, or waits
            if age > HELD_BACK:
                yield Stuck(stored.partition, stored.priority, offset, age, "failing", stored.slice)
        elif (stored.topic, stored.group) in reporting:
            continue
        elif age > STANDS_STILL and (stored.settled is None or stored.settled > STANDS_STILL):
            seconds = age if stored.settled is None else min(age, stored.settled)
            yield Stuck(stored.partition, stored.priority, offset, seconds, "standing", stored.slice)
