"""Balance: how many partitions of each group a subscriber should hold, and which it may take.

All groups of a subscriber together, in two statements, however many there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlqueue.core.orphans import Orphans
from sqlqueue.core.share import excess, fair_share
from sqlqueue.database.dialects import execute

Place = tuple[str, str]  # (group, topic)

# Who shares a subscriber's groups with it? Index: the heartbeats' subscriber; their unique (topic, group, subscriber).
SHARERS = """
    SELECT other.consumer_group, other.topic, other.subscriber, other.server
    FROM sqlqueue_subscriber_heartbeat mine {then} sqlqueue_subscriber_heartbeat other
    ON other.topic = mine.topic AND other.consumer_group = mine.consumer_group
    WHERE mine.subscriber = %s AND other.expires_at > {now}
"""
# Which leases of its groups are free, expired, or its own? Index: the heartbeats' subscriber; the leases' unique
# (topic, group, partition).
FREE = """
    SELECT lease.consumer_group, lease.topic, lease."partition", lease.id, lease.fencing_token, lease.holder
    FROM sqlqueue_subscriber_heartbeat {then} sqlqueue_partition_lease lease
    ON lease.topic = sqlqueue_subscriber_heartbeat.topic
    AND lease.consumer_group = sqlqueue_subscriber_heartbeat.consumer_group
    WHERE subscriber = %s AND (lease.holder = '' OR lease.holder = %s OR lease.valid_until <= {now})
    ORDER BY lease.topic, lease.consumer_group, lease."partition"
"""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a subscriber holds of one (group, topic), and how many partitions that has."""

    partitions: int
    held: set[int]


@dataclass(frozen=True, slots=True)
class Balance:
    """What to do about one (group, topic): partitions to take, with their leases' ids; partitions to give up once they
    are drained; and partitions to free at once: the subscriber holds their leases, but neither knows nor wants them."""

    take: dict[int, int] = field(default_factory=dict)
    give_up: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Seen:
    sharers: set[str] = field(default_factory=set)
    ids: dict[int, int] = field(default_factory=dict)  # of leases to be had, by partition
    tokens: dict[int, int] = field(default_factory=dict)  # likewise
    unknown: set[int] = field(default_factory=set)  # its own that it does not know of


class Balancer:
    """Compares what one subscriber holds with its fair share.

    `patience`: the seconds after which a partition that nobody takes is taken beyond the share, see Orphans.
    """

    def __init__(self, alias: str, subscriber: str, patience: float):
        self.alias, self.subscriber, self.patience = alias, subscriber, patience
        self.servers: set[str] = set()  # that those who share its groups write to, as far as they have said
        self._orphans: dict[Place, Orphans] = {}

    def compare(self, holdings: Mapping[Place, Holding], now: float) -> dict[Place, Balance]:
        """Return what to do about each (group, topic) in which the subscriber shows a heartbeat.

        Free and expired leases are taken up to the share; in a fixed order, which is turned by the subscriber's place
        so that several who start together do not all reach for the same ones.
        """
        seen = self._look(holdings)
        return {place: self._decide(place, holdings[place], found, now) for place, found in seen.items()}

    def _look(self, holdings: Mapping[Place, Holding]) -> dict[Place, _Seen]:
        seen: dict[Place, _Seen] = defaultdict(_Seen)
        self.servers = set()
        for group, topic, subscriber, server in execute(self.alias, SHARERS, (self.subscriber,)).fetchall():
            seen[group, topic].sharers.add(subscriber)
            self.servers.add(server)
        for group, topic, partition, id, token, holder in execute(
            self.alias, FREE, (self.subscriber, self.subscriber)
        ).fetchall():
            holding = holdings.get((group, topic))
            if holding is None or partition in holding.held:
                continue
            found = seen[group, topic]
            found.ids[partition], found.tokens[partition] = id, token
            # The answer to its acquiring was lost, or the server was restarted. It is renewed with the others; if its
            # holder did not want it, nobody would ever serve it.
            if holder == self.subscriber:
                found.unknown.add(partition)
        return {place: found for place, found in seen.items() if place in holdings}

    def _decide(self, place: Place, holding: Holding, seen: _Seen, now: float) -> Balance:
        group, topic = place
        subscribers = sorted(seen.sharers | {self.subscriber})
        share = fair_share(holding.partitions, subscribers, self.subscriber, f"{group}/{topic}")
        free = list(seen.ids)
        turn = subscribers.index(self.subscriber) * len(free) // len(subscribers)
        take = (free[turn:] + free[:turn])[: max(0, share - len(holding.held))]
        orphans = self._orphans.setdefault(place, Orphans(self.patience))
        beyond = [partition for partition in orphans.find(seen.tokens, now) if partition not in take]
        if beyond:
            orphans.sweep(beyond, subscribers, now)
            take += beyond
        give_up = orphans.spare(excess(sorted(holding.held), share), holding.held, subscribers, now)
        return Balance({p: seen.ids[p] for p in take}, give_up, sorted(seen.unknown.difference(take)))
