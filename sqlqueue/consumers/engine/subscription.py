"""One consumer in one process: its registration, its handler executor, assigned partitions and the options that the
tables hold."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.consumers.engine.limiter import GroupLimiter
from sqlqueue.consumers.engine.throttle import shares
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.core.flow import NO_FLOW
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.key_limit import NO_LIMIT, KeyLimit, KeyRate
from sqlqueue.core.partition.ref import HeldLease, PartitionRef
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.leases.acquire import AcquiredPartition
from sqlqueue.log import groups
from sqlqueue.log.groups import Served
from sqlqueue.log.layouts import leased
from sqlqueue.log.topics import existing, require_declared, topic_info

logger = logging.getLogger("sqlqueue")


class Subscription:
    """The partitions that a process has for one consumer. For the control thread. limited: it keeps to the group's
    hours and limits."""

    def __init__(self, log: Log, consumer: Consumer, limited: bool = True):
        self.log, self.consumer = log, consumer
        self.group_topic = consumer.group, consumer.topic
        self._limited = limited
        self.flow = NO_FLOW
        self.limiter: GroupLimiter | None = None  # None: no limits to share
        self.key_rate: KeyRate | None = None  # None: no limit of a key
        self._most_of_key: int | None = None
        self._key_limits: dict[int, KeyLimit] = {}  # by partition: its priorities have one
        self.paused = self.outside_hours = False
        self.resting = False  # nothing of it may start: it is paused, or outside its active hours
        self.executor = HandlerExecutor(log, consumer)
        self.assigned: dict[PartitionRef, AssignedPartition] = {}
        self.leases: dict[PartitionRef, HeldLease] = {}  # of `assigned`; other threads read these only
        self.leaving: set[int] = set()  # numbers of leases to release as soon as nothing of them is in flight
        self.progressed_at = 0.0  # monotonic seconds: when something was settled, or a watermark moved
        self.history = "failures"
        self.partitions = 0
        self.altered = False  # the topic has had several epochs
        self.counted: Collection[int] | None = None  # of such a topic, see Holding
        self.priorities = 1
        self._shares: tuple[float, ...] = (1.0,)  # of the deliveries, by priority

    @property
    def holding(self) -> set[int]:
        """The numbers of the partitions whose leases are held."""
        return {ref.partition for ref in self.assigned}

    def apply(self, options: Served, now: float) -> None:
        """Apply the options that may change while the process runs. now: monotonic seconds."""
        self.flow = options.flow if self._limited else NO_FLOW
        if not self.flow.shared:
            self.limiter = None
        elif self.limiter is None:
            self.limiter = GroupLimiter(self.log, *self.group_topic, self.flow, self.consumer.options.together)
        else:
            self.limiter.follow(self.flow)
        self._apply_limits_of_keys(now)
        self.paused, self.history = options.paused, options.history
        self.resting = self.paused or self.outside_hours
        self.altered = options.altered
        if not self.altered:
            self.partitions, self.counted = options.partitions, None
        if options.priorities != self.priorities:
            self.priorities = options.priorities
            self._shares = shares(self.priorities, settings.topic(self.consumer.topic).priority_weights)

    def look_at_epochs(self) -> tuple[list[HeldLease], set[int]]:
        """Read which partitions of an altered topic the group may start, and let it start more if there are any; return
        the leases that it has lost since they wait again, and the numbers of those of retired epochs, which are
        over."""
        found = leased(self.log, *self.group_topic)
        if found.more and groups.start_epochs(self.log, *self.group_topic):
            found = leased(self.log, *self.group_topic)
        self.counted, self.partitions = found.counted, len(found.counted)
        gone = [lease for ref, lease in self.leases.items() if ref.partition not in found.counted]
        lost = [lease for lease in gone if lease.ref.partition in found.waiting]
        return lost, {lease.ref.partition for lease in gone if lease not in lost}

    def _apply_limits_of_keys(self, now: float) -> None:
        options = self.consumer.options  # an override is not followed by a group that cannot have it
        rate = self.flow.rate_per_key if options.ordering == "key" and not options.together else None
        if rate != (None if self.key_rate is None else self.key_rate.rate):
            for assigned in self.assigned.values() if self.key_rate is not None else ():
                assigned.let_go(now)
            self.key_rate = KeyRate(rate) if rate else None
        most = self.flow.concurrency_per_key if options.ordering == "none" and not options.together else None
        if most != self._most_of_key:
            self._most_of_key = most
            for limit in self._key_limits.values():
                limit.most = NO_LIMIT if most is None else most
            for assigned in self.assigned.values():
                assigned.queues.follow_limit(assigned.entries.values())

    def check_hours(self, now: datetime) -> None:
        """Compare the active hours with the database's clock."""
        self.outside_hours = self.flow.active is not None and not self.flow.active.contains(now)
        self.resting = self.paused or self.outside_hours

    def share(self, priority: int) -> float:
        """Return the share of the deliveries that a priority gets at least, while something of it waits."""
        return self._shares[priority] if priority < len(self._shares) else 0.0

    def adopt(self, taken: AcquiredPartition, deadline: float, now: float) -> AssignedPartition:
        """Add a partition from what its acquisition has read."""
        key_limit = self._key_limits.setdefault(taken.ref.partition, KeyLimit(self._most_of_key))
        assigned = AssignedPartition(
            taken.ref,
            self.consumer.options,
            id=taken.id,
            token=taken.token,
            position=taken.position,
            watermark=taken.watermark,
            claimed=taken.claimed,
            rows=taken.rows,
            ranges=taken.ranges,
            now=now,
            key_limit=key_limit,
        )
        assigned.lease.deadline, assigned.lease.subscription = deadline, self
        self.assigned[taken.ref], self.leases[taken.ref] = assigned, assigned.lease
        return assigned

    def drop(self, assigned: AssignedPartition) -> None:
        """Remove a partition that has another owner now: the outcomes of its attempts are ignored."""
        assigned.lease.lost = True
        assigned.queues.leave()
        self.assigned.pop(assigned.ref, None)
        self.leases.pop(assigned.ref, None)
        if assigned.ref.partition not in self.holding:
            self.leaving.discard(assigned.ref.partition)
            self._key_limits.pop(assigned.ref.partition, None)


class Registration:
    """Registers the groups of one process; for the control thread. It never waits: a transaction that publishes may
    stay open for long, and other groups have work to do meanwhile."""

    def __init__(self, log: Log, subscriptions: Sequence[Subscription]):
        self.log, self._subscriptions = log, subscriptions
        self.latest: list[Subscription] = []  # with start="latest", not registered yet
        self.undeclared: list[Subscription] = []  # not registered yet: the topic is not declared
        self.begin: int | None = None  # the offset after which groups with start="latest" begin, once it was read

    def start(self) -> None:
        """Register every group that begins at the log's beginning and is not registered; remember the others. The
        group of a topic that is not declared is registered once the topic exists."""
        known = groups.registered(self.log, {subscription.consumer.topic for subscription in self._subscriptions})
        for subscription in self._subscriptions:
            group, topic = subscription.group_topic
            if subscription.group_topic in known:
                continue
            try:
                require_declared(self.log, topic)
            except ConfigurationError as error:
                self.undeclared.append(subscription)
                logger.warning(logfmt("topic_undeclared", group=group, topic=topic, meaning=str(error)))
                continue
            if subscription.consumer.start == groups.LATEST:
                topic_info(self.log, topic)
                self.latest.append(subscription)
            else:
                groups.register(self.log, group, topic)
        self._declare()
        if self.latest:
            self.begin = highest_offset(self.log)

    def register_latest(self, horizon: Horizon) -> bool:
        """Register the groups with `start="latest"` if all messages that existed at the start are final; return whether
        any group was registered. They begin where the log ended at the start, however long this has taken."""
        if self.begin is None:
            self.begin = highest_offset(self.log, horizon.server)
        if horizon.probe(self.begin) < self.begin:
            return False
        for subscription in self.latest:
            groups.register_at(self.log, *subscription.group_topic, self.begin, horizon.server)
        self.latest = []
        self._declare()
        return True

    def register_declared(self) -> None:
        """Register the groups whose topics were declared since the start, from the beginning of the log."""
        there = existing(self.log, {subscription.consumer.topic for subscription in self.undeclared})
        for subscription in [one for one in self.undeclared if one.consumer.topic in there]:
            groups.register(self.log, *subscription.group_topic)
            self.undeclared.remove(subscription)
        self._declare()

    def _declare(self) -> None:
        """Store the groups' active hours and limits, as this process has them."""
        consumers = [subscription.consumer for subscription in self._subscriptions]
        groups.declare_flows(self.log, {(each.group, each.topic): each.flow for each in consumers if each.declares})

    def warn_waiting(self) -> None:
        """Log which groups are not registered yet."""
        for group, topic in (subscription.group_topic for subscription in self.latest):
            meaning = "a transaction that publishes is open, so where the log ends is not known yet"
            logger.warning(logfmt("registration_waits", group=group, topic=topic, meaning=meaning))
