"""How a group stands in each of its partitions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from django.db.models import Max

from sqlqueue.core.plan import NOT_IN_FLIGHT
from sqlqueue.models import DeliveryState, PartitionLease, SubscriberHeartbeat
from sqlqueue.observe.blocked import blocked_in_streams
from sqlqueue.observe.full import may_be_full
from sqlqueue.observe.survey import MOST_ROWS, backlogs_of, first_unacked, limits_reached, streams_of, stuck_streams


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """A group's place in one priority of one partition. Counts are of messages, ages in seconds.

    oldest: the offset of the oldest message that is not acked; settled: how long ago something was settled last;
    holder: who owns it, "" for nobody; stuck: why the watermark stands still ("failing", "standing", "full", "held"),
    "" if it does not.
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

    @property
    def order(self) -> tuple[bool, bool, int, int, int]:
        """What matters first: the stuck, then those that nobody owns although there is something to do, then by lag."""
        return not self.stuck, bool(self.holder) or not self.lag, -self.lag, self.partition, self.priority


def survey_partitions(alias: str, topic: str, group: str) -> list[PartitionSurvey]:
    """Return every partition of a group, what matters first. Its delivery states and ranges count up to the first
    10,000."""
    streams = streams_of(alias, topic, group)
    first = first_unacked(alias, streams)
    behind = [stream for stream in streams if stream in first]
    backlogs = backlogs_of(alias, behind)
    mine = {"topic": topic, "consumer_group": group}
    holders = dict(PartitionLease.objects.using(alias).filter(**mine).values_list("partition", "holder"))
    states = _states(alias, topic, group)
    failing = behind if may_be_full(sum(map(len, states.values())), MOST_ROWS) else []
    limits = limits_reached(alias, failing, backlogs, _horizon(alias))
    stuck = {(one.partition, one.priority): one.why for one in stuck_streams(behind, first, limits)}
    ranges = blocked_in_streams(alias, topic, group, MOST_ROWS)
    found = []
    for stream in streams:
        place = stream.partition, stream.priority
        backlog, rows = backlogs.get(stream), states.get(place, [])
        unsettled = [row for row in rows if not row.acked]
        resting = [row for row in unsettled if row.in_flight == NOT_IN_FLIGHT]
        known = sum(row.message_offset <= stream.position for row in unsettled)
        done = sum(row.acked and row.message_offset > stream.position for row in rows)
        offset, age = first.get(stream, (None, None))
        blocked = ranges.get(place, 0)
        found.append(
            PartitionSurvey(
                *place,
                stream.position,
                stream.watermark,
                max(0, (backlog.messages if backlog else 0) + known - done + blocked),
                backlog.estimated if backlog else False,
                len(unsettled) - len(resting) + (backlog.handed if backlog else 0),
                sum(row.retry_count > 0 for row in resting),
                sum(row.retry_count <= 0 for row in resting) + blocked,
                offset,
                age,
                stream.settled,
                holders.get(stream.partition, "") if stream.owned else "",
                stuck.get(place, ""),
            )
        )
    return sorted(found, key=lambda one: one.order)


def _horizon(alias: str) -> int | None:
    """The highest that a consumer knows; None if there is none."""
    known: int | None = SubscriberHeartbeat.objects.using(alias).alive().aggregate(known=Max("horizon"))["known"]
    return known


def _states(alias: str, topic: str, group: str) -> dict[tuple[int, int], list[DeliveryState]]:
    rows = DeliveryState.objects.using(alias).filter(topic=topic, consumer_group=group)
    columns = ("partition", "priority", "message_offset", "acked", "in_flight", "retry_count")
    found: dict[tuple[int, int], list[DeliveryState]] = defaultdict(list)
    for row in rows.only(*columns)[:MOST_ROWS]:
        found[row.partition, row.priority].append(row)
    return found
