"""The writes of a partition: what the next plan stores, the acks that need no row until they have waited long enough,
and which delivery-state rows there are, or will be once the next plan is written.

Claims ahead: C is stored above what is dispatched, so that the next first attempts start without a write.

A partition that keeps up with a log that grows steadily would otherwise write a claim for nearly every message. A write
that it has anyway raises C to about where the log will end AHEAD seconds later. Until then an attempt at or below that
C may start: not later, for a process that has lost the partition without knowing it could start what came after that,
and its successor does not count. An attempt that was too late is claimed by a write when it is chosen again.

While C is ahead, messages that wait look as if they were in flight. So C falls back once nothing was dispatched for a
while.

It brings, in a steady stream of 500 single messages a second for three groups, 2.2 rows changed a message instead of
4.0, 1.34 statements instead of 1.45, and 954 bytes of binary log instead of 1,276 (MySQL; tests/benchmarks/statements).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from typing import Final

from sqlqueue.core.effects import EffectWrite, of_headers, with_header
from sqlqueue.core.new_message import reply_kept
from sqlqueue.core.outcomes import ACKED, DEAD, Outcome
from sqlqueue.core.partition.blocked import KeyRanges
from sqlqueue.core.partition.key_limit import LimitedQueue
from sqlqueue.core.partition.ordering import Entry
from sqlqueue.core.settle_plan import (
    NOT_IN_FLIGHT,
    Attempt,
    DeadLetter,
    Execution,
    FetchedMessage,
    RowWrite,
    SettledAttempt,
    SettlePlan,
)

HEADERS: Final = FetchedMessage._fields.index("headers")
AHEAD: Final = 0.1  # seconds
MOST_AHEAD: Final = 200  # offsets above the log's end: as many messages at most are charged an attempt by a takeover
FALLS_BACK: Final = 1.0  # seconds without a dispatch after which C falls back
REFRAINS: Final = 1.0  # seconds without claims ahead after an attempt that was too late: handlers are slow


class Writes:
    """What the next plan writes. claimed, watermark: C (unless it is claimed ahead) and W as it writes them;
    unsettled: ascending the offsets of the unsettled rows, which hold the watermark; acked: ascending those of the
    acked rows, which are deleted once the position has passed them; heads: how many ordering queues, and messages
    without one, have an unsettled row."""

    def __init__(self, claimed: int, watermark: int, ranges: KeyRanges):
        self.claimed, self.watermark = claimed, watermark
        self.waits_since: float | None = None  # when acks, or those behind a slow message, began to wait
        self.lingers_since: float | None = None  # when there was something for a plan that may wait
        # Above the position, in memory only; announced once stored. None: there is nothing to announce.
        self.acks: dict[int, SettledAttempt | list[EffectWrite] | None] = {}
        self.awaited: list[int] = []  # offsets of acks that were put there since the last plan, and have a caller
        self.unsettled: list[int] = []
        self.acked: list[int] = []
        self.heads = 0
        self._ranges = ranges
        self.clear()

    def clear(self) -> None:
        """Begin the next plan."""
        self.rows: dict[int, RowWrite] = {}
        self.taken_up: set[int] = set()  # claimed out of a blocked range: the plan writes their first row
        self.dead: list[DeadLetter] = []
        self.settled: list[SettledAttempt] = []
        self.filtered = 0  # how many of what is settled the consumer's filter has left out
        self.effects: list[EffectWrite] = []

    @property
    def due(self) -> bool:
        """Whether something is to be written."""
        return bool(self.rows or self.settled or self.acked or self._ranges.touched)

    @property
    def only_acks(self) -> bool:
        """Whether all that is to be written is acks that need no row, or have it already (a handler's transaction wrote
        it), and no publisher waits for a reply to one."""
        if self.rows or self.dead or self.effects or self._ranges.touched:
            return False
        return all(outcome.kind == ACKED and not _is_awaited(attempt, outcome) for attempt, outcome in self.settled)

    def passed(self, entries: Iterable[Entry]) -> None:
        """Record that the position has passed acked messages: that stores their acks, unless a range may cover them."""
        ranges, acks, settled = self._ranges if self._ranges.by_key else None, self.acks, self.settled
        for entry in entries:
            offset = entry.offset
            kept = ranges is not None and entry.key and ranges.keep(offset, entry.key)
            if entry.row:
                if kept:
                    del self.acked[bisect_left(self.acked, offset)]
                continue
            ack = acks.pop(offset)
            if isinstance(ack, SettledAttempt):
                settled.append(ack)
            else:
                self.settle(ack)
            if kept:
                self.rows[offset] = RowWrite(offset, True, NOT_IN_FLIGHT, 1)

    def give_row(self, entry: Entry) -> None:
        """Turn an ack that has waited in memory into an acked row."""
        entry.row = True
        self.rows[entry.offset] = RowWrite(entry.offset, True, NOT_IN_FLIGHT, 1)
        self.add_acked(entry.offset)
        self.settle(self.acks.pop(entry.offset))

    def settle(self, settled: SettledAttempt | list[EffectWrite] | None) -> None:
        """Let the next plan announce what it, or a commit before it, stores."""
        if isinstance(settled, SettledAttempt):
            self.settled.append(settled)
        elif settled is not None:  # by the filter
            self.filtered += 1
            self.effects += settled

    def answer(self, entries: Mapping[int, Entry]) -> None:
        """Turn those acks into acked rows whose callers wait for the reply: it is stored with them."""
        awaited, self.awaited = self.awaited, []
        for offset in awaited:
            if offset in self.acks:  # else the position has passed it
                self.give_row(entries[offset])

    # -- rows ---------------------------------------------------------------------------------------------------------

    def add_row(self, entry: Entry) -> None:
        """Add the row of a message: it has one, or the next plan writes it."""
        entry.row = True
        insort(self.unsettled, entry.offset)
        queue = entry.queue
        if queue is None:
            self.heads += 1
        else:
            self.heads += not queue.rows or isinstance(queue, LimitedQueue)
            queue.rows += 1

    def settle_row(self, entry: Entry) -> None:
        """Record that a message is settled: if it has an unsettled row, that no longer holds the watermark."""
        at = bisect_left(self.unsettled, entry.offset)
        if self.unsettled[at : at + 1] != [entry.offset]:
            return
        del self.unsettled[at]
        queue = entry.queue
        if queue is None:
            self.heads -= 1
        else:
            queue.rows -= 1
            self.heads -= not queue.rows or isinstance(queue, LimitedQueue)

    def add_acked(self, offset: int) -> None:
        """Add an acked row, to be deleted once the position has passed it."""
        insort(self.acked, offset)

    def add_acked_unless_kept(self, offset: int, key: str, position: int) -> None:
        """Add an acked row, to be deleted once the position has passed it, unless its key's range may come to cover
        it."""
        if offset > position or not self._ranges.keep(offset, key):
            insort(self.acked, offset)

    def take_passed(self, position: int) -> list[int]:
        """Return the acked rows that the position has passed: they are to be deleted."""
        count = bisect_right(self.acked, position)
        passed, self.acked = self.acked[:count], self.acked[count:]
        for offset in passed:
            self.rows.pop(offset, None)
        return passed

    def raise_watermark(self, position: int) -> None:
        """Let W follow the position: nothing at or below it is unsettled."""
        if self.unsettled:
            position = min(position, self.unsettled[0] - 1)
        if self._ranges.by_key:
            position = min(position, self._ranges.lowest)
        self.watermark = position

    def add_effects(self) -> None:
        """Add what effects write of what is settled, because of its messages' headers. A handler's own transaction has
        written it already."""
        for attempt, outcome in self.settled if with_header() else ():
            headers = attempt.message[HEADERS]
            if headers and outcome.kind in (ACKED, DEAD) and not outcome.committed:
                for effect in of_headers(headers):
                    acked = outcome.kind == ACKED
                    self.effects.append(
                        EffectWrite(attempt.lease, attempt.offset, attempt.number, effect, acked, headers)
                    )


def _is_awaited(attempt: Attempt, outcome: Outcome) -> bool:
    """Tell whether the publisher of an acked message waits for the reply to it."""
    if outcome.committed:  # the reply is stored already
        return reply_kept(attempt.message.headers) is not None
    return outcome.kept is not None


class ClaimAhead:
    """How far one partition is claimed ahead, and until when that holds. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.claimed = 0  # C, as it was written last
        self.until = -math.inf  # what is at or below C and starts before then needs no write
        self._dispatched_at = self._refrains_until = -math.inf

    def covers(self, executions: Iterable[Execution], now: float) -> bool:
        """Tell whether first attempts without rows may start without a write."""
        if now >= self.until:
            return False
        return all(
            attempt.number == 1 and attempt.offset <= self.claimed
            for execution in executions
            for attempt in execution.attempts
        )

    def target(self, end: int, now: float) -> int:
        """Return up to where a write claims ahead; 0: nothing. end: where the log will be; 0: not to be claimed."""
        steady = now - self._dispatched_at <= AHEAD and now >= self._refrains_until
        return end if steady else 0

    def dispatched(self, now: float) -> None:
        """Record that something is dispatched."""
        self._dispatched_at = now

    def refused(self, now: float) -> None:
        """Record that an attempt was chosen under the claim, and could not start in time."""
        self.until, self._refrains_until = -math.inf, now + REFRAINS

    def was_written(self, plan: SettlePlan, began: float) -> None:
        """Record that a plan is stored; began: a moment before it was sent. It has proven the fencing token, too."""
        if plan.falls_back:
            self.claimed, self.until = plan.claimed, -math.inf
        elif plan.ahead:
            self.claimed, self.until = max(self.claimed, plan.claimed), began + AHEAD
        else:
            self.claimed = max(self.claimed, plan.claimed)

    def is_above(self, dispatched: int) -> bool:
        """Tell whether C is stored above what was dispatched."""
        return self.claimed > dispatched

    def falls_back(self, dispatched: int, now: float) -> bool:
        """Tell whether C is to be stored anew as what was dispatched."""
        return self.claimed > dispatched and now - self._dispatched_at >= FALLS_BACK
