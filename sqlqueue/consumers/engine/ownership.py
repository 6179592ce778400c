"""The partitions that a process owns: it acquires its share, releases what is beyond it, drops what it has lost, and
visits those that have something to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from django.dispatch import Signal

from sqlqueue.consumers.engine.subscription import Subscription
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import GroupTopic, HeldLease
from sqlqueue.database import clock
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.leases import release
from sqlqueue.leases.acquire import AT_ONCE, acquire_leases
from sqlqueue.leases.assignment import Balance, Balancer, Holding
from sqlqueue.log.groups import served
from sqlqueue.signals import announce, lease_acquired, lease_lost, lease_released

Stream = tuple[str, int, int]  # topic, partition and priority


class WorkingSet:
    """The assigned partitions that an iteration of the loop visits, in the order of all. For the control thread.

    A process may own a thousand partitions, of which a message concerns one. One with nothing to do rests until a look
    at the log's head finds something of it. All are visited after whatever else may have changed them: a balance, other
    options, rows that an operator has changed.
    """

    def __init__(self) -> None:
        self.partitions: list[AssignedPartition] = []
        self._ranks: dict[AssignedPartition, int] = {}
        self._resting: dict[Stream, list[AssignedPartition]] = {}

    def wake_all(self, assigned_partitions: Sequence[AssignedPartition], watched_to: int) -> None:
        """Visit all. watched_to: the horizon at the last look that has found nothing of those that rest."""
        for resting in self._resting.values():
            for assigned in resting:
                assigned.window.quiet(watched_to)
        self._resting = {}
        self.partitions = list(assigned_partitions)
        self._ranks = {assigned: rank for rank, assigned in enumerate(assigned_partitions)}

    def wake(self, streams: Collection[Stream] | None, watched_to: int) -> None:
        """Visit those of these streams, too (None: all): the log has something of them. watched_to: as for
        `wake_all`."""
        found = list(self._resting) if streams is None else [one for one in streams if one in self._resting]
        if not found:
            return
        for stream in found:
            for assigned in self._resting.pop(stream):
                assigned.window.quiet(watched_to)
                self.partitions.append(assigned)
        self.partitions.sort(key=self._ranks.__getitem__)

    def alarm(self, seen: Collection[Stream] | None, watched_to: int, low: int, reached: int | None) -> bool:
        """Alarm the partitions of these streams (None: of all), also those that rest: the log has something of them
        above `low`; return whether there are any. reached: the horizon, if all offsets from `low` up to it were looked
        at; watched_to: as for `wake_all`."""
        self.wake(seen, watched_to)
        concerned = False
        for assigned in self.partitions:
            ref = assigned.ref
            if seen is None or (ref.topic, ref.partition, ref.priority) in seen:
                assigned.window.alarm()
                concerned = True
            elif reached is not None:
                assigned.window.unseen(low, reached)
        return concerned

    def behind(self, horizon: int) -> bool:
        """Tell whether all have messages up to this horizon to be read: what else the log may have concerns none."""
        return bool(self.partitions and not self._resting) and all(
            assigned.window.more and assigned.window.cursor < horizon for assigned in self.partitions
        )

    def rest(self, watched_to: int) -> None:
        """Let those rest that have nothing to do and are read up to this horizon."""
        visited, self.partitions = self.partitions, []
        for assigned in visited:
            if assigned.window.final < watched_to or not assigned.at_rest:
                self.partitions.append(assigned)
                continue
            ref = assigned.ref
            self._resting.setdefault((ref.topic, ref.partition, ref.priority), []).append(assigned)


# Why a lease was lost.
TAKEN_OVER = "its token is stale: another process has it, since this one renewed too late, or the group was moved"
SERVER_CHANGED = "the database server was started again, or another one has taken its place"
UNWRITTEN = "what was settled could not be written"


class Ownership:
    """The leases of one subscriber. For the control thread; the lease renewer only reads `leases`, and moves their
    deadlines. `progress` is called after each part of a long acquisition. server: on which they are acquired; another
    one begins with another ServerIdentity, and no leases."""

    def __init__(
        self,
        log: Log,
        subscriber: str,
        subscriptions: list[Subscription],
        lease_duration: float,
    ):
        self.log, self.subscriber, self.subscriptions = log, subscriber, subscriptions
        self.lease_duration = lease_duration
        self.server = ServerIdentity(log)
        self.lacks = False  # the last balance has left it below its share: others have yet to give up, or were faster
        self.changed = True  # a partition was acquired, released or lost since the loop has visited all
        self.progress: Callable[[], None] = lambda: None
        self.lost: Callable[[Iterable[HeldLease]], None] = self.lose  # called for leases that others have revoked
        self.withdrawn: frozenset[GroupTopic] = frozenset()  # left to others; the lease renewer reads it
        self.balancer = Balancer(log, subscriber, lease_duration)
        self._by_group_topic = {subscription.group_topic: subscription for subscription in subscriptions}

    def may_dispatch(self, assigned: AssignedPartition) -> bool:
        """Return whether deliveries of a partition may start: its group neither rests nor leaves it."""
        subscription = assigned.lease.subscription
        return not subscription.resting and assigned.ref.partition not in subscription.leaving

    def assigned_partitions(self) -> list[AssignedPartition]:
        """Return every partition that is owned now, the most urgent priorities first."""
        found = [assigned for subscription in self.subscriptions for assigned in subscription.assigned.values()]
        return (
            sorted(found, key=lambda assigned: assigned.ref.priority)
            if any(each.priorities > 1 for each in self.subscriptions)
            else found
        )

    def leases(self) -> dict[tuple[str, str, int], list[HeldLease]]:
        """Return the leases that are held by (group, topic, partition), one for each priority; from any thread."""
        held: dict[tuple[str, str, int], list[HeldLease]] = defaultdict(list)
        for subscription in self.subscriptions:
            for ref, lease in list(subscription.leases.items()):
                held[ref.group, ref.topic, ref.partition].append(lease)
        return held

    def balance(self, horizon: int, clock: Callable[[], float]) -> bool:
        """Acquire partitions up to the fair share of every subscription, and mark those beyond it as leaving; return
        whether any was acquired. A few statements for all subscriptions together, and for AT_ONCE leases: others may
        come while many are acquired, and the shares become smaller. Raises TableLocked in place of waiting for the
        heartbeats: what is owned stays so."""
        any_acquired, more = False, True
        while more:
            plans = self._compare(clock())
            take: list[int] = []
            free: dict[tuple[str, str], list[int]] = {}
            for group_topic, plan in plans.items():
                self._by_group_topic[group_topic].leaving = set(plan.give_up)
                if plan.free:
                    free[group_topic] = plan.free
                if not plan.give_up:
                    take += plan.take.values()
            if free:
                release.release(self.log, self.subscriber, free)
            found = self._take(take[:AT_ONCE], horizon, clock) if take else {}
            self.lacks = any(plan.wanted > len(found.get(group_topic, ())) for group_topic, plan in plans.items())
            any_acquired = any_acquired or bool(found)
            more = bool(found) and len(take) > AT_ONCE
        return any_acquired

    def _compare(self, now: float) -> dict[tuple[str, str], Balance]:
        self.refresh(now)
        for each in [one for one in self.subscriptions if one.altered]:
            lost, over = each.look_at_epochs()
            if lost:
                self.lost(lost)
            if over:
                self.release({each: over})
        holdings = {
            each.group_topic: Holding(each.partitions, each.holding, each.counted, each.group_topic in self.withdrawn)
            for each in self.subscriptions
        }
        return self.balancer.compare(holdings, now)

    def refresh(self, now: float) -> None:
        """Read the options that may change while the process runs: pauses, history, hours and limits. now: monotonic
        seconds."""
        for group_topic, options in served(self.log, self._by_group_topic).items():
            if group_topic in self._by_group_topic:  # else two of different ones
                self._by_group_topic[group_topic].apply(options, now)
        if timed := [each for each in self.subscriptions if each.flow.active is not None or each.outside_hours]:
            moment = clock.now(self.log)
            for subscription in timed:
                subscription.check_hours(moment)

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
            self.changed = True
            assigned.lease.holder, assigned.lease.server = self.subscriber, taken.server
            found[subscription].add(taken.ref.partition)
        self.progress()
        self._announce(lease_acquired, found)
        return {subscription.group_topic: some for subscription, some in found.items()}

    def _announce(self, signal: Signal, partitions: Mapping[Subscription, Iterable[int]]) -> None:
        for subscription, some in partitions.items():
            group, topic = subscription.group_topic
            fields = {"subscriber": self.subscriber, "group": group, "topic": topic}
            announce(signal, Ownership, **fields, partitions=sorted(some), database=self.log.label)

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
            for assigned in [each for ref, each in subscription.assigned.items() if ref.partition in numbers]:
                subscription.drop(assigned)
                self.changed = True
        leases = {subscription.group_topic: numbers for subscription, numbers in partitions.items()}
        release.release(self.log, self.subscriber, leases)
        self._announce(lease_released, partitions)

    def lose(self, leases: Iterable[HeldLease], why: str = TAKEN_OVER) -> None:
        """Drop the partitions of leases which are not this process's any more, and say why."""
        for lease in leases:
            assigned = lease.subscription.assigned.get(lease.ref)
            if assigned is not None and assigned.lease is lease:
                lease.subscription.drop(assigned)
                self.changed = True
                fields = {"subscriber": self.subscriber, **lease.labels, "why": why}
                announce(lease_lost, Ownership, **fields, database=self.log.label)
