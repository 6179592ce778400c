"""Balance: how many partitions of each group a subscriber should hold, and which it may take.

All groups of a subscriber together, in two statements. What they read grows with the living subscribers and with the
leases that are free, have expired or are its own; not with those that others hold. Of each living subscriber a look
reads one row, whatever number of groups it serves: that row has a digest of what it serves. What a digest stands for is
read once, from the rows of one of the subscribers that have it, and remembered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sqlqueue.core.assignment import Orphans, excess, fair_share
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.database.lock_timeouts import unless_locked
from sqlqueue.database.log import Log
from sqlqueue.leases.heartbeat import AT_MOST, digest_of
from sqlqueue.models.subscriber import AHEAD, STREAM

# The leases that are free or have expired, of these groups, and its own. Index: the leases' (topic, consumer_group,
# valid_until); their holder.
FREE = """
    SELECT consumer_group, topic, "partition", id, fencing_token, holder
    FROM sqlqueue_partition_lease{by_end} WHERE {of_groups} UNION ALL
    SELECT consumer_group, topic, "partition", id, fencing_token, holder
    FROM sqlqueue_partition_lease{by_holder} WHERE holder = %s
"""
# Two conditions, each of them a range of the index.
OF_GROUP = """
    topic = %s AND consumer_group = %s AND valid_until IS NULL
    OR topic = %s AND consumer_group = %s AND valid_until <= {now}
"""
GROUPS_AT_ONCE = 100
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


@dataclass(frozen=True, slots=True)
class Holding:
    """What a subscriber holds of one (group, topic): how many partitions that has, and which of them the subscriber
    holds. counted: of a topic with several epochs those partitions that the group may start; None: all. withdrawn: it
    leaves them to others."""

    partitions: int
    held: set[int]
    counted: Collection[int] | None = None
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class Balance:
    """What to do about one (group, topic): partitions to take, with their leases' ids; partitions to give up once they
    are drained; and partitions to free at once, whose leases the subscriber holds without knowing it. wanted: how
    many the subscriber is short of its share."""

    take: dict[int, int] = field(default_factory=dict)
    give_up: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    wanted: int = 0


@dataclass(slots=True)
class _Free:
    """Leases that can be taken: their ids and tokens by partition; and those of its own that it does not know."""

    ids: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)


class Balancer:
    """Compares what one subscriber holds with its fair share.

    orphan_timeout: seconds after which a partition that stays free is taken beyond the share, see Orphans.
    """

    def __init__(self, log: Log, subscriber: str, orphan_timeout: float):
        self.log, self.subscriber, self.orphan_timeout = log, subscriber, orphan_timeout
        self._orphans: dict[GroupTopic, Orphans] = {}
        self._living = LivingSubscribers(log)

    @property
    def in_reserve(self) -> bool:
        """Whether another living subscriber does the same, and comes first."""
        return self.subscriber in self._living.reserve

    @property
    def living(self) -> int:
        """How many living subscribers the database has, of whatever groups."""
        return self._living.living

    def has_others(self, group_topic: GroupTopic) -> bool:
        """Tell whether another living subscriber, which is no Spark stream, serves a group; as of the last
        comparison."""
        others = self._living.of(group_topic)
        return any(name != self.subscriber and not name.startswith(STREAM) for name in others)

    def compare(self, holdings: Mapping[GroupTopic, Holding], now: float) -> dict[GroupTopic, Balance]:
        """Return what to do about each (group, topic).

        Free and expired leases are taken up to the share, in a fixed order that is rotated by the subscriber's index,
        so that subscribers that start together do not all try the same ones.
        """
        subscribers = self._living.look(holdings)
        free = self._free(holdings)
        return {
            group_topic: self._decide(group_topic, holding, subscribers[group_topic], free[group_topic], now)
            for group_topic, holding in holdings.items()
        }

    def _free(self, holdings: Mapping[GroupTopic, Holding]) -> dict[GroupTopic, _Free]:
        """Return the leases that can be taken, without those that it holds."""
        free: dict[GroupTopic, _Free] = defaultdict(_Free)
        for group, topic, partition, id, token, holder in self._leases(list(holdings)):
            holding = holdings.get((group, topic))
            if holding is None or partition in holding.held:
                continue
            if holding.counted is not None and partition not in holding.counted:
                continue
            found = free[group, topic]
            found.ids[partition], found.tokens[partition] = id, token
            # The reply to its acquisition was lost, or the server was restarted. It is renewed with the others: if its
            # holder did not free it, no process would ever serve it.
            if holder == self.subscriber:
                found.unknown.add(partition)
        return free

    def _leases(self, groups: Sequence[GroupTopic]) -> list[tuple[str, str, int, int, int, str]]:
        """Return the leases of these groups that are free or have expired, and all that the subscriber holds, by topic,
        group and partition. The only place where those are chosen that may be taken."""
        found: set[tuple[str, str, int, int, int, str]] = set()
        for start in range(0, len(groups), GROUPS_AT_ONCE):
            some = groups[start : start + GROUPS_AT_ONCE]
            values = [value for group, topic in some for value in (topic, group, topic, group)]
            text = FREE.replace("{of_groups}", " OR ".join([OF_GROUP] * len(some)))
            found.update(map(tuple, self.log.execute(text, (*values, self.subscriber)).fetchall()))
        return sorted(found, key=lambda row: (row[1], row[0], row[2]))

    def _decide(
        self, group_topic: GroupTopic, holding: Holding, living: Sequence[str], free: _Free, now: float
    ) -> Balance:
        if holding.withdrawn:
            return Balance(give_up=sorted(holding.held), free=sorted(free.unknown))
        subscribers = sorted({*living, self.subscriber})
        share = fair_share(holding.partitions, subscribers, self.subscriber, "/".join(group_topic))
        wanted = max(0, share - len(holding.held))
        free_ones = list(free.ids)
        rotation = subscribers.index(self.subscriber) * len(free_ones) // len(subscribers)
        take = (free_ones[rotation:] + free_ones[:rotation])[:wanted]
        orphans = self._orphans.setdefault(group_topic, Orphans(self.orphan_timeout))
        beyond = [partition for partition in orphans.find(free.tokens, now) if partition not in take]
        if beyond:
            orphans.take(beyond, subscribers, now)
            take += beyond
        give_up = orphans.spare(excess(list(holding.held), share), holding.held, subscribers, now)
        unknown = sorted(free.unknown.difference(take))
        return Balance({p: free.ids[p] for p in take}, give_up, unknown, wanted)


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
