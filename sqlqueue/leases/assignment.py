"""Balance: how many partitions of each group a subscriber should hold, and which it may take.

All groups of a subscriber together, in two statements. What they read grows with the living subscribers and with the
leases that are free, have expired or are its own; not with those that others hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlqueue.core.assignment import excess, fair_share
from sqlqueue.core.orphans import Orphans
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.database.log import Log
from sqlqueue.leases.subscribers import LivingSubscribers
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


class _Share(NamedTuple):
    """How many partitions of a group the subscriber may hold, where it comes among so many subscribers, and what that
    was computed from."""

    others: Sequence[str]
    partitions: int
    most: int
    at: int
    subscribers: int


class Balancer:
    """Compares what one subscriber holds with its fair share.

    orphan_timeout: seconds after which a partition that stays free is taken beyond the share, see Orphans.
    """

    def __init__(self, log: Log, subscriber: str, orphan_timeout: float):
        self.log, self.subscriber, self.orphan_timeout = log, subscriber, orphan_timeout
        self._orphans: dict[GroupTopic, Orphans] = {}
        self._living = LivingSubscribers(log)
        self._shares: dict[GroupTopic, _Share] = {}

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

    def _share(self, group_topic: GroupTopic, partitions: int, subscribers: Sequence[str]) -> _Share:
        """Return what the subscriber may hold: computed anew when something has changed only."""
        known = self._shares.get(group_topic)
        if known is None or known.others is not subscribers or known.partitions != partitions:
            everyone = sorted({*subscribers, self.subscriber})
            most = fair_share(partitions, everyone, self.subscriber, "/".join(group_topic))
            at = everyone.index(self.subscriber)
            known = self._shares[group_topic] = _Share(subscribers, partitions, most, at, len(everyone))
        return known

    def _decide(
        self, group_topic: GroupTopic, holding: Holding, living: Sequence[str], free: _Free, now: float
    ) -> Balance:
        if holding.withdrawn:
            return Balance(give_up=sorted(holding.held), free=sorted(free.unknown))
        share = self._share(group_topic, holding.partitions, living)
        wanted = max(0, share.most - len(holding.held))
        free_ones = list(free.ids)
        rotation = share.at * len(free_ones) // share.subscribers
        take = (free_ones[rotation:] + free_ones[:rotation])[:wanted]
        orphans = self._orphans.setdefault(group_topic, Orphans(self.orphan_timeout))
        subscribers = {*living, self.subscriber}
        beyond = [partition for partition in orphans.find(free.tokens, now) if partition not in take]
        if beyond:
            orphans.take(beyond, subscribers, now)
            take += beyond
        give_up = orphans.spare(excess(list(holding.held), share.most), holding.held, subscribers, now)
        unknown = sorted(free.unknown.difference(take))
        return Balance({p: free.ids[p] for p in take}, give_up, unknown, wanted)
