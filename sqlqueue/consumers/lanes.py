"""Lanes: what other groups' handlers keep waiting runs in a thread of its own.

A group waits if nothing of it runs here, all threads are taken, and something of it could start. After STARVED_AFTER it
gets a lane: a thread, or a place on the event loop, that runs this group's executions alone. There are at most as many
lanes as threads, and as many again on the event loop; if more groups wait, lanes are handed on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from sqlqueue.consumers.in_flight import InFlight
from sqlqueue.consumers.ownership import Ownership
from sqlqueue.consumers.pools import Pool
from sqlqueue.consumers.priority_shares import PriorityShares
from sqlqueue.consumers.subscription import Subscription
from sqlqueue.consumers.throttle import Throttle
from sqlqueue.core.partition.assigned import AssignedPartition

STARVED_AFTER: Final = 1.0  # seconds for which a group waits for the handlers of others
HANDED_ON_AFTER: Final = 0.1  # seconds after which a lane is handed on, if another group waits
IDLE: Final = 1.0  # seconds after which a lane without work ends
LOOK: Final = 0.05  # seconds between two looks


class Lane:
    """Where the executions of one group run apart from those of others."""

    def __init__(self, subscription: Subscription, threads: int, now: float):
        self.subscription, self.began, self.worked = subscription, now, now
        self.throttle, self.shares = Throttle(threads), PriorityShares()


class Lanes:
    """The lanes of one process, for its control thread. Times are monotonic seconds."""

    def __init__(self, ownership: Ownership, in_flight: InFlight, pool: Pool, throttle: Throttle, threads: int):
        self._ownership, self._in_flight, self._pool = ownership, in_flight, pool
        self._throttle, self._most = throttle, threads
        self._lanes: dict[Subscription, Lane] = {}
        self._since: dict[Subscription, float] = {}  # since when each group waits
        self._look_at = 0.0
        self._looks_again = False

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def of(self, subscription: Subscription) -> Lane | None:
        """Return the lane of a group, if it has one."""
        return self._lanes.get(subscription)

    @property
    def subscriptions(self) -> Collection[Subscription]:
        """The groups that have lanes."""
        return self._lanes.keys()

    @property
    def wake_at(self) -> float:
        """When to look again, if there is anything to look at."""
        return self._look_at if self._looks_again or self._lanes or self._since else math.inf

    def ran(self, subscription: Subscription, now: float) -> None:
        """Record that something of a group has run."""
        self._since.pop(subscription, None)
        if (lane := self.of(subscription)) is not None:
            lane.worked = now

    def look(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> None:
        """Find the groups that wait; begin lanes for them, hand lanes on, and end those that are not needed."""
        taken = {False: self._pool.taken, True: self._throttle.room(*self._in_flight.loads(self._lanes)[1]) <= 0}
        if not (any(taken.values()) or self._lanes or self._since):
            self._looks_again = False
            return
        self._looks_again = True
        if now < self._look_at:
            return
        self._look_at, self._looks_again = now + LOOK, False
        running, queued = self._in_flight.by_progress()
        ready = self._ready(assigned_partitions, now) | queued
        for is_async, all_taken in taken.items():
            of_kind = [each for each in self._ownership.subscriptions if each.consumer.is_async is is_async]
            self._end_lanes(of_kind, ready | running, all_taken, now)
            for subscription in of_kind:
                waits = all_taken and subscription in ready and subscription not in running
                if waits and self.of(subscription) is None:
                    self._since.setdefault(subscription, now)
                else:
                    self._since.pop(subscription, None)
            self._serve(of_kind, now)

    def _ready(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> set[Subscription]:
        """Return the groups of which something could start if there were a thread."""
        found: set[Subscription] = set()
        for assigned in assigned_partitions:
            subscription = self._ownership.of(assigned)
            if subscription in found or not assigned.has_candidates or not self._ownership.may_dispatch(assigned):
                continue
            if subscription.limiter is None or subscription.limiter.admits(now):
                found.add(subscription)
        return found

    def _serve(self, of_kind: Sequence[Subscription], now: float) -> None:
        """Begin lanes for those that have waited, the longest wait first; let lanes be handed on to the others."""
        waited = sorted((self._since[each], number) for number, each in enumerate(of_kind) if each in self._since)
        starved = [of_kind[number] for since, number in waited if now >= since + STARVED_AFTER]
        lanes = [self._lanes[each] for each in of_kind if each in self._lanes]
        ending = 0 if of_kind and of_kind[0].consumer.is_async else self._pool.ending_lanes
        free = max(0, self._most - len(lanes) - ending)
        for subscription in starved[:free]:
            self._begin(subscription, now)
        held = sorted((lane for lane in lanes if now >= lane.began + HANDED_ON_AFTER), key=lambda lane: lane.began)
        for lane in held[: max(0, len(starved) - free)]:
            self._end(lane)

    def _begin(self, subscription: Subscription, now: float) -> None:
        """Begin a lane. What is queued behind others' executions comes back, to be dispatched to it."""
        del self._since[subscription]
        self._lanes[subscription] = Lane(subscription, self._most, now)
        self._in_flight.release_of(subscription)

    def _end(self, lane: Lane) -> None:
        """End a lane: what waits in it comes back, what runs there goes on."""
        del self._lanes[lane.subscription]
        self._in_flight.release_of(lane.subscription)
        self._pool.end_lane(lane.subscription.executor)

    def _end_lanes(self, of_kind: Sequence[Subscription], busy: set[Subscription], all_taken: bool, now: float) -> None:
        """End lanes that are not needed any more, or have nothing to do."""
        for lane in [self._lanes[each] for each in of_kind if each in self._lanes]:
            if lane.subscription in busy:
                lane.worked = now
            if not all_taken or now >= lane.worked + IDLE:
                self._end(lane)
