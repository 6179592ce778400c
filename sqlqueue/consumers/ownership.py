"""Which partitions a process owns: taking its share, giving up what is too much, and dropping what it has lost."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from django.dispatch import Signal

from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.lines import line
from sqlqueue.core.stream import Stream
from sqlqueue.leases import hold
from sqlqueue.leases.acquire import AT_ONCE, acquire_leases
from sqlqueue.leases.balance import Balancer, Holding
from sqlqueue.log.groups import served
from sqlqueue.signals import announce, lease_acquired, lease_lost, lease_released

logger = logging.getLogger("sqlqueue")


class Ownership:
    """The leases of one subscriber. The control thread's; the keeper only asks `tokens` and moves deadlines.

    `progress` is called whenever a part of something long is done.
    """

    def __init__(self, alias: str, subscriber: str, subscriptions: list[Subscription], lease_duration: float):
        self.alias, self.subscriber, self.subscriptions = alias, subscriber, subscriptions
        self.lease_duration = lease_duration
        self.progress: Callable[[], None] = lambda: None
        self._several_since: float | None = None
        self._balancer = Balancer(alias, subscriber, lease_duration)
        self._by_place = {subscription.place: subscription for subscription in subscriptions}

    def of(self, stream: Stream) -> Subscription:
        """Return the subscription that a stream belongs to."""
        return self._by_place[stream.address.group, stream.address.topic]

    def hands_out(self, stream: Stream) -> bool:
        """Tell whether deliveries of a stream may start: it is neither paused nor leaving."""
        subscription = self.of(stream)
        return not subscription.paused and stream.address.partition not in subscription.leaving

    def streams(self) -> list[Stream]:
        """Return every stream that is owned now, the most urgent priorities first."""
        found = [stream for subscription in self.subscriptions for stream in subscription.streams.values()]
        return sorted(found, key=lambda stream: stream.address.priority) if self._has_priorities() else found

    def _has_priorities(self) -> bool:
        return any(subscription.priorities > 1 for subscription in self.subscriptions)

    def tokens(self) -> dict[tuple[str, str, int], list[Stream]]:
        """Return the owned streams by (group, topic, partition); a snapshot that another thread may take."""
        owned: dict[tuple[str, str, int], list[Stream]] = defaultdict(list)
        for subscription in self.subscriptions:
            for address, stream in list(subscription.streams.items()):
                owned[address.group, address.topic, address.partition].append(stream)
        return owned

    def balance(self, horizon: int, clock: Callable[[], float]) -> bool:
        """Take up to the fair share of every subscription, and mark the excess as leaving; return whether any was
        taken. All subscriptions together, in a handful of statements."""
        self.refresh()
        holdings = {each.place: Holding(each.partitions, each.holding) for each in self.subscriptions}
        take: list[int] = []
        free: dict[tuple[str, str], list[int]] = {}
        plans = self._balancer.compare(holdings, clock())
        self._look_at_servers(clock())
        for place, plan in plans.items():
            self._by_place[place].leaving = set(plan.give_up)
            if plan.free:
                free[place] = plan.free
            if not plan.give_up:
                take += plan.take.values()
        if free:
            hold.release(self.alias, self.subscriber, free)
        return bool(take) and self._take(take, horizon, clock)

    def _look_at_servers(self, now: float) -> None:
        """Say so if the group's consumers write to several servers; not while one takes another's place."""
        servers = sorted(self._balancer.servers - {""})
        if len(servers) < 2:
            self._several_since = None
        elif self._several_since is None:
            self._several_since = now
        elif now - self._several_since > 2 * self.lease_duration:
            self._several_since = math.inf  # said once
            meaning = (
                "publishers on one of them are not seen on the other: messages are missed; write to one server only"
            )
            logger.error(
                line("several_servers", subscriber=self.subscriber, servers=", ".join(servers), meaning=meaning)
            )

    def refresh(self) -> None:
        """Read the options that may change while running: pauses, history."""
        for place, options in served(self.alias, self.subscriber).items():
            if place in self._by_place:
                self._by_place[place].take_note(options)

    def _take(self, leases: list[int], horizon: int, clock: Callable[[], float]) -> bool:
        priorities = {subscription.place: subscription.priorities for subscription in self.subscriptions}
        found: dict[Subscription, set[int]] = defaultdict(set)
        for start in range(0, len(leases), AT_ONCE):
            some = leases[start : start + AT_ONCE]
            now = clock()
            for taken in acquire_leases(self.alias, self.subscriber, some, priorities, self.lease_duration, horizon):
                subscription = self._by_place[taken.address.group, taken.address.topic]
                subscription.adopt(taken, now + self.lease_duration, now)
                found[subscription].add(taken.address.partition)
            self.progress()
        self._announce(lease_acquired, found)
        return bool(found)

    def _announce(self, signal: Signal, partitions: Mapping[Subscription, Iterable[int]]) -> None:
        for subscription, numbers in partitions.items():
            group, topic = subscription.place
            facts = {"subscriber": self.subscriber, "group": group, "topic": topic}
            announce(signal, Ownership, **facts, partitions=sorted(numbers))

    def drained(self) -> dict[Subscription, set[int]]:
        """Return the leaving partitions of which nothing is in a handler's hands any more, by subscription."""
        found: dict[Subscription, set[int]] = {}
        for subscription in self.subscriptions:
            busy = {a.partition for a, s in subscription.streams.items() if s.handed} if subscription.leaving else set()
            if subscription.leaving - busy:
                found[subscription] = subscription.leaving - busy
        return found

    def release(self, partitions: Mapping[Subscription, set[int]]) -> None:
        """Give up leases whose streams have been settled for the last time."""
        for subscription, numbers in partitions.items():
            for partition in numbers:
                for stream in subscription.of_partition(partition):
                    subscription.drop(stream)
        places = {subscription.place: numbers for subscription, numbers in partitions.items()}
        hold.release(self.alias, self.subscriber, places)
        self._announce(lease_released, partitions)

    def lose(self, streams: Iterable[Stream]) -> None:
        """Drop streams whose token was stale."""
        for stream in streams:
            for subscription in self.subscriptions:
                if subscription.streams.get(stream.address) is stream:
                    subscription.drop(stream)
                    address = stream.address
                    announce(
                        lease_lost,
                        Ownership,
                        subscriber=self.subscriber,
                        group=address.group,
                        topic=address.topic,
                        partition=address.partition,
                    )
