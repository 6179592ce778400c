"""The queues of a group that keeps no order: its messages run side by side, as many of a key as its limit allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sqlqueue.core.partition.blocked import KeyRanges
from sqlqueue.core.partition.key_limit import KeyLimit, LimitedQueue
from sqlqueue.core.partition.ordering import IN_FLIGHT, READY, SETTLED, Entry, OrderingQueue
from sqlqueue.core.partition.queues import OrderingQueues
from sqlqueue.core.partition.ref import ConsumerOptions
from sqlqueue.core.partition.waiting import Delays
from sqlqueue.core.settle_plan import FetchedMessage


def queues_for(options: ConsumerOptions, ranges: KeyRanges, delays: Delays, limit: KeyLimit | None) -> OrderingQueues:
    """Return the empty queues of a partition. limit: of each key, over the priorities of the partition."""
    if options.ordering == "none" and not options.together:
        return LimitedQueues(ranges, delays, options.urgency, limit or KeyLimit())
    return OrderingQueues(options.ordering, options.together, ranges, delays, options.urgency)


class LimitedQueues(OrderingQueues):
    """The messages of one partition that keep no order: free ones, and while keys have a limit (`limit`; it may change)
    or a blocked range, a queue of each."""

    def __init__(self, ranges: KeyRanges, delays: Delays, urgency: Callable[[Any], int] | None, limit: KeyLimit):
        self.limit = limit
        super().__init__("none", False, ranges, delays, urgency)
        limit.listeners.append(self)

    @property
    def candidates(self) -> int:
        """How many messages may be dispatched now, about."""
        if self.limit.limits:
            return sum(each.startable if isinstance(each, LimitedQueue) else 1 for each in iter(self.offered))
        return len(self.offered)

    @property
    def limits_keys(self) -> bool:
        """Whether only so many messages of a key may be in flight."""
        return self.limit.limits

    def queue_of(self, key: str) -> OrderingQueue | None:
        """Return the queue of messages with this key; None if they have none."""
        if not key or not self.limit.limits:
            return None
        queue = self._by_name.get(key)
        return self._new_queue(key) if queue is None else queue

    def _new_queue(self, name: str) -> OrderingQueue:
        queue = self._by_name[name] = LimitedQueue(name, self.limit)
        return queue

    # -- what is ready ------------------------------------------------------------------------------------------------

    def came_due(self, entry: Entry, message: FetchedMessage) -> None:
        """Make a loaded message ready that has a row, unless its key has come to its limit: then it waits for that."""
        queue = entry.queue
        if isinstance(queue, LimitedQueue):
            if not queue.admits_due(entry):
                entry.message = None
                return
            self.make_ready(entry, message, outside=True)
            queue.add(entry)
            self.offer(entry)
        else:
            super().came_due(entry, message)

    def offer(self, entry: Entry) -> None:
        """Make a ready message, or the queue of its key, a candidate."""
        if isinstance(entry.queue, LimitedQueue):
            self._go_on(entry.queue)
        else:
            super().offer(entry)

    def choose(
        self, most: int, of_a_queue: int | None, lists: int, allowed: Callable[[str, int], int] | None = None
    ) -> list[list[Entry]]:
        """Return at most `most` ready messages in at most so many lists, each in its own; nothing else bounds them."""
        chosen: list[list[Entry]] = []
        most = min(most, lists)
        for _ in range(len(self.offered)):
            if len(chosen) >= most:
                break
            candidate = self.offered.popleft()
            if isinstance(candidate, LimitedQueue):
                chosen += [[entry] for entry in self._take(candidate, most - len(chosen))]
            elif isinstance(candidate, Entry) and candidate.state == READY and candidate.queue is None:
                chosen.append([candidate])
        return chosen

    def _take(self, queue: LimitedQueue, most: int) -> list[Entry]:
        queue.listed = False
        found = queue.ready_at_head(most)
        if not found:
            self._go_on(queue)
        return found

    def advance(self, queue: OrderingQueue, now: float) -> None:
        """See what of a key may start now, and what is to be loaded for that."""
        assert isinstance(queue, LimitedQueue)
        self._go_on(queue)

    def _go_on(self, queue: LimitedQueue) -> None:
        self.absent.pop(queue.name, None)
        if queue.free <= 0:
            self.full[queue.name] = queue
            return
        self.full.pop(queue.name, None)
        for entry in queue.take_due():
            self._delays.mark_due(entry)
        if queue.lacks:
            self.absent[queue.name] = queue
        if not queue.listed and next(queue.ready(), None) is not None:
            queue.listed = True
            self.offered.append(queue)
        elif not queue.used:
            self._forget(queue)

    # -- the limit of keys --------------------------------------------------------------------------------------------

    def started(self, queue: LimitedQueue, entry: Entry) -> None:
        """Count a message of a limited key that is in flight now."""
        queue.start(entry)
        self._go_on(queue)

    def ended(self, queue: LimitedQueue) -> None:
        """Count a message of a limited key that is in flight no more."""
        self.limit.ended(queue.name, 1, self)

    def key_freed(self, key: str) -> None:
        """Go on with a key of which a message of another priority has ended."""
        queue = self._by_name.get(key)
        if isinstance(queue, LimitedQueue):
            self._go_on(queue)

    def follow_limit(self, entries: Iterable[Entry]) -> None:
        """Let the limit of keys hold as it is now, for all these messages."""
        for entry in sorted(entries) if self.limit.limits else ():
            if entry.queue is None and entry.key and entry.state != SETTLED:
                queue = entry.queue = self.queue_of(entry.key)
                assert isinstance(queue, LimitedQueue)
                queue.rows += entry.row
                if entry.state == IN_FLIGHT:
                    queue.busy += 1
                    self.limit.started(queue.name)
                else:
                    queue.add(entry)
        for each in list(self._by_name.values()):
            self.advance(each, 0.0)

    def leave(self) -> None:
        """Count nothing of this partition as in flight any more: the lease is lost."""
        if self in self.limit.listeners:
            self.limit.listeners.remove(self)
        for queue in self._by_name.values():
            if queue.busy:
                self.limit.ended(queue.name, queue.busy)
