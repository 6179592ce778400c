"""The survey: stats of every topic and group, read from the tables in a few statements.

Their number grows by a few for every few hundred partitions and for every long backlog, and what they read of a group
is bounded: its backlog is counted up to EXACT messages, beyond that estimated from windows over it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlqueue.conf import settings
from sqlqueue.core import effects
from sqlqueue.core.effects import Count
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database import clock, write_probe
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.transactions import in_test_case
from sqlqueue.database.write_probe import Writing
from sqlqueue.log import layouts
from sqlqueue.models import PublishGate, dead_letter_topic
from sqlqueue.stats import counting
from sqlqueue.stats.groups import GroupSurvey, limited_groups, stored_groups
from sqlqueue.stats.partitions import (
    Backlog,
    PartitionSurvey,
    States,
    StoredPartition,
    backlogs_of,
    blocked_in,
    first_unacked,
    partitions_of,
    states_of,
)
from sqlqueue.stats.processes import Death, Late, horizon_lag, late_ones, probed
from sqlqueue.stats.processes import processes as read_processes
from sqlqueue.stats.stuck import Stuck, dispatched, limits_reached, stuck_partitions
from sqlqueue.stats.throughput import NO_RATE, rates
from sqlqueue.stats.topics import TopicSurvey, changes, dead_letters_in, scheduled_in, topics_of, with_messages

NO_STATES = States()


@dataclass(frozen=True, slots=True)
class Survey:
    """Stats of the whole queue at one time of the database's clock.

    horizon_lag: how many offsets an open publishing transaction holds above the horizon; horizon_age: the age in
    seconds of the first message above it, so for how long at most; both are 0 without consumers. failing: background
    tasks of live consumers that fail again and again, with their errors. servers: the database servers that live
    consumers write to. overdue_elsewhere, refused_elsewhere: scheduled messages for topics that do not exist. deaths:
    consumer processes that died, no successor of which has lived a minute, the last one first; late: for how many
    seconds each process that is to be alive has written no heartbeat, where that is too long. writing: whether the
    database takes writes; it is tried unless one topic is asked for, or the survey is of a test case's transaction.
    """

    taken_at: datetime
    topics: tuple[TopicSurvey, ...]
    groups: tuple[GroupSurvey, ...]
    subscribers: int
    highest_offset: int
    horizon_lag: int
    horizon_age: float
    failing: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    overdue_elsewhere: int = 0
    refused_elsewhere: int = 0
    deaths: tuple[Death, ...] = ()
    late: tuple[Late, ...] = ()
    writing: Writing = field(default_factory=Writing)
    database: str = ""  # the alias; "": there is one log only

    def group(self, topic: str, group: str) -> GroupSurvey | None:
        """Return one group's stats; None if it is not registered."""
        return next((one for one in self.groups if (one.topic, one.group) == (topic, group)), None)


class Reads:
    """What the statements of a survey read, in their order. Groups are (topic, group)."""

    def __init__(self, log: Log, only: str, only_group: str):
        self.highest = highest_offset(log)
        self.partitions: dict[tuple[str, str], list[StoredPartition]] = defaultdict(list)
        partitions = partitions_of(log, only, only_group)
        for stored in partitions:
            self.partitions[stored.topic, stored.group].append(stored)
        self.first = first_unacked(log, partitions)
        self.backlogs = backlogs_of(log, list(self.first), self.highest)
        self.topics = topics_of(log, only)
        self.paused = {topic.name for topic in self.topics if topic.paused}
        self.processes = read_processes(log)
        alive = self.processes.alive
        self.horizon = probed(log, self.processes.horizon, self.highest) if alive else self.processes.horizon
        self.groups = stored_groups(log, only, only_group)
        self.states = states_of(log, list(self.groups))
        self.rows: Counter[tuple[str, str]] = Counter()  # delivery states that were counted
        for (topic, group, *_stream), states in self.states.items():
            self.rows[topic, group] += states.rows
        self.blocked = blocked_in(log, list(self.groups))
        names = [topic.name for topic in self.topics]
        # By dead-letter topic and group; and of all groups.
        self.dead_letters = dead_letters_in(log, [name for name in names if name.endswith(DEAD_LETTER_SUFFIX)])
        self.all_dead_letters: dict[str, int] = defaultdict(int)
        for (topic_name, group), count in self.dead_letters.items():
            self.all_dead_letters[topic_name] += count if group else 0
        self.unread = with_messages(log, set(names) - {topic for topic, _group in self.groups})
        self.scheduled, self.refused = scheduled_in(log, False), scheduled_in(log, True)
        altered = [topic.name for topic in self.topics if topic.altered]  # type: ignore[attr-defined]
        self.epochs = {name: layouts.epochs(log, name) for name in altered}
        self.limits = limits_reached(log, self.rows, self.backlogs, self.horizon if alive else None)
        self.limited = limited_groups(log, self.groups)
        self.in_flight = dispatched(log, self.first)  # the partitions whose oldest message is dispatched
        self.counts = {} if only_group else _effects_of(log, names)
        self.changes = changes(log, self.topics)
        # As Django gives it, so that columns can be compared with it.
        times = PublishGate.objects.using(log.alias).annotate(now=DatabaseNow())
        self.taken_at: datetime = times.values_list("now", flat=True)[0]
        self.rates = rates(log, self.taken_at)

    def stuck(self, group_topic: tuple[str, str]) -> list[Stuck]:
        """Return the partitions of a group whose watermark stands still, although it is to move."""
        known, now = self.groups[group_topic], clock.moment(self.taken_at)
        if known.outside_hours(now):
            return []
        behind = [stored for stored in self.partitions[group_topic] if stored in self.first]
        of_first = (self.first, self.limits, self.in_flight, self.processes.work)
        found = list(stuck_partitions(behind, *of_first, known.working_for(now)))
        if group_topic in self.limited or known.budget_spent:  # it is to stand still meanwhile
            found = [one for one in found if one.why != "standing"]
        of_keys = (known.flow.rate_per_key, known.flow.concurrency_per_key)
        if of_keys != (None, None) and not any(self.states.get(one[:4], NO_STATES).failing for one in behind):
            # No message waits for a retry: the one that holds the watermark waits for a limit of its key.
            found = [one for one in found if one.why != "failing"]
        return found

    def partition(self, stored: StoredPartition, reasons: Mapping[tuple[int, int], str]) -> PartitionSurvey:
        """Return a group's stats in a partition. reasons: why those that stand still do so."""
        oldest, oldest_age = self.first.get(stored, (None, None))
        backlog, states = self.backlogs.get(stored, Backlog()), self.states.get(stored[:4], NO_STATES)
        blocked = self.blocked.get(stored[:4], 0)
        return PartitionSurvey(
            stored.partition,
            stored.priority,
            stored.position,
            stored.watermark,
            max(0, backlog.messages + states.difference + blocked),
            backlog.estimated,
            states.in_flight + backlog.claimed,
            states.failing,
            states.waiting + blocked,
            oldest,
            oldest_age,
            stored.settled,
            stored.holder if stored.owned else "",
            reasons.get((stored.partition, stored.priority), ""),
            stored.waits,
        )


def survey(log: Log, only: str = "", only_group: str = "") -> Survey:
    """Read the stats of the whole queue, or of only one topic and its groups, or of one of these. `subscribers` always
    counts all that are alive; what effects have is counted unless one group is asked for."""
    return _survey(log, only, only_group)[0]


def survey_with_partitions(log: Log, topic: str, group: str) -> tuple[Survey, list[PartitionSurvey]]:
    """Read the stats of one group, and of every partition and priority of it, those that need attention first."""
    seen, partitions = _survey(log, topic, group)
    return seen, sorted(partitions, key=lambda one: one.order)


def _survey(log: Log, only: str, only_group: str) -> tuple[Survey, list[PartitionSurvey]]:
    probe = None if only or in_test_case(log.connection) else write_probe.start(_primary(log))
    reads = Reads(log, only, only_group)
    alive = reads.processes.alive
    lag, age = horizon_lag(log, reads.horizon, reads.highest) if alive else (0, 0.0)
    elsewhere = set() if only else {*reads.scheduled, *reads.refused} - {topic.name for topic in reads.topics}
    groups: list[GroupSurvey] = []
    partitions: list[PartitionSurvey] = []
    for group_topic in sorted(reads.groups):
        stuck = reads.stuck(group_topic)
        reasons = {(one.partition, one.priority): one.why for one in stuck}
        its = [reads.partition(stored, reasons) for stored in reads.partitions[group_topic]]
        groups.append(_group_survey(reads, group_topic, its, stuck))
        partitions += its
    seen = Survey(
        reads.taken_at,
        tuple(_topic_surveys(reads)),
        tuple(groups),
        alive,
        reads.highest,
        lag,
        age,
        reads.processes.failing,
        reads.processes.servers,
        sum(reads.scheduled[name][1] for name in elsewhere if name in reads.scheduled),
        sum(reads.refused[name][0] for name in elsewhere if name in reads.refused),
        reads.processes.deaths,
        late_ones(reads.processes, reads.taken_at),
        probe.outcome() if probe else Writing(),
        _primary(log).label,
    )
    return seen, partitions


def _primary(log: Log) -> Log:
    return home_log() if settings.is_replica(log.alias) else log


def _group_survey(
    reads: Reads, group_topic: tuple[str, str], partitions: Sequence[PartitionSurvey], stuck: Sequence[Stuck]
) -> GroupSurvey:
    topic, group = group_topic
    known, now = reads.groups[group_topic], clock.moment(reads.taken_at)
    return GroupSurvey(
        topic,
        group,
        known.paused or topic in reads.paused,
        len({one.partition for one in partitions}),
        sum(one.lag for one in partitions),
        any(one.estimated for one in partitions) or reads.rows[group_topic] > counting.MOST_ROWS,
        max((one.oldest_age for one in partitions if one.oldest_age is not None), default=None),
        sum(one.in_flight for one in partitions),
        sum(one.failing for one in partitions),
        sum(one.waiting for one in partitions),
        reads.dead_letters.get((dead_letter_topic(topic), group), 0),
        reads.all_dead_letters.get(dead_letter_topic(topic), 0) >= counting.MOST_ROWS,
        reads.processes.members.get(group_topic, 0),
        len({one.partition for one in partitions if not (one.holder or one.waits)}),
        tuple(stuck),
        known.flow.active.text if known.flow.active else "",
        known.outside_hours(now),
        known.working_for(now),
        group_topic in reads.limited,
        known.budget_spent,
        len({one.partition for one in partitions if one.waits}),
        reads.rates.get(group_topic, NO_RATE),
    )


def _topic_surveys(reads: Reads) -> Iterator[TopicSurvey]:
    both = (reads.scheduled, reads.refused)
    more_scheduled, more_refused = (sum(n for n, _ in found.values()) >= counting.MOST_ROWS for found in both)
    for topic in reads.topics:
        if topic.name.endswith(DEAD_LETTER_SUFFIX):
            continue
        dead_letters = reads.all_dead_letters.get(dead_letter_topic(topic.name), 0)
        yield TopicSurvey(
            topic.name,
            topic.present_partitions,  # type: ignore[attr-defined]
            topic.priorities,
            topic.paused,
            topic.retention,
            topic.history,
            topic.overridden,
            topic.name in reads.unread,
            dead_letters,
            dead_letters >= counting.MOST_ROWS,
            *reads.scheduled.get(topic.name, (0, 0)),
            reads.refused.get(topic.name, (0, 0))[0],
            more_scheduled,
            more_refused,
            counts=reads.counts.get(topic.name, {}),
            epoch=reads.epochs[topic.name][-1].number if topic.name in reads.epochs else 0,
            change=reads.changes.get(topic.name),
        )


def _effects_of(log: Log, topics: list[str]) -> dict[str, dict[str, Count]]:
    found: dict[str, dict[str, Count]] = {}
    for effect in effects.registered():
        for topic, counts in effect.survey(log, topics).items():
            found.setdefault(topic, {}).update(counts)
    return found
