"""Balance: how many partitions of each group a subscriber should hold, and which it may take.

All groups of a subscriber together, in two statements. What they read grows with the living subscribers and with the
leases that are free, have expired or are its own; not with those that others hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlqueue.core.assignment import excess, fair_share
from sqlqueue.core.orphans import Orphans
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.core.partition_numbers import Numbers, parts_by_subscribers
from sqlqueue.database.log import Log
from sqlqueue.leases.subscribers import LivingSubscribers, Subscribers
from sqlqueue.models.subscriber_heartbeat import STREAM

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


@dataclass(frozen=True, slots=True)
class Holding:
    """What a subscriber holds of one (group, topic): how many partitions that has, which of them the subscriber holds,
    and which it serves (None: all). numbered: of a topic with several epochs those partitions that the group may start,
    each with its number within its epoch, by which `served` names it; None: all, from 0 on. withdrawn: it leaves them
    to others."""

    partitions: int
    held: set[int]
    served: Numbers | None = None
    numbered: Mapping[int, int] | None = None
    withdrawn: bool = False

    def counts(self, partition: int) -> bool:
        """Tell whether the partition is shared among the group's subscribers now."""
        return self.numbered is None or partition in self.numbered

    def serves(self, partition: int) -> bool:
        """Tell whether the subscriber serves a partition that counts."""
        return self.served is None or (partition if self.numbered is None else self.numbered[partition]) in self.served


@dataclass(frozen=True, slots=True)
class Balance:
    """What to do about one (group, topic): partitions to take, with their leases' ids; partitions to give up once they
    are drained; and partitions to free at once, whose leases the subscriber holds without serving them. wanted: how
    many the subscriber is short of its share."""

    take: dict[int, int] = field(default_factory=dict)
    give_up: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    wanted: int = 0


@dataclass(slots=True)
class _Free:
    """Leases that can be taken: their ids and tokens by partition; and those of its own that it does not serve."""

    ids: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)


class _Part(NamedTuple):
    """Partitions (None: all) that the same subscribers share: how many of them the subscriber may hold, and where it
    comes among so many."""

    partitions: Numbers | None
    share: int
    at: int
    subscribers: int

    def has(self, partition: int) -> bool:
        """Tell whether a partition is among them."""
        return self.partitions is None or partition in self.partitions


class _Shares(NamedTuple):
    """The subscriber's parts of a group, and what they were computed from."""

    subscribers: Subscribers
    of: tuple[object, ...]
    parts: list[_Part]


class Balancer:
    """Compares what one subscriber holds with its fair share.

    orphan_timeout: seconds after which a partition that stays free is taken beyond the share, see Orphans.
    """

    def __init__(self, log: Log, subscriber: str, orphan_timeout: float):
        self.log, self.subscriber, self.orphan_timeout = log, subscriber, orphan_timeout
        self._orphans: dict[GroupTopic, Orphans] = {}
        self._living = LivingSubscribers(log)
        self._shares: dict[GroupTopic, _Shares] = {}

    @property
    def in_reserve(self) -> bool:
        """Whether another living subscriber does the same, and comes first."""
        return self.subscriber in self._living.reserve

    @property
    def living(self) -> int:
        """How many living subscribers the database has, of whatever groups."""
        return self._living.living

    def has_others(self, group_topic: GroupTopic, served: Numbers | None) -> bool:
        """Tell whether another living subscriber serves all partitions of a group, or exactly these, and is no Spark
        stream; as of the last comparison."""
        others = self._living.known(group_topic).items()
        mine = (None, served)
        return any(of in mine and name != self.subscriber and not name.startswith(STREAM) for name, of in others)

    def compare(self, holdings: Mapping[GroupTopic, Holding], now: float) -> dict[GroupTopic, Balance]:
        """Return what to do about each (group, topic).

        Free and expired leases are taken up to the share, in a fixed order that is rotated by the subscriber's index,
        so that subscribers that start together do not all try the same ones. Partitions that only some subscribers
        serve are shared among these.
        """
        subscribers = self._living.look(holdings)
        free = self._free(holdings)
        return {
            group_topic: self._decide(group_topic, holding, subscribers[group_topic], free[group_topic], now)
            for group_topic, holding in holdings.items()
        }

    def _free(self, holdings: Mapping[GroupTopic, Holding]) -> dict[GroupTopic, _Free]:
        """Return the leases that can be taken: those of partitions that the subscriber serves, without those that it
        holds."""
        free: dict[GroupTopic, _Free] = defaultdict(_Free)
        for group, topic, partition, id, token, holder in self._leases(list(holdings)):
            holding = holdings.get((group, topic))
            if holding is None or partition in holding.held or not holding.counts(partition):
                continue
            found = free[group, topic]
            if holding.serves(partition):
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

    def _parts(self, group_topic: GroupTopic, holding: Holding, subscribers: Subscribers) -> list[_Part]:
        """Return what the subscriber may hold: computed anew when something has changed only."""
        numbered = None if holding.numbered is None else tuple(sorted(holding.numbered.items()))
        of = (holding.partitions, holding.served, numbered)
        known = self._shares.get(group_topic)
        if known is None or known.subscribers is not subscribers or known.of != of:
            parts = self._computed(group_topic, holding, subscribers)
            known = self._shares[group_topic] = _Shares(subscribers, of, parts)
        return known.parts

    def _computed(self, group_topic: GroupTopic, holding: Holding, subscribers: Subscribers) -> list[_Part]:
        everyone = {**subscribers, self.subscriber: holding.served}
        parts: list[_Part] = []
        for numbers, names in parts_by_subscribers(holding.partitions, everyone, holding.numbered):
            if self.subscriber in names:
                count = holding.partitions if numbers is None else len(numbers)
                share = fair_share(count, names, self.subscriber, "/".join(group_topic))
                parts.append(_Part(numbers, share, names.index(self.subscriber), len(names)))
        return parts

    def _decide(
        self, group_topic: GroupTopic, holding: Holding, living: Subscribers, free: _Free, now: float
    ) -> Balance:
        if holding.withdrawn:
            return Balance(give_up=sorted(holding.held), free=sorted(free.unknown))
        take: list[int] = []
        beyond_share: list[int] = []
        wanted = 0
        for part in self._parts(group_topic, holding, living):
            free_ones = [one for one in free.ids if part.has(one)]
            held = [one for one in holding.held if part.has(one)]
            missing = max(0, part.share - len(held))
            wanted += missing
            rotation = part.at * len(free_ones) // part.subscribers
            take += (free_ones[rotation:] + free_ones[:rotation])[:missing]
            beyond_share += excess(held, part.share)
        orphans = self._orphans.setdefault(group_topic, Orphans(self.orphan_timeout))
        subscribers = {*living, self.subscriber}
        beyond = [partition for partition in orphans.find(free.tokens, now) if partition not in take]
        if beyond:
            orphans.take(beyond, subscribers, now)
            take += beyond
        give_up = orphans.spare(beyond_share, holding.held, subscribers, now)
        unknown = sorted(free.unknown.difference(take))
        return Balance({p: free.ids[p] for p in take}, give_up, unknown, wanted)
