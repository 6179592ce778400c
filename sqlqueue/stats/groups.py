"""Reads of each group and topic what is stored beside the positions: whether it is paused, and its delivery states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlqueue.database.statements import dialect, execute
from sqlqueue.models import ConsumerGroup
from sqlqueue.stats import sampling
from sqlqueue.stats.stuck import Stuck

# Counts of a group's delivery states. Index: the states' unique key; the offsets' unique key.
STATES = """
    SELECT %s, COUNT(*), SUM(CASE WHEN s.acked = {false} AND s.in_flight <> 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.in_flight = 0 AND s.retry_count > 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.in_flight = 0 AND s.retry_count <= 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.message_offset <= o.position THEN 1
    WHEN s.acked = {true} AND s.message_offset > o.position THEN -1 ELSE 0 END)
    FROM (SELECT "partition", priority, message_offset, acked, in_flight, retry_count FROM sqlqueue_delivery_state
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS s
    JOIN sqlqueue_offset o ON o.topic = %s AND o.consumer_group = %s AND o."partition" = s."partition"
    AND o.priority = s.priority
"""


@dataclass(frozen=True, slots=True)
class GroupSurvey:
    """Counts of a group in a topic: of messages, ages in seconds."""

    topic: str
    group: str
    paused: bool  # the group, or its topic
    partitions: int
    lag: int  # not settled, whether unread, waiting or in flight
    estimated: bool  # the lag is an estimate
    oldest_age: float | None  # since the oldest unsettled message was published
    in_flight: int
    failing: int  # dispatched before, wait for their retry
    waiting: int  # postponed, delayed, or blocked (an estimate)
    dead_letters: int  # of the first 10,000 of its topic
    more_dead_letters: bool  # its topic has more than these, perhaps of this group
    subscribers: int
    unowned: int  # partitions without an owner
    stuck: tuple[Stuck, ...]

    @property
    def away(self) -> bool:
        """Whether no process serves it and it has messages to read, so that collection waits for it."""
        return not self.subscribers and self.lag > 0


def paused_groups(alias: str, only: str, only_group: str) -> dict[tuple[str, str], bool]:
    """Return the registered (topic, group), or those of one topic, or one of these, and whether each is paused."""
    wanted = {name: value for name, value in (("topic", only), ("consumer_group", only_group)) if value}
    rows = ConsumerGroup.objects.using(alias).filter(**wanted).values_list("topic", "consumer_group", "paused")
    return {(topic, group): paused for topic, group, paused in rows}


def states_of(alias: str, groups: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return, by group, how many delivery states were counted, how many are in flight, fail and wait, and by how
    many messages they change the backlog above the position."""
    branch = dialect(alias).branch.format(STATES.strip())
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for some in sampling.chunks(groups, sampling.TABLES_AT_ONCE):
        most = sampling.MOST_ROWS + 1
        values = [value for index, group in enumerate(some) for value in (index, *group, most, *group)]
        for index, *counts in execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall():
            found[some[index]] = tuple(int(count or 0) for count in counts)
    return found
