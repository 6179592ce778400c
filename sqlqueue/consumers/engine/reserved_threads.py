"""ReservedThreads: what other groups' handlers keep waiting runs in a thread of its own.

A group waits if nothing of it runs here, all threads are taken, and something of it could start. After STARVED_AFTER it
gets a reserved thread, or a share of the event loop, that runs this group's executions alone. There are at most as many
of them as threads, and as many again on the event loop; if more groups wait, they take turns. A group that gets none
within GIVEN_UP_AFTER is starved: the process withdraws from it, and leaves it to another one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from sqlqueue.consumers.engine.in_flight import InFlight
from sqlqueue.consumers.engine.ownership import Ownership
from sqlqueue.consumers.engine.subscription import Subscription
from sqlqueue.consumers.engine.throttle import Capacity, Throttle
from sqlqueue.consumers.handlers.pools import ThreadPool
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.leases import heartbeat

logger = logging.getLogger("sqlqueue")

STARVED_AFTER: Final = 1.0  # seconds for which a group waits for the handlers of others
PASSED_ON_AFTER: Final = 0.1  # seconds after which it is passed on, if another group waits
GIVEN_UP_AFTER: Final = 1.5  # seconds for which a group waits before it is left to another process
IDLE: Final = 1.0  # seconds after which one without work ends
LOOK: Final = 0.05  # seconds between two looks


class ReservedThread(Capacity):
    """Where the executions of one group run apart from those of others."""

    def __init__(self, subscription: Subscription, threads: int, now: float):
        super().__init__(Throttle(threads))
        self.subscription, self.began, self.worked = subscription, now, now


class ReservedThreads:
    """The reserved threads of one process, for its control thread. Times are monotonic seconds.

    reserved: by the groups that have one; full: the groups that could get no thread, as of the last look; starved:
    those that have waited for too long; starving: called when there are more of these.
    """

    def __init__(self, ownership: Ownership, in_flight: InFlight, pool: ThreadPool, throttle: Throttle, threads: int):
        self._ownership, self._in_flight, self._pool = ownership, in_flight, pool
        self._throttle, self._most = throttle, threads
        self.reserved: dict[Subscription, ReservedThread] = {}
        self._since: dict[Subscription, float] = {}  # since when each group waits
        self.full: set[Subscription] = set()
        self.starved: frozenset[Subscription] = frozenset()
        self.starving: Callable[[], None] = lambda: None
        self._look_at = 0.0
        self._looks_again = False

    @property
    def wake_at(self) -> float:
        """When to look again, if there is anything to look at."""
        return self._look_at if self._looks_again or self.watches else math.inf

    @property
    def watches(self) -> bool:
        """Whether a group waits, has a thread, or could get none."""
        return bool(self.reserved or self._since or self.full)

    def ran(self, subscription: Subscription, now: float) -> None:
        """Record that something of a group runs."""
        if self._since.pop(subscription, None) is not None:
            self.starved -= {subscription}
        if (reserved := self.reserved.get(subscription)) is not None:
            reserved.worked = now

    def look(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> None:
        """Find the groups that wait; reserve threads for them, pass these on, and end those that are not needed."""
        taken = {False: self._pool.taken, True: self._throttle.room(*self._in_flight.loads(self.reserved)[1]) <= 0}
        if not (any(taken.values()) or self.watches):
            self._looks_again = False
            return
        self._looks_again = True
        if now < self._look_at:
            return
        self._look_at, self._looks_again = now + LOOK, False
        running, queued = self._in_flight.by_progress()
        ready = self._ready(assigned_partitions, now) | queued
        self.full = set()
        for is_async, all_taken in taken.items():
            of_kind = [each for each in self._ownership.subscriptions if each.consumer.is_async is is_async]
            self._end_unneeded(of_kind, ready | running, all_taken, now)
            for subscription in of_kind:
                waits = all_taken and subscription in ready and subscription not in running
                if waits and self.reserved.get(subscription) is None:
                    self._since.setdefault(subscription, now)
                else:
                    self._since.pop(subscription, None)
            free = self._serve(of_kind, now) if of_kind else 0
            if all_taken and not free:
                self.full.update(of_kind)
        before = self.starved
        self.starved = frozenset(each for each, since in self._since.items() if now >= since + GIVEN_UP_AFTER)
        if self.starved - before:
            self.starving()

    def _ready(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> set[Subscription]:
        """Return the groups of which something could start if there were a thread."""
        found: set[Subscription] = set()
        for assigned in assigned_partitions:
            subscription = assigned.lease.subscription
            if subscription in found or not assigned.has_candidates or not self._ownership.may_dispatch(assigned):
                continue
            if subscription.limiter is None or subscription.limiter.admits(now):
                found.add(subscription)
        return found

    def _serve(self, of_kind: Sequence[Subscription], now: float) -> int:
        """Reserve threads for those that have waited, the longest wait first; pass threads on to the others. Return how
        many were free."""
        waited = sorted((self._since[each], number) for number, each in enumerate(of_kind) if each in self._since)
        starved = [of_kind[number] for since, number in waited if now >= since + STARVED_AFTER]
        held = [self.reserved[each] for each in of_kind if each in self.reserved]
        ending = 0 if of_kind[0].consumer.is_async else self._pool.ending_reserved
        free = max(0, self._most - len(held) - ending)
        for subscription in starved[:free]:
            self._begin(subscription, now)
        ripe = sorted((each for each in held if now >= each.began + PASSED_ON_AFTER), key=lambda each: each.began)
        for each in ripe[: max(0, len(starved) - free)]:
            self._end(each)
        return free

    def _begin(self, subscription: Subscription, now: float) -> None:
        """Reserve a thread. What is queued behind others' executions comes back, to be dispatched to it."""
        del self._since[subscription]
        self.reserved[subscription] = ReservedThread(subscription, self._most, now)
        self._in_flight.release_of(subscription)

    def _end(self, reserved: ReservedThread) -> None:
        """End one: what waits in it comes back, what runs there goes on."""
        del self.reserved[reserved.subscription]
        self._in_flight.release_of(reserved.subscription)
        self._pool.end_reserved(reserved.subscription.executor)

    def _end_unneeded(self, of_kind: Sequence[Subscription], busy: set[Subscription], taken: bool, now: float) -> None:
        """End those that are not needed any more, or have nothing to do."""
        for reserved in [self.reserved[each] for each in of_kind if each in self.reserved]:
            if reserved.subscription in busy:
                reserved.worked = now
            if not taken or now >= reserved.worked + IDLE:
                self._end(reserved)


def withdraw(own: Ownership, threads: ReservedThreads, in_flight: InFlight, beat: Callable[[], None]) -> bool:
    """Withdraw from groups that no thread is left for, while another living process serves them, and come back once a
    thread is free, or no other process is alive: as the last balance has seen others. For the control thread. Return
    whether anything has changed, so that the partitions are to be balanced again.

    beat: writes the heartbeat, by which the other processes find out.
    """
    before = own.withdrawn
    for subscription in own.subscriptions:
        group_topic, others = subscription.group_topic, own.balancer.has_others(subscription.group_topic)
        if group_topic in own.withdrawn:
            if not (others and subscription in threads.full):
                own.withdrawn -= {group_topic}
        elif others and subscription in threads.starved and heartbeat.withdraw(own.log, own.subscriber, group_topic):
            own.withdrawn |= {group_topic}
            in_flight.release_of(subscription)
            group, topic = group_topic
            fields = {"subscriber": own.subscriber, "group": group, "topic": topic}
            meaning = "other groups' handlers take every thread: its partitions are left to another process"
            logger.warning(logfmt("no_thread_left", **fields, meaning=meaning))
    if own.withdrawn == before:
        return False
    beat()
    return True
