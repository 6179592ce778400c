"""Which partitions a process owns: taking its share, giving up what is too much, and dropping what it has lost."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.stream import Stream
from sqlqueue.leases import acquire, balance, hold
from sqlqueue.signals import announce, lease_acquired, lease_lost, lease_released

logger = logging.getLogger("sqlqueue")


class Ownership:
    """The leases of one subscriber. The control thread's; the keeper only asks `tokens` and moves deadlines."""

    def __init__(self, alias: str, subscriber: str, subscriptions: list[Subscription], lease_duration: float):
        self.alias, self.subscriber, self.subscriptions = alias, subscriber, subscriptions
        self.lease_duration = lease_duration
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
        taken."""
        took = False
        for subscription in self.subscriptions:
            group, topic = subscription.place
            subscription.refresh()
            holding = subscription.holding
            plan = balance.balance(self.alias, self.subscriber, group, topic, holding)
            subscription.leaving = set(plan.give_up)
            if plan.free:
                hold.release(self.alias, self.subscriber, group, topic, plan.free)
            if plan.take and not plan.give_up:
                took = self._take(subscription, plan.take, horizon, clock) or took
        return took

    def _take(
        self, subscription: Subscription, partitions: list[int], horizon: int, clock: Callable[[], float]
    ) -> bool:
        group, topic = subscription.place
        now = clock()
        taken = acquire.acquire(
            self.alias,
            self.subscriber,
            group,
            topic,
            partitions,
            priorities=subscription.priorities,
            lease_duration=self.lease_duration,
            horizon=horizon,
        )
        for found in taken:
            subscription.adopt(found, now + self.lease_duration, now)
        if taken:
            numbers = sorted({found.address.partition for found in taken})
            announce(
                lease_acquired,
                Ownership,
                subscriber=self.subscriber,
                group=group,
                topic=topic,
                partitions=numbers,
            )
        return bool(taken)

    def drained(self) -> list[tuple[Subscription, set[int]]]:
        """Return the leaving partitions of which nothing is in a handler's hands any more, by subscription."""
        found: list[tuple[Subscription, set[int]]] = []
        for subscription in self.subscriptions:
            busy = {a.partition for a, s in subscription.streams.items() if s.handed} if subscription.leaving else set()
            if subscription.leaving - busy:
                found.append((subscription, subscription.leaving - busy))
        return found

    def release(self, subscription: Subscription, partitions: Iterable[int]) -> None:
        """Give up leases whose streams have been settled for the last time."""
        group, topic = subscription.place
        numbers = sorted(set(partitions))
        for partition in numbers:
            for stream in subscription.of_partition(partition):
                subscription.drop(stream)
        hold.release(self.alias, self.subscriber, group, topic, numbers)
        announce(lease_released, Ownership, subscriber=self.subscriber, group=group, topic=topic, partitions=numbers)

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
