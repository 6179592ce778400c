"""Sharers: the living subscribers of each group, as one subscriber sees them.

A look reads one row of each subscriber, whatever number of groups it serves: the row names its cohort. What a cohort
serves is read once, from the rows of one of its subscribers, and remembered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlqueue.core.cohorts import GroupTopic, Serving, cohort_of
from sqlqueue.core.partition_numbers import Numbers, stored_numbers
from sqlqueue.database.lock_timeouts import unless_locked
from sqlqueue.leases.heartbeat import AT_MOST
from sqlqueue.models.subscriber_heartbeat import AHEAD, ALONE, STREAM

# A row of each living subscriber; all rows of one of an older version. Index: the heartbeats' cohort.
LIVING = """
    SELECT cohort, subscriber, server, consumer_group, topic, partitions, sharing
    FROM sqlqueue_subscriber_heartbeat{by_cohort} WHERE cohort > '' AND expires_at > {now} AND beat_at < {later}
"""
# All rows of these subscribers. Index: the heartbeats' subscriber.
SERVING = """
    SELECT subscriber, consumer_group, topic, partitions, sharing FROM sqlqueue_subscriber_heartbeat
    WHERE subscriber IN ({marks})
"""
AT_ONCE = 200  # subscribers


Row = tuple[str, str, str, str, str, str, int]


@dataclass(slots=True, eq=False)
class Sharers:
    """The subscribers of one (group, topic), with the partitions that each serves (None: all), and how many slices they
    ask for. outdated: one of them runs a version that shares by the former rule."""

    subscribers: dict[str, Numbers | None] = field(default_factory=dict)
    sharing: set[int] = field(default_factory=set)
    outdated: bool = False


class Lookout:
    """Looks for the subscribers. servers: the identities of the servers that those of the groups asked for write to;
    reserve: the subscribers of each cohort without the one whose name comes first; living: how many there are of
    whatever groups, without those that do not share what they find to be the horizon: Spark streams, and older
    versions."""

    def __init__(self, alias: str):
        self.alias = alias
        self.servers: set[str] = set()
        self.reserve: frozenset[str] = frozenset()
        self.living = 0
        self._seen: frozenset[tuple[object, ...]] = frozenset()
        self._cohorts: dict[str, Serving] = {}
        self._known: dict[GroupTopic, Sharers] = {}

    def look(self, groups: Collection[GroupTopic]) -> Mapping[GroupTopic, Sharers]:
        """Return the sharers of groups: the same objects as the last time, if nothing has changed. Raises TableLocked
        in place of waiting."""
        rows = self._rows(LIVING, (round(AHEAD.total_seconds() * 1_000_000),))
        seen = frozenset(row if row[0] == ALONE else row[:3] for row in rows)
        if seen != self._seen or self._known.keys() != set(groups):
            served = [*self._of_cohorts(rows), *_alone(rows)]
            self._known = {group_topic: _sharers(group_topic, served) for group_topic in groups}
            of_groups = {name for one in self._known.values() for name in one.subscribers}
            self.servers = {server for _, subscriber, server, *_ in rows if subscriber in of_groups}
            self.living = sum(row[0] != ALONE and not row[1].startswith(STREAM) for row in rows)
            self.reserve = frozenset(name for some in _members(rows).values() for name in sorted(some)[1:])
            self._seen = seen
        return self._known

    def known(self, group_topic: GroupTopic) -> Mapping[str, Numbers | None]:
        """Return the subscribers of a group, as of the last look at it."""
        return self._known[group_topic].subscribers if group_topic in self._known else {}

    def _of_cohorts(self, rows: Sequence[Row]) -> list[_Served]:
        members = _members(rows)
        self._cohorts = {cohort: self._cohorts[cohort] for cohort in members if cohort in self._cohorts}
        speakers = {cohort: some[0] for cohort, some in members.items() if cohort not in self._cohorts}
        read = self._read(speakers.values())
        for cohort, speaker in speakers.items():
            if cohort_of(read[speaker]) == cohort:
                self._cohorts[cohort] = read[speaker]
        # The one that was to speak for the others has left since.
        left = {name for cohort, some in members.items() if cohort not in self._cohorts for name in some}
        known = [_Served(serving, members[cohort]) for cohort, serving in self._cohorts.items()]
        return known + [_Served(serving, [name]) for name, serving in self._read(left).items()]

    def _read(self, subscribers: Iterable[str]) -> dict[str, dict[GroupTopic, tuple[str, int]]]:
        names = sorted(subscribers)
        found: dict[str, dict[GroupTopic, tuple[str, int]]] = defaultdict(dict)
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            text = SERVING.replace("{marks}", ", ".join(["%s"] * len(some)))
            for subscriber, group, topic, partitions, sharing in self._rows(text, some):
                found[subscriber][group, topic] = partitions, sharing
        return found

    def _rows(self, text: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        return unless_locked(self.alias, text, parameters, seconds=AT_MOST)


class _Served(NamedTuple):
    """What some subscribers serve, each of them all of it."""

    serving: Serving
    subscribers: list[str]
    outdated: bool = False


def _members(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the subscribers of each cohort."""
    members: dict[str, list[str]] = defaultdict(list)
    for cohort, subscriber, *_ in rows:
        if cohort != ALONE:
            members[cohort].append(subscriber)
    return members


def _alone(rows: Sequence[Row]) -> list[_Served]:
    """Return what the rows say that speak for themselves."""
    return [
        _Served({(group, topic): (partitions, sharing)}, [subscriber], True)
        for cohort, subscriber, _, group, topic, partitions, sharing in rows
        if cohort == ALONE
    ]


def _sharers(group_topic: GroupTopic, served: Sequence[_Served]) -> Sharers:
    found = Sharers()
    for serving, subscribers, outdated in served:
        if group_topic in serving:
            partitions, sharing = serving[group_topic]
            found.subscribers.update(dict.fromkeys(subscribers, stored_numbers(partitions)))
            found.sharing.add(sharing)
            found.outdated = found.outdated or outdated
    return found
