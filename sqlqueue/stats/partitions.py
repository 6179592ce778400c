"""Position, lag and problems of a group in each of its partitions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sqlqueue.core.settle_plan import NOT_IN_FLIGHT
from sqlqueue.database.log import Log
from sqlqueue.models import DeliveryState
from sqlqueue.stats.backlogs import backlogs_of
from sqlqueue.stats.positions import first_unacked, partitions_of
from sqlqueue.stats.processes import processes
from sqlqueue.stats.sampling import MOST_ROWS
from sqlqueue.stats.stuck import dispatched, limits_reached, may_be_full, stuck_partitions

# How many messages the ranges of a group hold, by partition and priority. Index: the ranges' unique key.
BLOCKED = """
    SELECT "partition", priority, SUM(messages) FROM (SELECT "partition", priority, messages FROM sqlqueue_blocked_range
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS waiting GROUP BY "partition", priority
"""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """A group in one partition and priority. Counts are of messages, ages in seconds.

    oldest: the offset of the oldest message that is not acked; settled: how long ago the last settle was; holder: the
    subscriber that owns it, "" for none; stuck: why the watermark stands still ("failing", "standing", "full", "held"),
    "" if it does not, or the group is paused; waits: the group may not start it yet, since an earlier epoch has
    something of its keys.
    """

    partition: int
    priority: int
    position: int
    watermark: int
    lag: int
    estimated: bool
    in_flight: int
    failing: int
    waiting: int
    oldest: int | None
    oldest_age: float | None
    settled: float | None
    holder: str
    stuck: str
    waits: bool = False

    @property
    def order(self) -> tuple[bool, bool, int, int, int]:
        """Sort key: first the stuck ones, then those with a lag and without an owner, then by lag."""
        return not self.stuck, bool(self.holder) or not self.lag, -self.lag, self.partition, self.priority


def partition_stats(
    log: Log, topic: str, group: str, outside_hours: bool = False, working_for: float | None = None
) -> list[PartitionStats]:
    """Return every partition and priority of a group, those that need attention first. At most 10,000 of its delivery
    states and of its ranges are counted. outside_hours, working_for: as in GroupSurvey, so that nothing is called stuck
    that is not to move."""
    partitions = partitions_of(log, topic, group)
    first = first_unacked(log, partitions)
    behind = [stored for stored in partitions if stored in first]
    backlogs = backlogs_of(log, behind)
    states = _states(log, topic, group)
    failing = behind if may_be_full(sum(map(len, states.values())), MOST_ROWS) else []
    alive = processes(log)
    limits = limits_reached(log, failing, backlogs, alive.horizon if alive.alive else None)
    in_flight = dispatched(log, first)
    standing = () if outside_hours else stuck_partitions(behind, first, limits, in_flight, alive.work, working_for)
    stuck = {(one.partition, one.priority): one.why for one in standing}
    ranges = _blocked(log, topic, group)
    found = []
    for stored in partitions:
        number = stored.partition, stored.priority
        backlog, rows = backlogs.get(stored), states.get(number, [])
        unsettled = [row for row in rows if not row.acked]
        waiting = [row for row in unsettled if row.in_flight == NOT_IN_FLIGHT]
        known = sum(row.message_offset <= stored.position for row in unsettled)
        done = sum(row.acked and row.message_offset > stored.position for row in rows)
        offset, age = first.get(stored, (None, None))
        blocked = ranges.get(number, 0)
        found.append(
            PartitionStats(
                *number,
                stored.position,
                stored.watermark,
                max(0, (backlog.messages if backlog else 0) + known - done + blocked),
                backlog.estimated if backlog else False,
                len(unsettled) - len(waiting) + (backlog.claimed if backlog else 0),
                sum(row.retry_count > 0 for row in waiting),
                sum(row.retry_count <= 0 for row in waiting) + blocked,
                offset,
                age,
                stored.settled,
                stored.holder if stored.owned else "",
                stuck.get(number, ""),
                stored.waits,
            )
        )
    return sorted(found, key=lambda one: one.order)


def _states(log: Log, topic: str, group: str) -> dict[tuple[int, int], list[DeliveryState]]:
    rows = DeliveryState.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    columns = ("partition", "priority", "message_offset", "acked", "in_flight", "retry_count")
    found: dict[tuple[int, int], list[DeliveryState]] = defaultdict(list)
    for row in rows.only(*columns)[:MOST_ROWS]:
        found[row.partition, row.priority].append(row)
    return found


def _blocked(log: Log, topic: str, group: str) -> dict[tuple[int, int], int]:
    """Return about how many messages wait in the blocked ranges of each partition and priority."""
    rows = log.execute(BLOCKED, (topic, group, MOST_ROWS)).fetchall()
    return {(partition, priority): int(count) for partition, priority, count in rows}
