"""The ordering queues of a partition: which messages can be dispatched next, and which have to be loaded first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from sqlqueue.core.partition import window
from sqlqueue.core.partition.blocked import KeyRanges, StoredRange
from sqlqueue.core.partition.key_limit import KeyLimit, LimitedQueue
from sqlqueue.core.partition.ordering import BEHIND, HELD, IN_FLIGHT, READY, SETTLED, Entry, OrderingQueue, UrgentFirst
from sqlqueue.core.partition.ref import ConsumerOptions
from sqlqueue.core.partition.waiting import Delays
from sqlqueue.core.settle_plan import FetchedMessage


class Missing(NamedTuple):
    """A message to be loaded: a late one, or the next one of an ordering queue."""

    offset: int
    queue: OrderingQueue | None


class OrderingQueues:
    """The ordering queues of one partition. Only methods of this class make a message ready, or no longer ready. With
    ordering "none" messages are free, but while keys have a limit (it may change) or a blocked range, there is a queue
    of each.

    ready, ready_size: how many messages are ready, and how many characters and bytes they have; loaded: those of them
    that have a row or came out of a blocked range, and so are outside the window; absent: the queues that may go on,
    and whose next messages are not in memory; full: those whose keys are at their limit; offered: free messages, and
    queues that may have something ready; limit: of each key, over the priorities of the partition, None unless it may
    have one.
    """

    def __init__(self, options: ConsumerOptions, ranges: KeyRanges, delays: Delays, limit: KeyLimit | None):
        self.ready = self.ready_size = 0
        self.loaded: dict[int, Entry] = {}
        self.refused: list[Entry] = []  # the first ones of ordering queues of which nothing was allowed to start
        self._ordering, self._by_key, self._batch = options.ordering, options.ordering == "key", options.together
        self._ranges, self._delays = ranges, delays
        self._by_name: dict[str, OrderingQueue] = {}
        self.offered: deque[Entry | OrderingQueue] | UrgentFirst = (
            UrgentFirst(options.urgency) if options.urgency else deque()
        )
        self.absent: dict[str, OrderingQueue] = {}
        self.full: dict[str, LimitedQueue] = {}
        self.limit = (limit or KeyLimit()) if options.ordering == "none" and not options.together else None
        if self.limit is not None:
            self.limit.listeners.append(self)
        for one in ranges.by_key.values():
            self._new_queue(one.key).range = one

    @property
    def candidates(self) -> int:
        """About how many messages and ordering queues may have something to dispatch now."""
        if self.limit is not None and self.limit.limits:
            return sum(each.startable if isinstance(each, LimitedQueue) else 1 for each in iter(self.offered))
        return len(self.offered)

    def urgencies(self, most: int) -> list[int]:
        """Return how urgent the first candidates are, at most `most`; none if they are taken in their order."""
        return self.offered.first(most) if isinstance(self.offered, UrgentFirst) else []

    def find_absent(self, now: float) -> None:
        """See what the queues with a range have next, once the stored rows are in memory."""
        for queue in list(self._by_name.values()):
            if queue.range is not None:
                self.advance(queue, now)

    def covering_key(self, key: str) -> str:
        """Return the key by whose range a message may come to be covered; "" if by none."""
        return "" if self._ordering == "partition" else key

    def queue_of(self, key: str) -> OrderingQueue | None:
        """Return the ordering queue of messages with this key; None if they have none."""
        if self._by_key:
            if not key:
                return None
            name = key
        elif self._ordering == "none":
            if not key or not self.limits_keys:
                return None
            name = key
        else:
            name = ""
        queue = self._by_name.get(name)
        return self._new_queue(name) if queue is None else queue

    def _new_queue(self, name: str) -> OrderingQueue:
        queue = OrderingQueue(name) if self.limit is None else LimitedQueue(name, self.limit)
        self._by_name[name] = queue
        return queue

    # -- what is ready ------------------------------------------------------------------------------------------------

    def receive(self, message: FetchedMessage, size: int) -> Entry:
        """Add a message that was read: it is ready, or waits behind another of its key."""
        offset, key = message[0], message[1]
        queue = self._by_name.get(key) if self._by_key else None
        if queue is None:
            queue = self.queue_of(key)
        entry = Entry(offset, queue, READY, message, "" if self._ordering == "partition" else key)
        if queue is not None:
            if not queue.entries and queue.range is None:
                queue.entries.append(entry)
            else:
                behind = entry.key and queue.has_before(offset)
                queue.add(entry)
                if behind:
                    entry.state, entry.message = BEHIND, None
                    return entry
        entry.size = size
        self.ready += 1
        self.ready_size += size
        if queue is None or not queue.listed or self.limit is not None:
            self.offer(entry)
        return entry

    def make_ready(self, entry: Entry, message: FetchedMessage, outside: bool = False) -> None:
        """Make a message ready; it is dispatched once it is offered. outside: it is outside the window."""
        entry.state, entry.message, entry.size = READY, message, message.size
        self.ready += 1
        self.ready_size += entry.size
        if outside:
            self.loaded[entry.offset] = entry

    def withdraw(self, entry: Entry) -> None:
        """Make a ready message wait, and drop its payload, which the log has."""
        assert entry.message is not None
        self.ready -= 1
        self.ready_size -= entry.size
        self.loaded.pop(entry.offset, None)
        entry.state, entry.message = HELD if entry.row else BEHIND, None

    def offer(self, entry: Entry) -> None:
        """Make a ready message, or its ordering queue, a candidate. Batches are chosen by offset instead."""
        queue = entry.queue
        if self._batch:
            return
        if queue is None:
            self.offered.append(entry)
        elif isinstance(queue, LimitedQueue):
            self._go_on(queue)
        elif not queue.listed and not queue.busy:
            queue.listed = True
            self.offered.append(queue)

    def choose(
        self, most: int, of_a_queue: int | None, lists: int, allowed: Callable[[str, int], int] | None = None
    ) -> list[list[Entry]]:
        """Return at most `most` ready messages in at most so many lists, of one ordering queue at most `of_a_queue`, if
        that is given, and at most what `allowed` returns for its name and their number. Where keys have a limit, each
        is in a list of its own, and nothing else bounds them."""
        chosen: list[list[Entry]] = []
        for _ in range(len(self.offered)):
            if most <= 0 or len(chosen) >= lists:
                break
            candidate = self.offered.popleft()
            if isinstance(candidate, LimitedQueue):
                candidate.listed = False
                entries = candidate.ready_at_head(min(most, lists - len(chosen)))
                chosen += [[entry] for entry in entries]
                if not entries:
                    self._go_on(candidate)
            else:
                entries = self._take_candidate(candidate, min(most, of_a_queue or most), allowed)
                if entries:
                    chosen.append(entries)
            most -= len(entries)
        return chosen

    def _take_candidate(
        self, candidate: Entry | OrderingQueue, most: int, allowed: Callable[[str, int], int] | None
    ) -> list[Entry]:
        if isinstance(candidate, Entry):
            return [candidate] if candidate.state == READY and candidate.queue is None else []
        candidate.listed = False
        if not candidate.entries:
            self._forget(candidate)
        entries = [] if candidate.busy else candidate.ready_at_head(most)
        if entries and allowed is not None:
            count = allowed(candidate.name, len(entries))
            if not count:
                self.refused.append(entries[0])
            return entries[:count]
        return entries

    def advance(self, queue: OrderingQueue, now: float) -> None:
        """See what is the first message of an ordering queue now. While something of it is in flight, nothing of it is
        to be loaded, and no scan waits for it."""
        if isinstance(queue, LimitedQueue):
            self._go_on(queue)
            return
        if self.absent:
            self.absent.pop(queue.name, None)
        if queue.busy:
            return
        head = queue.head
        if head is None:
            if queue.range is not None:
                self.absent[queue.name] = queue
            else:
                self._forget(queue)
        elif head.state == BEHIND:
            self.absent[queue.name] = queue
        elif head.state == READY:
            self.offer(head)
        elif head.state == HELD and not head.mark:
            self._delays.add(head, now)

    def _forget(self, queue: OrderingQueue) -> None:
        if not queue.listed and queue.range is None and self._by_name.get(queue.name) is queue:
            del self._by_name[queue.name]

    def came_due(self, entry: Entry, message: FetchedMessage) -> None:
        """Make a loaded message ready that has a row: it is due. Not behind one that waits, which was committed late:
        then its turn comes with that one's end. Nor if its key has come to its limit: then it waits for that."""
        queue = entry.queue
        if isinstance(queue, LimitedQueue):
            if not queue.admits_due(entry):
                entry.message = None
                return
        elif queue is not None and queue.entries[0] is not entry and queue.entries[0].state == HELD:
            return
        self.make_ready(entry, message, outside=True)
        if isinstance(queue, LimitedQueue):
            queue.add(entry)
        self.offer(entry)

    # -- the limit of keys --------------------------------------------------------------------------------------------

    @property
    def limits_keys(self) -> bool:
        """Whether only so many messages of a key may be in flight."""
        return self.limit is not None and self.limit.limits

    @property
    def holding(self) -> bool:
        """Whether messages wait in line because their key is at its limit."""
        return any(queue.entries or queue.again for queue in self.full.values())

    def started(self, queue: LimitedQueue, entry: Entry) -> None:
        """Count a message of a limited key that is in flight now."""
        queue.start(entry)
        self._go_on(queue)

    def ended(self, queue: LimitedQueue) -> None:
        """Count a message of a limited key that is in flight no more."""
        queue.limit.ended(queue.name, 1, self)

    def key_freed(self, key: str) -> None:
        """Go on with a key of which a message of another priority has ended."""
        queue = self._by_name.get(key)
        if isinstance(queue, LimitedQueue):
            self._go_on(queue)

    def _go_on(self, queue: LimitedQueue) -> None:
        """See what of a key may start now, and what is to be loaded for that."""
        self.absent.pop(queue.name, None)
        if queue.free <= 0:
            self.full[queue.name] = queue
            return
        self.full.pop(queue.name, None)
        for entry in queue.take_due():
            self._delays.due[entry.offset] = entry
        if queue.lacks:
            self.absent[queue.name] = queue
        if not queue.listed and next(queue.ready(), None) is not None:
            queue.listed = True
            self.offered.append(queue)
        elif not queue.used:
            self._forget(queue)

    def follow_limit(self, entries: Iterable[Entry]) -> None:
        """Let the limit of keys hold as it is now, for all these messages."""
        for entry in sorted(entries) if self.limits_keys else ():
            if entry.queue is None and entry.key and entry.state != SETTLED:
                queue = entry.queue = self.queue_of(entry.key)
                assert isinstance(queue, LimitedQueue)
                queue.rows += entry.row
                if entry.state == IN_FLIGHT:
                    queue.busy += 1
                    queue.limit.started(queue.name)
                else:
                    queue.add(entry)
        for each in list(self._by_name.values()):
            self.advance(each, 0.0)

    def leave(self) -> None:
        """Count nothing of this partition as in flight any more: the lease is lost."""
        if self.limit is None or self not in self.limit.listeners:
            return
        self.limit.listeners.remove(self)
        for queue in self._by_name.values():
            if queue.busy:
                self.limit.ended(queue.name, queue.busy)

    # -- what is not in memory ----------------------------------------------------------------------------------------

    def missing(self, most: int) -> list[Missing]:
        """Return the next messages, at most `most`, of ordering queues that may go on."""
        every = (Missing(offset, queue) for queue in self.absent.values() for offset in queue.absent())
        return list(islice(every, max(0, most)))

    def were_loaded(self, name: str, count: int, now: float) -> None:
        """Record that the first `count` missing messages of an ordering queue are in memory, or settled."""
        if (queue := self._by_name.get(name)) is None:
            return
        if queue.range is not None:
            queue.range.was_loaded(count)
            self._ranges.touched[name] = queue.range
        self.advance(queue, now)

    def scanned(self, low: int, high: int, keys: Sequence[tuple[int, str]], now: float) -> None:
        """Record (offset, key) of all messages in (low, high], or of the first SCAN_LIMIT of them."""
        end = keys[-1][0] if len(keys) >= window.SCAN_LIMIT else high
        wanted = {queue.name: queue.range for queue in self.absent.values() if queue.range is not None}
        for offset, key in keys:
            one = wanted.get(key)
            if one is not None and one.scanned < offset <= one.high:
                one.found.append(offset)
        for one in wanted.values():
            if low <= one.scanned < end:
                one.scanned = min(end, one.high)
            if not one.found and one.loaded < one.scanned:
                one.loaded = one.scanned
                self._ranges.touched[one.key] = one
            self.advance(self._by_name[one.key], now)

    def raise_lows(self, now: float) -> tuple[list[StoredRange], list[int]]:
        """Raise the low of each range that has changed, over messages that have a row by now and over what a scan has
        found to be empty. Return the ranges to store, and the acked rows that they no longer keep."""
        stored: list[StoredRange] = []
        released: list[int] = []
        touched, self._ranges.touched = list(self._ranges.touched.values()), {}
        for one in touched:
            queue = self._by_name[one.key]
            before = one.low
            without_row = next((entry.offset for entry in queue.entries if not entry.row), one.loaded + 1)
            released += one.raise_low(min(one.loaded, without_row - 1))
            stored.append(one.stored())
            if one.low > before or one.low >= one.high:
                self._ranges.was_raised(one, before)
            if one.low >= one.high:
                queue.range = None
                self.advance(queue, now)
        return stored, released
