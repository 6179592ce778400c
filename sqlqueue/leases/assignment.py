"""Balance: how many partitions of each group a subscriber should hold, and which it may take. Of a group that shares
its partitions, slices are meant: each has a lease, and a number among all of them (core.slices.lease_number).

All groups of a subscriber together, in two statements, however many there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlqueue.core.assignment import excess, fair_share
from sqlqueue.core.orphans import Orphans
from sqlqueue.core.partition_numbers import Numbers, parts_by_sharers, stored_numbers
from sqlqueue.core.slices import asked, lease_number, leased_by
from sqlqueue.database.statements import execute
from sqlqueue.models.subscriber_heartbeat import AHEAD

GroupTopic = tuple[str, str]  # (group, topic)

# The subscribers that share its groups. Index: the heartbeats' subscriber; their unique (topic, group, subscriber).
SHARERS = """
    SELECT other.consumer_group, other.topic, other.subscriber, other.server, other.partitions, other.sharing
    FROM sqlqueue_subscriber_heartbeat mine {then} sqlqueue_subscriber_heartbeat other
    ON other.topic = mine.topic AND other.consumer_group = mine.consumer_group
    WHERE mine.subscriber = %s AND other.expires_at > {now} AND other.beat_at < {later}
"""
# The leases of its groups that are free, expired, or its own. Index: the heartbeats' subscriber; the leases' unique
# (topic, group, partition).
FREE = """
    SELECT lease.consumer_group, lease.topic, lease."partition", lease.slice, lease.id, lease.fencing_token,
    lease.holder
    FROM sqlqueue_subscriber_heartbeat {then} sqlqueue_partition_lease lease
    ON lease.topic = sqlqueue_subscriber_heartbeat.topic
    AND lease.consumer_group = sqlqueue_subscriber_heartbeat.consumer_group
    WHERE subscriber = %s AND (lease.holder = '' OR lease.holder = %s OR lease.valid_until <= {now})
    ORDER BY lease.topic, lease.consumer_group, lease."partition", lease.slice
"""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a subscriber holds of one (group, topic): the numbers of its leases; how many partitions that has, which of
    them the subscriber serves (None: all), how many slices each has, and how many it asks for (0: it needs whole
    partitions). numbered: of a topic with several epochs those partitions that the group may start, each with its
    number within its epoch, by which `served` names it; None: all, from 0 on."""

    partitions: int
    held: set[int]
    served: Numbers | None = None
    slices: int = 1
    asked: int = 1
    numbered: Mapping[int, int] | None = None

    def counts(self, partition: int) -> bool:
        """Tell whether the partition is shared among the group's subscribers now."""
        return self.numbered is None or partition in self.numbered

    def serves(self, partition: int) -> bool:
        """Tell whether the subscriber serves a partition that counts."""
        return self.served is None or (partition if self.numbered is None else self.numbered[partition]) in self.served

    def of_partitions(self, leases: Iterable[int], partitions: Numbers | None) -> list[int]:
        """Return those of some leases, by their numbers, that belong to these partitions (None: all)."""
        return [one for one in leases if partitions is None or leased_by(one, self.slices)[0] in partitions]


@dataclass(frozen=True, slots=True)
class Balance:
    """What to do about one (group, topic): partitions to take, with their leases' ids; partitions to give up once they
    are drained; and partitions to free at once, whose leases the subscriber holds without serving them. sharing: what
    its subscribers ask for, see asked()."""

    take: dict[int, int] = field(default_factory=dict)
    give_up: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    sharing: int | None = None


@dataclass(slots=True)
class _Seen:
    sharers: dict[str, Numbers | None] = field(default_factory=dict)  # with the partitions that each serves
    sharing: set[int] = field(default_factory=set)  # what each asks for
    ids: dict[int, int] = field(default_factory=dict)  # of leases that can be taken, by partition
    tokens: dict[int, int] = field(default_factory=dict)  # likewise
    unknown: set[int] = field(default_factory=set)  # its own that it does not serve


class Balancer:
    """Compares what one subscriber holds with its fair share.

    orphan_timeout: seconds after which a partition that stays free is taken beyond the share, see Orphans.
    """

    def __init__(self, alias: str, subscriber: str, orphan_timeout: float):
        self.alias, self.subscriber, self.orphan_timeout = alias, subscriber, orphan_timeout
        self.servers: set[str] = set()  # identities of the servers in the heartbeats of its groups
        self._orphans: dict[GroupTopic, Orphans] = {}

    def compare(self, holdings: Mapping[GroupTopic, Holding], now: float) -> dict[GroupTopic, Balance]:
        """Return what to do about each (group, topic) in which the subscriber shows a heartbeat.

        Free and expired leases are taken up to the share, in a fixed order that is rotated by the subscriber's index,
        so that subscribers that start together do not all try the same ones. Partitions that only some subscribers
        serve are shared among these.
        """
        seen = self._look(holdings)
        return {
            group_topic: self._decide(group_topic, holdings[group_topic], found, now)
            for group_topic, found in seen.items()
        }

    def _look(self, holdings: Mapping[GroupTopic, Holding]) -> dict[GroupTopic, _Seen]:
        seen: dict[GroupTopic, _Seen] = defaultdict(_Seen)
        self.servers = set()
        sharers = (self.subscriber, round(AHEAD.total_seconds() * 1_000_000))
        for group, topic, subscriber, server, partitions, sharing in execute(self.alias, SHARERS, sharers).fetchall():
            seen[group, topic].sharers[subscriber] = stored_numbers(partitions)
            seen[group, topic].sharing.add(sharing)
            self.servers.add(server)
        for group, topic, partition, slice, id, token, holder in execute(
            self.alias, FREE, (self.subscriber, self.subscriber)
        ).fetchall():
            holding = holdings.get((group, topic))
            if holding is None or slice >= holding.slices:  # the group has just begun to share its partitions
                continue
            if not holding.counts(partition):  # or to read another epoch
                continue
            number = lease_number(partition, slice, holding.slices)
            if number in holding.held:
                continue
            found = seen[group, topic]
            if holding.serves(partition):
                found.ids[number], found.tokens[number] = id, token
            # The reply to its acquisition was lost, or the server was restarted. It is renewed with the others: if its
            # holder did not free it, no process would ever serve it.
            if holder == self.subscriber:
                found.unknown.add(number)
        return {group_topic: found for group_topic, found in seen.items() if group_topic in holdings}

    def _decide(self, group_topic: GroupTopic, holding: Holding, seen: _Seen, now: float) -> Balance:
        salt, subscribers = "/".join(group_topic), {**seen.sharers, self.subscriber: holding.served}
        take: list[int] = []
        beyond_share: list[int] = []
        for numbers, sharers in parts_by_sharers(holding.partitions, subscribers, holding.numbered):
            if self.subscriber not in sharers:
                continue
            free = holding.of_partitions(seen.ids, numbers)
            held = sorted(holding.of_partitions(holding.held, numbers))
            partitions = holding.partitions if numbers is None else len(numbers)
            share = fair_share(partitions * holding.slices, sharers, self.subscriber, salt)
            rotation = sharers.index(self.subscriber) * len(free) // len(sharers)
            take += (free[rotation:] + free[:rotation])[: max(0, share - len(held))]
            beyond_share += excess(held, share)
        orphans = self._orphans.setdefault(group_topic, Orphans(self.orphan_timeout))
        beyond = [partition for partition in orphans.find(seen.tokens, now) if partition not in take]
        if beyond:
            orphans.take(beyond, subscribers, now)
            take += beyond
        give_up = orphans.spare(beyond_share, holding.held, subscribers, now)
        unknown = sorted(seen.unknown.difference(take))
        # Its own heartbeat may have expired, and it takes its share all the same.
        sharing = asked({*seen.sharing, holding.asked}) if seen.sharing else None
        return Balance({p: seen.ids[p] for p in take}, give_up, unknown, sharing)
