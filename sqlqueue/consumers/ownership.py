"""The partitions that a process owns: it acquires its share, releases what is beyond it, and drops what it has lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from django.dispatch import Signal

from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.lease import HeldLease
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.core.partition_numbers import Numbers
from sqlqueue.database import clock
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.leases import release
from sqlqueue.leases.acquire import AT_ONCE, acquire_leases
from sqlqueue.leases.assignment import Balance, Balancer, Holding
from sqlqueue.log.groups import served
from sqlqueue.signals import announce, lease_acquired, lease_lost, lease_released

# Why a lease was lost.
TAKEN_OVER = "its token is stale: another process has it, since this one renewed too late, or the group was moved"
SERVER_CHANGED = "the database server was started again, or another one has taken its place"
UNWRITTEN = "what was settled could not be written"


class Ownership:
    """The leases of one subscriber. For the control thread; the lease renewer only reads `leases`, and moves their
    deadlines. `progress` is called after each part of a long acquisition. served: the partitions that it may own, None
    for all. server: on which they are acquired; another one begins with another ServerIdentity, and no leases.
    """

    def __init__(
        self,
        log: Log,
        subscriber: str,
        subscriptions: list[Subscription],
        lease_duration: float,
        served: Numbers | None = None,
    ):
        self.log, self.subscriber, self.subscriptions = log, subscriber, subscriptions
        self.lease_duration, self.served = lease_duration, served
        self.server = ServerIdentity(log)
        self.lacks = False  # the last balance has left it below its share: others have yet to give up, or were faster
        self.progress: Callable[[], None] = lambda: None
        self.lost: Callable[[Iterable[HeldLease]], None] = self.lose  # called for leases that others have revoked
        self.withdrawn: frozenset[GroupTopic] = frozenset()  # left to others; the lease renewer reads it
        self._balancer = Balancer(log, subscriber, lease_duration)
        self._by_group_topic = {subscription.group_topic: subscription for subscription in subscriptions}

    @property
    def in_reserve(self) -> bool:
        """Whether another living subscriber serves the same, and comes first; as of the last balance."""
        return self._balancer.in_reserve

    @property
    def living(self) -> int:
        """How many living subscribers the database has; as of the last balance."""
        return self._balancer.living

    def has_others(self, subscription: Subscription) -> bool:
        """Tell whether another living subscriber serves the same partitions of a group, or all; as of the last
        balance."""
        return self._balancer.has_others(subscription.group_topic, self.served)

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

    @property
    def changes(self) -> int:
        """A number that grows whenever a partition was acquired, released or lost."""
        return sum(subscription.changes for subscription in self.subscriptions)

    def _has_priorities(self) -> bool:
        return any(subscription.priorities > 1 for subscription in self.subscriptions)

    def leases(self) -> dict[tuple[str, str, int], list[HeldLease]]:
        """Return the leases that are held by (group, topic, partition), one for each priority; from any thread."""
        held: dict[tuple[str, str, int], list[HeldLease]] = defaultdict(list)
        for subscription in self.subscriptions:
            for lease in list(subscription.leases.values()):
                ref = lease.ref
                held[ref.group, ref.topic, ref.partition].append(lease)
        return held

    def balance(self, horizon: int, clock: Callable[[], float]) -> bool:
        """Acquire partitions up to the fair share of every subscription, and mark those beyond it as leaving; return
        whether any was acquired. A few statements for all subscriptions together, and for AT_ONCE leases: others may
        come while many are acquired, and the shares become smaller. Raises TableLocked in place of waiting for the
        heartbeats: what is owned stays so."""
        acquired, more = self._balance(horizon, clock)
        any_acquired = acquired
        while acquired and more:
            acquired, more = self._balance(horizon, clock)
        return any_acquired

    def _balance(self, horizon: int, clock: Callable[[], float]) -> tuple[bool, bool]:
        """Do so with AT_ONCE leases at most; return whether any was acquired, and whether there were more to take."""
        plans = self._compare(clock())
        take: list[int] = []
        free: dict[tuple[str, str], list[int]] = {}
        for group_topic, plan in plans.items():
            subscription = self._by_group_topic[group_topic]
            subscription.leaving = set(plan.give_up)
            if plan.free:
                free[group_topic] = plan.free
            if not plan.give_up:
                take += plan.take.values()
        if free:
            release.release(self.log, self.subscriber, free)
        found = self._take(take[:AT_ONCE], horizon, clock) if take else {}
        self.lacks = any(plan.wanted > len(found.get(group_topic, ())) for group_topic, plan in plans.items())
        return bool(found), len(take) > AT_ONCE

    def _compare(self, now: float) -> dict[tuple[str, str], Balance]:
        self.refresh()
        for each in self.subscriptions:
            lost, over = each.look_at_epochs()
            if lost:
                self.lost(lost)
            if over:
                self.release({each: over})
        holdings = {
            each.group_topic: Holding(
                each.partitions,
                each.holding,
                self.served,
                each.numbered,
                each.group_topic in self.withdrawn,
            )
            for each in self.subscriptions
        }
        return self._balancer.compare(holdings, now)

    def refresh(self) -> None:
        """Read the options that may change while the process runs: pauses, history, hours and limits."""
        for group_topic, options in served(self.log, self._by_group_topic).items():
            if group_topic in self._by_group_topic:  # else two of different ones
                self._by_group_topic[group_topic].apply(options)
        if timed := [each for each in self.subscriptions if each.flow.active is not None or each.outside_hours]:
            now = clock.now(self.log)
            for subscription in timed:
                subscription.look_at_clock(now)

    def _take(self, leases: list[int], horizon: int, clock: Callable[[], float]) -> dict[GroupTopic, set[int]]:
        """Acquire leases; return the partitions of those that it has got."""
        priorities = {subscription.group_topic: subscription.priorities for subscription in self.subscriptions}
        found: dict[Subscription, set[int]] = defaultdict(set)
        now = clock()
        for taken in acquire_leases(
            self.log, self.subscriber, leases, priorities, self.lease_duration, horizon, self.server
        ):
            subscription = self._by_group_topic[taken.ref.group, taken.ref.topic]
            assigned = subscription.adopt(taken, now + self.lease_duration, now)
            assigned.lease.holder, assigned.lease.server = self.subscriber, taken.server
            found[subscription].add(taken.ref.partition)
        self.progress()
        self._announce(lease_acquired, found)
        return {subscription.group_topic: some for subscription, some in found.items()}

    def _announce(self, signal: Signal, partitions: Mapping[Subscription, Iterable[int]]) -> None:
        for subscription, some in partitions.items():
            group, topic = subscription.group_topic
            fields = {"subscriber": self.subscriber, "group": group, "topic": topic}
            announce(signal, Ownership, **fields, partitions=sorted(some))

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
        """Release the leases of these partitions, which have been settled for the last time."""
        for subscription, numbers in partitions.items():
            for number in numbers:
                for assigned in subscription.of_partition(number):
                    subscription.drop(assigned)
        leases = {subscription.group_topic: numbers for subscription, numbers in partitions.items()}
        release.release(self.log, self.subscriber, leases)
        self._announce(lease_released, partitions)

    def lose(self, leases: Iterable[HeldLease], why: str = TAKEN_OVER) -> None:
        """Drop the partitions of leases which are not this process's any more, and say why."""
        for lease in leases:
            if (assigned := self.assigned_of(lease)) is not None:
                self.of(lease).drop(assigned)
                announce(lease_lost, Ownership, subscriber=self.subscriber, **lease.labels, why=why)
