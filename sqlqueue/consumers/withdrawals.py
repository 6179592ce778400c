"""Withdrawals: the groups that a process leaves to others, because other groups' handlers take all its threads."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlqueue.consumers.in_flight import InFlight
from sqlqueue.consumers.ownership import Ownership
from sqlqueue.consumers.reserved_threads import ReservedThreads
from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition_numbers import numbers_text
from sqlqueue.leases import withdrawal

logger = logging.getLogger("sqlqueue")


class Withdrawals:
    """Withdraws from groups that no thread is left for, while another living process serves them, and comes back once a
    thread is free, or no other process is alive. For the control thread.

    beat: writes the heartbeat, by which the other processes find out.
    """

    def __init__(self, ownership: Ownership, reserved_threads: ReservedThreads, in_flight: InFlight):
        self._ownership, self._threads, self._in_flight = ownership, reserved_threads, in_flight
        self.beat: Callable[[], None] = lambda: None

    def follow(self) -> bool:
        """Withdraw and come back as the threads are taken now, and by what the last balance has seen of others; return
        whether anything has changed, so that the partitions are to be balanced again."""
        own, before = self._ownership, self._ownership.withdrawn
        for subscription in own.subscriptions:
            group_topic, others = subscription.group_topic, own.has_others(subscription)
            if group_topic in own.withdrawn:
                if not (others and self._threads.is_full(subscription)):
                    own.withdrawn -= {group_topic}
            elif others and subscription in self._threads.starved:
                self._withdraw(subscription)
        if own.withdrawn == before:
            return False
        self.beat()
        return True

    def _withdraw(self, subscription: Subscription) -> None:
        own, group_topic = self._ownership, subscription.group_topic
        if not withdrawal.withdraw(own.log, own.subscriber, group_topic, numbers_text(own.served)):
            return
        own.withdrawn |= {group_topic}
        self._in_flight.release_of(subscription)
        group, topic = group_topic
        fields = {"subscriber": own.subscriber, "group": group, "topic": topic}
        meaning = "other groups' handlers take every thread: its partitions are left to another process"
        logger.warning(logfmt("no_thread_left", **fields, meaning=meaning))
