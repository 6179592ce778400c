"""What a survey says of a group, and what operators and consumers have set of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.utils.translation import gettext as _

from sqlqueue.core.flow import Flow, in_effect
from sqlqueue.database.log import Log
from sqlqueue.models import ConsumerGroup, LimitShare
from sqlqueue.stats.stuck import Stuck
from sqlqueue.stats.throughput import NO_RATE, Rate


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
