"""The living subscribers of each group, as one subscriber sees them.

A look reads one row of each subscriber, whatever number of groups it serves: that row has a digest of what it serves.
What a digest stands for is read once, from the rows of one of the subscribers that have it, and remembered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.database.lock_timeouts import unless_locked
from sqlqueue.database.log import Log
from sqlqueue.leases.heartbeat import AT_MOST, digest_of
from sqlqueue.models.subscriber_heartbeat import AHEAD, STREAM

# A row of each living subscriber. Index: the heartbeats' digests.
LIVING = """
    SELECT serves, subscriber FROM sqlqueue_subscriber_heartbeat{by_digest}
    WHERE serves > '' AND expires_at > {now} AND beat_at < {later}
"""
# All rows of these subscribers. Index: the heartbeats' subscriber.
SERVING = """
    SELECT subscriber, consumer_group, topic FROM sqlqueue_subscriber_heartbeat
    WHERE subscriber IN ({marks})
"""
AT_ONCE = 200  # subscribers


class LivingSubscribers:
    """Looks for the subscribers. reserve: of those that serve the same, all but the one whose name comes first;
    living: how many there are of whatever groups, without Spark streams, which do not share what they find to be the
    horizon."""

    def __init__(self, log: Log):
        self.log = log
        self.reserve: frozenset[str] = frozenset()
        self.living = 0
        self._seen: frozenset[tuple[str, str]] = frozenset()
        self._by_digest: dict[str, Set[GroupTopic]] = {}
        self._known: dict[GroupTopic, Sequence[str]] = {}

    def look(self, groups: Collection[GroupTopic]) -> Mapping[GroupTopic, Sequence[str]]:
        """Return the subscribers of groups, in the order of their names: the same objects as the last time, if nothing
        has changed. Raises TableLocked in place of waiting."""
        seen = frozenset(self._rows(LIVING, (round(AHEAD.total_seconds() * 1_000_000),)))
        if seen != self._seen or self._known.keys() != set(groups):
            alike: dict[str, list[str]] = defaultdict(list)  # the subscribers of each digest
            for digest, subscriber in sorted(seen):
                alike[digest].append(subscriber)
            self._known = self._of_groups(groups, alike)
            self.living = sum(not subscriber.startswith(STREAM) for _, subscriber in seen)
            self.reserve = frozenset(name for some in alike.values() for name in some[1:])
            self._seen = seen
        return self._known

    def of(self, group_topic: GroupTopic) -> Sequence[str]:
        """Return the subscribers of a group, as of the last look at it."""
        return self._known.get(group_topic, ())

    def _of_groups(
        self, groups: Iterable[GroupTopic], alike: Mapping[str, Sequence[str]]
    ) -> dict[GroupTopic, Sequence[str]]:
        found: dict[GroupTopic, set[str]] = {group_topic: set() for group_topic in groups}
        for group_topics, subscribers in self._served(alike):
            for group_topic in found.keys() & group_topics:
                found[group_topic].update(subscribers)
        return {group_topic: sorted(subscribers) for group_topic, subscribers in found.items()}

    def _served(self, alike: Mapping[str, Sequence[str]]) -> list[tuple[Set[GroupTopic], Sequence[str]]]:
        """Return what is served, and by which subscribers."""
        self._by_digest = {digest: self._by_digest[digest] for digest in alike if digest in self._by_digest}
        asked = {digest: some[0] for digest, some in alike.items() if digest not in self._by_digest}
        read = self._read(asked.values())
        for digest, subscriber in asked.items():
            if digest_of(read[subscriber]) == digest:
                self._by_digest[digest] = read[subscriber]
        found = [(served, alike[digest]) for digest, served in self._by_digest.items()]
        # The one whose rows were to say it for the others has left since.
        left = {name for digest, some in alike.items() if digest not in self._by_digest for name in some}
        return found + [(served, [name]) for name, served in self._read(left).items()]

    def _read(self, subscribers: Iterable[str]) -> dict[str, set[GroupTopic]]:
        names = sorted(subscribers)
        found: dict[str, set[GroupTopic]] = defaultdict(set)
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            text = SERVING.replace("{marks}", ", ".join(["%s"] * len(some)))
            for subscriber, group, topic in self._rows(text, some):
                found[subscriber].add((group, topic))
        return found

    def _rows(self, text: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in unless_locked(self.log, text, parameters, seconds=AT_MOST)]
