"""The state transitions of messages in memory: dispatched, acked, held with a row, released, blocked behind another,
covered by a blocked range, forgotten. How they come there: see `arrivals`.

Every method changes the state of one message, and leaves all parts consistent. The position is passed as a value; a
message at or below it is outside the window.
"""

from __future__ import annotations

import math
from itertools import islice

from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.outcomes import ACKED, DEAD, LOST, POSTPONED, RELEASED, RETRIED, SUCCESS, Outcome, charged
from sqlqueue.core.partition.blocked import KeyRanges
from sqlqueue.core.partition.delays import Delays
from sqlqueue.core.partition.in_doubt import InDoubt
from sqlqueue.core.partition.key_limit import LimitedQueue
from sqlqueue.core.partition.ordering import BEHIND, HELD, IN_FLIGHT, READY, SETTLED, Entry
from sqlqueue.core.partition.queues import OrderingQueues
from sqlqueue.core.partition.rows import Rows
from sqlqueue.core.partition.writes import WriteBuffer
from sqlqueue.core.settle_plan import (
    HEAVY,
    NOT_IN_FLIGHT,
    Attempt,
    DeadLetter,
    Filtered,
    RowWrite,
    SettledAttempt,
)


class Transitions:
    """The messages in memory. entries: by offset; in_flight, in_flight_size: how many messages, and characters,
    handlers have."""

    def __init__(
        self,
        visibility_timeout: float,
        queues: OrderingQueues,
        delays: Delays,
        in_doubt: InDoubt,
        ranges: KeyRanges,
        rows: Rows,
        writes: WriteBuffer,
    ):
        self.entries: dict[int, Entry] = {}
        self.in_flight = self.in_flight_size = 0
        self._visibility_timeout = visibility_timeout
        self._queues, self._delays, self._in_doubt = queues, delays, in_doubt
        self._ranges, self._rows, self._writes = ranges, rows, writes

    # -- dispatched and finished --------------------------------------------------------------------------------------

    def dispatch(self, entry: Entry, attempt: Attempt, position: int) -> None:
        """Mark a message as in flight; the next plan claims it."""
        entry.attempt = attempt
        self._queues.dispatch(entry)
        self.in_flight += 1
        self.in_flight_size += entry.size
        offset, writes = entry.offset, self._writes
        if not entry.row:
            if offset > position:
                if offset > writes.claimed:
                    writes.claimed = offset
                return
            self._leave_range(entry)
        writes.rows[offset] = RowWrite(offset, False, attempt.mark, attempt.number, self._visibility_timeout)

    def _leave_range(self, entry: Entry) -> None:
        """Count a message out of its blocked range: the plan that claims it writes its row, and raises the range's
        low."""
        self._rows.add(entry)
        self._writes.taken_up.add(entry.offset)
        if (one := self._ranges.get(entry.key)) is not None:
            one.messages -= 1
            self._ranges.touch(one)

    def finish(self, attempt: Attempt, outcome: Outcome, position: int, now: float) -> bool:
        """Apply the outcome of an attempt; return False, and change nothing, if it was superseded (overrun)."""
        entry = self.entries.get(attempt.message[0])
        if entry is None or entry.attempt is not attempt:
            return False
        entry.attempt = None
        self.in_flight -= 1
        self.in_flight_size -= entry.size
        if entry.queue is not None:
            self._queues.returned(entry)
        attempt.outcome = outcome
        if outcome is SUCCESS and not entry.row and entry.offset > position:  # nearly always
            self._succeed(entry, attempt, now)
            return True
        kind = outcome.kind
        if kind == ACKED and outcome.effect is not None and not outcome.committed:
            self._writes.effects.append(EffectWrite(entry.offset, attempt.number, *outcome.effect))
            self._settle_with_row(entry, attempt, outcome, NOT_IN_FLIGHT, position, now)
            return True
        if kind == ACKED:
            self._ack(entry, attempt, outcome, position, now)
            return True
        if kind == DEAD:
            self.dead_letter(entry, attempt, outcome, position, now)
            return True
        if kind == RELEASED:
            self._release(entry, attempt)
        else:
            self._hold(entry, attempt, outcome, position, now)
        if entry.queue is not None:
            self._queues.advance(entry.queue, now)
        return True

    def _succeed(self, entry: Entry, attempt: Attempt, now: float) -> None:
        """Settle a message above the position that needs no row: `settle` at less cost."""
        if entry.size > HEAVY:
            attempt = attempt.to_announce()
        self._writes.acks[entry.offset] = SettledAttempt(attempt, SUCCESS)
        entry.state, entry.message = SETTLED, None
        queue = entry.queue
        if queue is not None:
            queue.remove(entry)
            self._queues.advance(queue, now)

    def _ack(self, entry: Entry, attempt: Attempt, outcome: Outcome, position: int, now: float) -> None:
        offset = entry.offset
        if outcome.committed:
            if offset > position:
                # The handler's transaction wrote an acked row (or, for a batch, moved the position: then there is none,
                # and deleting it later deletes nothing).
                entry.row = True
                self._writes.rows.pop(offset, None)
        elif entry.row:
            self._writes.rows[offset] = RowWrite(offset, True, NOT_IN_FLIGHT, attempt.number)
        if entry.row:
            self._rows.add_acked_unless_kept(offset, entry.key, position)
        self.settle(entry, SettledAttempt(attempt, outcome), position, now)

    def dead_letter(self, entry: Entry, attempt: Attempt, outcome: Outcome, position: int, now: float) -> None:
        """Settle a message with a copy in the dead-letter topic."""
        self._writes.dead.append(DeadLetter(attempt.message, charged(attempt.number, outcome), outcome.error))
        self._settle_with_row(entry, attempt, outcome, self._writes.mark_of_dead(entry.offset), position, now)

    def _settle_with_row(
        self, entry: Entry, attempt: Attempt, outcome: Outcome, mark: int, position: int, now: float
    ) -> None:
        """Settle a message of which a copy is made. The acked row is written in the same transaction as the copy,
        unless the position passes the message there."""
        error = outcome.error or None
        self._writes.rows[entry.offset] = RowWrite(entry.offset, True, mark, attempt.number, 0.0, error)
        entry.row = True
        self._rows.add_acked_unless_kept(entry.offset, entry.key, position)
        self.settle(entry, SettledAttempt(attempt, outcome), position, now)

    def _hold(self, entry: Entry, attempt: Attempt, outcome: Outcome, position: int, now: float) -> None:
        """Let a message wait with a row until it is due: it was retried, postponed, or lost."""
        count = attempt.number - 1 if outcome.kind == POSTPONED else attempt.number
        delay = 1.0 if outcome.kind == LOST else outcome.delay
        error = outcome.error or None
        self._writes.rows[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, count, delay, error)
        if not entry.row:
            self._rows.add(entry)
        entry.state, entry.message, entry.count, entry.due = HELD, None, count, now + delay
        self._delays.add(entry)
        self.block(entry, position)
        if outcome.kind in (RETRIED, POSTPONED):
            self._writes.settled.append(SettledAttempt(attempt, outcome))

    def hold_back(self, entry: Entry, delay: float, position: int, now: float) -> None:
        """Let the first ready message of its key wait with a row, uncharged, until the key's rate allows it. Those
        behind it wait with it."""
        self._queues.withdraw(entry)
        if not entry.row:
            if entry.offset <= position:
                self._leave_range(entry)
            else:
                self._rows.add(entry)
        entry.limited = True
        self._wait_until_due(entry, delay, now)
        self.block(entry, position)

    def let_go(self, entry: Entry, now: float) -> None:
        """Make a message due that was held back: its key has another rate."""
        entry.limited = False
        self._wait_until_due(entry, 0.0, now)

    def _wait_until_due(self, entry: Entry, delay: float, now: float) -> None:
        self._writes.rows[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, entry.count, delay)
        entry.state, entry.due = HELD, now + delay
        self._delays.add(entry)

    def _release(self, entry: Entry, attempt: Attempt) -> None:
        """Make a message whose attempt did not start ready again, uncharged."""
        queue = entry.queue
        entry.refused = entry.refused or attempt.claimed_until < math.inf
        if isinstance(queue, LimitedQueue):
            self._release_limited(entry, attempt, queue)
            return
        if entry.row:
            entry.count = attempt.number - 1
            self._writes.rows[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, entry.count)
            if entry.key and queue is not None and queue.entries[0].state == HELD:
                entry.state, entry.message = HELD, None
                return
        elif entry.key and queue is not None and queue.blocked_by_row(entry):
            entry.state, entry.message = BEHIND, None
            return
        self._queues.make_ready(entry, attempt.message, outside=entry.row)
        if queue is None:
            self._queues.offer(entry)

    def _release_limited(self, entry: Entry, attempt: Attempt, queue: LimitedQueue) -> None:
        if entry.row:
            entry.count = attempt.number - 1
            self._writes.rows[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, entry.count)
        self._queues.make_ready(entry, attempt.message, outside=entry.row)
        queue.add(entry)

    # -- waiting behind another ---------------------------------------------------------------------------------------

    def claim_with_row(self, entry: Entry, position: int) -> None:
        """Write a row for a message in flight whose handler is slow, so that the position can pass it."""
        assert entry.attempt is not None
        entry.count = entry.attempt.number
        self._rows.add(entry)
        mark, timeout = entry.attempt.mark, self._visibility_timeout
        self._writes.rows[entry.offset] = RowWrite(entry.offset, False, mark, entry.count, timeout)
        self.block(entry, position)

    def block(self, blocking: Entry, position: int) -> None:
        """Drop the payloads of the messages behind one that waits with its row, or whose handler is slow: they wait
        with it."""
        queue = blocking.queue
        if queue is None or not blocking.key or isinstance(queue, LimitedQueue):
            return
        dropped: Entry | None = None
        for entry in list(islice(queue.entries, queue.entries.index(blocking) + 1, None)):
            if entry.state == BEHIND:
                break  # and all that follow
            if entry.state != READY:
                continue
            self._queues.withdraw(entry)
            if entry.offset <= position and not entry.row:
                self.forget(entry)  # its range still covers it
                dropped = dropped or entry
        if queue.range is not None and dropped is not None:
            # Not earlier: what is in flight may be acked before its row is written, and must not be read back then.
            queue.range.begin_again(dropped.offset - 1)

    def block_loaded(self, position: int) -> None:
        """Block loaded messages that are behind messages in flight: they wait with their rows, or in a blocked
        range."""
        for entry in list(self._queues.loaded.values()):
            queue = entry.queue
            if queue is not None and queue.entries and queue.entries[0].state == IN_FLIGHT:
                self.block(queue.entries[0], position)

    def park(self, position: int, loaded: bool) -> None:
        """Drop the payloads of what waits in line because its key is at its limit, so that the key's range can cover
        it. loaded: of those outside the window, too, which were loaded for when the key may go on."""
        for queue in self._queues.full_queues():
            dropped: Entry | None = None
            for entry in list(queue.entries):
                if entry.state == READY and (loaded or entry.offset > position):
                    self._queues.withdraw(entry)
                    if entry.offset <= position:
                        self.forget(entry)
                        dropped = dropped or entry
            if queue.range is not None and dropped is not None:
                queue.range.begin_again(dropped.offset - 1)
            for entry in list(queue.again) if loaded else ():
                self._queues.withdraw(entry)
                queue.due.append(entry)
                queue.again.remove(entry)

    def cover(self, entry: Entry) -> bool:
        """Let the key's blocked range cover a message that waits behind an earlier one of its key, and forget it, so
        that the position can pass it. Return False if it does not wait so."""
        queue = entry.queue
        if not entry.key or entry.state not in (READY, BEHIND) or queue is None or not queue.blocked_by_row(entry):
            return False
        if entry.state == READY:
            self._queues.withdraw(entry)
        self.forget(entry)
        queue.range = self._ranges.extend(entry.key, entry.offset)
        if isinstance(queue, LimitedQueue):
            self._queues.advance(queue, 0.0)
        return True

    # -- out of memory ------------------------------------------------------------------------------------------------

    def settle(self, entry: Entry, settled: SettledAttempt | Filtered | None, position: int, now: float) -> None:
        """Remove a settled message from its ordering queue, and from memory if the position has passed it. `settled` is
        announced once a row or the position has stored it."""
        if entry.state == READY:
            self._queues.withdraw(entry)
        entry.state, entry.message = SETTLED, None
        if entry.mark:
            self._in_doubt.remove(entry)
        offset, passed = entry.offset, entry.offset <= position
        if offset in self._rows.unsettled:
            self._rows.settle(entry)
        if isinstance(settled, SettledAttempt) and settled.outcome.kind == ACKED and entry.size > HEAVY:
            settled = settled._replace(attempt=settled.attempt.to_announce())
        if not entry.row and not passed:
            if isinstance(settled, SettledAttempt) and settled.outcome.kept is not None:
                self._writes.awaited.append(offset)
            self._writes.acks[offset] = settled
        else:
            self._writes.settle(settled)
        queue = entry.queue
        if queue is not None:
            queue.remove(entry)
            self._queues.advance(queue, now)
        if passed:
            del self.entries[offset]

    def passed(self, offsets: list[int]) -> None:
        """Forget the acked ones of these offsets, which the position has passed: that stores their acks."""
        entries = self.entries
        known = [entries[offset] for offset in offsets if offset in entries]
        settled = [entry for entry in known if entry.state == SETTLED]
        self._writes.passed(settled)
        for entry in settled:
            del entries[entry.offset]

    def forget(self, entry: Entry) -> None:
        """Forget a message that is not ready, and has no row."""
        del self.entries[entry.offset]
        self._writes.leave(entry.offset)
        if entry.queue is not None:
            entry.queue.remove(entry)
