"""The partitions that a process owns: it acquires its share, releases what is beyond it, and drops what it has lost."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from django.dispatch import Signal

from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.lease import HeldLease
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition_numbers import Numbers
from sqlqueue.database import clock
from sqlqueue.leases import release
from sqlqueue.leases.acquire import AT_ONCE, acquire_leases
from sqlqueue.leases.assignment import Balancer, Holding
from sqlqueue.log.groups import served
from sqlqueue.signals import announce, lease_acquired, lease_lost, lease_released

logger = logging.getLogger("sqlqueue")


class Ownership:
    """The leases of one subscriber. For the control thread; the lease renewer only reads `leases`, and moves their
    deadlines. `progress` is called after each part of a long acquisition. served: the partitions that it may own, None
    for all.
    """

    def __init__(
        self,
        alias: str,
        subscriber: str,
        subscriptions: list[Subscription],
        lease_duration: float,
        served: Numbers | None = None,
    ):
        self.alias, self.subscriber, self.subscriptions = alias, subscriber, subscriptions
        self.lease_duration, self.served = lease_duration, served
        self.progress: Callable[[], None] = lambda: None
        self._several_since: float | None = None
        self._balancer = Balancer(alias, subscriber, lease_duration)
        self._by_group_topic = {subscription.group_topic: subscription for subscription in subscriptions}

    def of(self, owned: AssignedPartition | HeldLease) -> Subscription:
        """Return the subscription that an assigned partition, or its lease, belongs to."""
        return self._by_group_topic[owned.ref.group, owned.ref.topic]

    def assigned_of(self, lease: HeldLease) -> AssignedPartition | None:
        """Return the partition that is held under a lease; None if it was dropped."""
        assigned = self.of(lease).assigned.get(lease.ref)
        return assigned if assigned is not None and assigned.lease is lease else None

    def may_dispatch(self, assigned: AssignedPartition) -> bool:
        """Return whether deliveries of a partition may start: its group neither rests nor leaves it."""
        subscription = self.of(assigned)
        return not subscription.resting and assigned.ref.partition not in subscription.leaving

    def assigned_partitions(self) -> list[AssignedPartition]:
        """Return every partition that is owned now, the most urgent priorities first."""
        found = [assigned for subscription in self.subscriptions for assigned in subscription.assigned.values()]
        return sorted(found, key=lambda assigned: assigned.ref.priority) if self._has_priorities() else found

    def _has_priorities(self) -> bool:
        return any(subscription.priorities > 1 for subscription in self.subscriptions)

    def leases(self) -> dict[tuple[str, str, int], list[HeldLease]]:
        """Return the leases that are held by (group, topic, partition), one for each priority; from any
        thread."""
        held: dict[tuple[str, str, int], list[HeldLease]] = defaultdict(list)
        for subscription in self.subscriptions:
            for lease in list(subscription.leases.values()):
                held[lease.ref.group, lease.ref.topic, lease.ref.partition].append(lease)
        return held

    def balance(self, horizon: int, clock: Callable[[], float]) -> bool:
        """Acquire partitions up to the fair share of every subscription, and mark those beyond it as leaving; return
        whether any was acquired. A few statements for all subscriptions together."""
        self.refresh()
        holdings = {
            each.group_topic: Holding(each.partitions, each.holding, self.served) for each in self.subscriptions
        }
        take: list[int] = []
        free: dict[tuple[str, str], list[int]] = {}
        plans = self._balancer.compare(holdings, clock())
        self._check_servers(clock())
        for group_topic, plan in plans.items():
            self._by_group_topic[group_topic].leaving = set(plan.give_up)
            if plan.free:
                free[group_topic] = plan.free
            if not plan.give_up:
                take += plan.take.values()
        if free:
            release.release(self.alias, self.subscriber, free)
        return bool(take) and self._take(take, horizon, clock)

    def _check_servers(self, now: float) -> None:
        """Log an error if the group's consumers write to several servers for longer than a failover takes."""
        servers = sorted(self._balancer.servers - {""})
        if len(servers) < 2:
            self._several_since = None
        elif self._several_since is None:
            self._several_since = now
        elif now - self._several_since > 2 * self.lease_duration:
            self._several_since = math.inf  # logged once
            meaning = (
                "publishers on one of them are not seen on the other: messages are missed; write to one server only"
            )
            logger.error(
                logfmt("several_servers", subscriber=self.subscriber, servers=", ".join(servers), meaning=meaning)
            )

    def refresh(self) -> None:
        """Read the options that may change while the process runs: pauses, history, hours and limits."""
        for group_topic, options in served(self.alias, self.subscriber).items():
            if group_topic in self._by_group_topic:
                self._by_group_topic[group_topic].apply(options)
        if timed := [each for each in self.subscriptions if each.flow.active is not None or each.outside_hours]:
            now = clock.now(self.alias)
            for subscription in timed:
                subscription.look_at_clock(now)

    def _take(self, leases: list[int], horizon: int, clock: Callable[[], float]) -> bool:
        priorities = {subscription.group_topic: subscription.priorities for subscription in self.subscriptions}
        found: dict[Subscription, set[int]] = defaultdict(set)
        for start in range(0, len(leases), AT_ONCE):
            some = leases[start : start + AT_ONCE]
            now = clock()
            for taken in acquire_leases(self.alias, self.subscriber, some, priorities, self.lease_duration, horizon):
                subscription = self._by_group_topic[taken.ref.group, taken.ref.topic]
                assigned = subscription.adopt(taken, now + self.lease_duration, now)
                assigned.lease.holder = self.subscriber
                found[subscription].add(taken.ref.partition)
            self.progress()
        self._announce(lease_acquired, found)
        return bool(found)

    def _announce(self, signal: Signal, partitions: Mapping[Subscription, Iterable[int]]) -> None:
        for subscription, numbers in partitions.items():
            group, topic = subscription.group_topic
            fields = {"subscriber": self.subscriber, "group": group, "topic": topic}
            announce(signal, Ownership, **fields, partitions=sorted(numbers))

    def drained(self) -> dict[Subscription, set[int]]:
        """Return the leaving partitions of which nothing is in flight any more, by subscription."""
        found: dict[Subscription, set[int]] = {}
        for subscription in self.subscriptions:
            if not subscription.leaving:
                continue
            busy = {ref.partition for ref, assigned in subscription.assigned.items() if assigned.in_flight}
            if subscription.leaving - busy:
                found[subscription] = subscription.leaving - busy
        return found

    def release(self, partitions: Mapping[Subscription, set[int]]) -> None:
        """Release leases whose partitions have been settled for the last time."""
        for subscription, numbers in partitions.items():
            for partition in numbers:
                for assigned in subscription.of_partition(partition):
                    subscription.drop(assigned)
        group_topics = {subscription.group_topic: numbers for subscription, numbers in partitions.items()}
        release.release(self.alias, self.subscriber, group_topics)
        self._announce(lease_released, partitions)

    def lose(self, leases: Iterable[HeldLease]) -> None:
        """Drop the partitions of leases whose token was stale."""
        for lease in leases:
            if (assigned := self.assigned_of(lease)) is not None:
                self.of(lease).drop(assigned)
                announce(lease_lost, Ownership, subscriber=self.subscriber, **lease.labels)
