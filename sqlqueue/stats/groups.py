"""Reads of each group and topic what is stored beside the positions: whether it is paused, and its delivery states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.utils.translation import gettext as _

from sqlqueue.core.flow import Flow, in_effect
from sqlqueue.database.log import Log
from sqlqueue.models import ConsumerGroup, LimitShare
from sqlqueue.stats import sampling
from sqlqueue.stats.stuck import Stuck
from sqlqueue.stats.throughput import NO_RATE, Rate

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
# How many messages the ranges of a group hold; reads at most so many ranges. Index: the ranges' unique key.
BLOCKED = """
    SELECT %s, COALESCE(SUM(messages), 0) FROM (SELECT messages FROM sqlqueue_blocked_range
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS waiting
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
    active: str  # its active hours; "": at all times
    outside_hours: bool
    working_for: float | None  # since its active hours began; None: it has none, or is outside them
    limited: bool  # messages of it wait for its rate or concurrency limit
    budget_spent: bool  # so much has failed that it tries one message at a time
    waiting_partitions: int = 0  # of a later epoch: they wait until it has settled what is in an earlier one
    rate: Rate = NO_RATE  # of its last minutes

    @property
    def away(self) -> bool:
        """Whether no process serves it and it has messages to read, so that collection waits for it."""
        return not self.subscribers and self.lag > 0

    @property
    def rests(self) -> bool:
        """Whether it is not to work now: it is paused, or outside its active hours."""
        return self.paused or self.outside_hours

    @property
    def waited(self) -> float | None:
        """For how long the oldest unsettled message has waited while the group was to work; None if there is none, or
        it is outside its active hours."""
        if self.oldest_age is None or self.outside_hours:
            return None
        return self.oldest_age if self.working_for is None else min(self.oldest_age, self.working_for)


def states(group: GroupSurvey) -> list[str]:
    """Return the unusual states of a group as texts, in the active language."""
    if group.paused:  # its partitions have no owner and stand still by intention
        return [_("paused")]
    if group.outside_hours:
        return [_("outside its hours")]
    found = [_("away: holds back collection")] if group.away else []
    if group.budget_spent:
        found.append(_("retry budget spent"))
    elif group.limited:
        found.append(_("limited"))
    if group.stuck:
        found.append(_("stuck"))
    if group.waiting_partitions:
        found.append(_("%(count)d wait for an earlier epoch") % {"count": group.waiting_partitions})
    if group.unowned and group.subscribers:
        found.append(_("%(count)d without owner") % {"count": group.unowned})
    return found


class StoredGroup(NamedTuple):
    """What an operator and the consumers have set of a group: whether it is paused, its active hours and limits."""

    paused: bool
    flow: Flow
    opened: bool  # its retry budget was spent, if it has one

    @property
    def budget_spent(self) -> bool:
        """Whether so much has failed that it tries one message at a time."""
        return self.opened and self.flow.budget is not None

    def outside_hours(self, now: datetime) -> bool:
        """Tell whether it is outside its active hours at a time of the database's clock."""
        return self.flow.active is not None and not self.flow.active.contains(now)

    def working_for(self, now: datetime) -> float | None:
        """Return for how many seconds its active hours have lasted; None if it has none, or is outside them."""
        began = self.flow.active and self.flow.active.began(now)
        return (now - began).total_seconds() if began else None


def stored_groups(log: Log, only: str, only_group: str) -> dict[tuple[str, str], StoredGroup]:
    """Return the registered (topic, group), or those of one topic, or one of these, and what is set of each."""
    wanted = {name: value for name, value in (("topic", only), ("consumer_group", only_group)) if value}
    rows = ConsumerGroup.objects.using(log.alias).filter(**wanted)
    columns = rows.values_list("topic", "consumer_group", "paused", "opened_at", "flow", "flow_overrides")
    return {
        (topic, group): StoredGroup(paused, in_effect(*texts), opened_at is not None)
        for topic, group, paused, opened_at, *texts in columns
    }


def limited_groups(log: Log, groups: Mapping[tuple[str, str], StoredGroup]) -> set[tuple[str, str]]:
    """Return the (topic, group) in which a live process holds messages back because of a limit. No statement if none
    has limits."""
    limited = {group_topic for group_topic, stored in groups.items() if stored.flow.shared}
    if not limited:
        return limited
    held_back = LimitShare.objects.using(log.alias).alive().filter(held_back=True)
    return limited.intersection(held_back.values_list("topic", "consumer_group"))


def states_of(log: Log, groups: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return, by group, how many delivery states were counted, how many are in flight, fail and wait, and by how
    many messages they change the backlog above the position."""
    most = sampling.MOST_ROWS + 1
    found = sampling.each(log, STATES, {group: (*group, most, *group) for group in groups})
    return {group: tuple(int(count or 0) for count in counts) for group, counts in found}


def blocked_in_groups(log: Log, groups: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return how many messages lie in the blocked ranges of each (topic, group): an estimate."""
    found = sampling.each(log, BLOCKED, {group: (*group, sampling.MOST_ROWS) for group in groups})
    return {group: int(count) for group, (count,) in found}
