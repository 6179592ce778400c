"""What a settle writes of a partition, and how far its position moves."""

from __future__ import annotations

from collections.abc import Callable

from sqlqueue.core.lease import HeldLease
from sqlqueue.core.partition.claim_ahead import ClaimAhead
from sqlqueue.core.partition.ordering import IN_FLIGHT, SETTLED
from sqlqueue.core.partition.queues import OrderingQueues
from sqlqueue.core.partition.ref import ConsumerOptions
from sqlqueue.core.partition.rows import Rows
from sqlqueue.core.partition.sieve import Sieve
from sqlqueue.core.partition.transitions import Transitions
from sqlqueue.core.partition.window import ReadWindow
from sqlqueue.core.partition.writes import WriteBuffer
from sqlqueue.core.settle_plan import Execution, SettlePlan


class Settling:
    """Makes plans. room: returns how many more messages may be read."""

    def __init__(
        self,
        lease: HeldLease,
        options: ConsumerOptions,
        room: Callable[[], int],
        window: ReadWindow,
        sieve: Sieve,
        messages: Transitions,
        queues: OrderingQueues,
        rows: Rows,
        writes: WriteBuffer,
    ):
        self._lease, self._options, self._room = lease, options, room
        self._window, self._sieve, self._messages = window, sieve, messages
        self._queues, self._rows, self._writes = queues, rows, writes
        self._ahead = ClaimAhead()
        self._waits_since: float | None = None  # when acks, or those behind a slow message, began to wait
        self._lingers_since: float | None = None  # when there was something for a plan that may wait

    @property
    def crowded(self) -> bool:
        """Whether something is in flight, and the messages behind it leave no room to read others."""
        return bool((self._messages.in_flight or self._queues.holding) and not self._room())

    @property
    def lingers(self) -> bool:
        """Whether the position has moved, or acks are stored, and no plan has that yet."""
        return self._lingers_since is not None

    @property
    def is_ahead(self) -> bool:
        """Whether C is stored above what was dispatched."""
        return self._ahead.is_above(self._writes.claimed)

    def was_written(self, plan: SettlePlan, began: float) -> None:
        """Record that a plan is stored; began: monotonic seconds, before it was sent."""
        self._ahead.was_written(plan, began)

    def refused(self, now: float) -> None:
        """Record that an attempt that was claimed ahead could not start in time."""
        self._ahead.refused(now)

    def committed_to(self, position: int) -> None:
        """Record that an atomic batch has moved the stored position itself."""
        if position > self._window.position:
            self._pass(position)

    def plan(
        self, now: float, flush_after: float, executions: list[Execution], linger: float = 0.0, end: int = 0
    ) -> SettlePlan | None:
        """Return what to write now, with the claims of the executions that were chosen; None if there is nothing: then
        these are claimed already, and may start at once.

        linger: for so many seconds a position, or acks that are stored, may wait for a plan with more, as an ack in
        memory does. end: up to where a write may claim ahead, 0 for not at all.
        """
        before = self._window.position
        self._walk()
        if self._waits_since is not None and now - self._waits_since >= flush_after:
            self._flush()
            self._waits_since = now  # the next flush is due after the same time
        if self._writes.awaited:
            self._writes.answer(self._messages.entries)
        moved = self._window.position > before
        ahead = self._ahead.target(end, now)
        if executions:
            self._ahead.dispatched(now)
        if self._waits(now, moved, executions, linger):
            self._note_waits(now, moved)
            return None
        lingered = self.lingers
        keeps = self._keeps_rows(now, executions, linger)
        if not keeps:
            self._lingers_since = None
        falls_back = not executions and self._ahead.falls_back(self._writes.claimed, now)
        plan = self._write_plan(executions, now, ahead=0 if falls_back else ahead, falls_back=falls_back, keeps=keeps)
        self._note_waits(now, moved)
        written = falls_back or plan.rows or plan.deletes or plan.dead or plan.settled or plan.ranges or executions
        return plan if written or plan.filtered or plan.members or moved or lingered else None

    def _waits(self, now: float, moved: bool, executions: list[Execution], linger: float) -> bool:
        """Tell whether nothing is written now: only a position or acks, and claims that are stored already."""
        if executions and not self._are_claimed(executions, now):
            return False
        if moved or self.lingers or self._writes.settled:
            waits = self._position_waits(now, linger)
        else:
            waits = bool(executions) and self._options.keep_results is None and self._writes.only_acks
        if waits:
            for execution in executions:
                for attempt in execution.attempts:
                    attempt.claimed_until = self._ahead.until
        return waits

    def _are_claimed(self, executions: list[Execution], now: float) -> bool:
        if not self._ahead.covers(executions, now):
            return False
        entries = self._messages.entries
        return not any(entries[attempt.offset].refused for each in executions for attempt in each.attempts)

    def _note_waits(self, now: float, moved: bool) -> None:
        # The messages behind a slow one may fill the memory; once the slow one has a row, a blocked range can cover
        # them.
        if not self._writes.acks and not self.crowded and not self._queues.holding:
            self._waits_since = None
        elif self._waits_since is None or moved:
            self._waits_since = now

    def _position_waits(self, now: float, linger: float) -> bool:
        """Tell whether the position is all that is to be written, or acks are that it has passed or a handler's
        transaction has stored, and waits."""
        if self._lingers_since is None:
            self._lingers_since = now
        if _has_waited(self._lingers_since, now, linger) or self._options.keep_results is not None:
            return False
        return self._writes.only_acks

    def _keeps_rows(self, now: float, executions: list[Execution], linger: float) -> bool:
        """Tell whether the acked rows that the position has passed are left for a later plan: with claims alone, an
        offset row is all that is written, in one statement."""
        return bool(executions) and self._rows.has_passed(self._window.position) and self._position_waits(now, linger)

    def release_plan(self, now: float) -> SettlePlan:
        """Return what to write when the lease is released: acks in memory become rows."""
        self._walk()
        self._flush()
        plan = self._write_plan([], now, release=True)
        self._lease.lost = True
        return plan

    def _walk(self) -> None:
        """Move P to the highest p <= F such that every message read in (P, p] is acked, has a row, or waits behind an
        earlier one of its key, whose blocked range then covers it."""
        entries, final, target = self._messages.entries, self._window.final, self._window.position
        clear = final  # what the filter has left out up to there is not remembered, and nothing else is before it
        for offset in self._window.offsets:
            if offset > final:
                break
            entry = entries[offset]
            if entry.state != SETTLED and not entry.row and not self._messages.cover(entry):
                clear = offset - 1
                break
            target = offset
        else:
            if target > self._window.position:
                target = max(target, final)
        if self._sieve.has_left_out:
            target = max(target, clear)
        if target > self._window.position:
            self._pass(target)

    def _pass(self, target: int) -> None:
        self._messages.passed(self._window.move(target))
        self._writes.claim(target)
        self._writes.filtered += self._sieve.passed(target)

    def _flush(self) -> None:
        """Write rows for acks that have waited long enough in memory.

        Messages in flight that hold the position back get a row, so that it can move on; acks beyond it become acked
        rows. If there is no room, every message in flight gets a row, so that the messages behind it in its ordering
        queue can leave the memory."""
        entries, full = self._messages.entries, not self._room()
        for offset in self._window.offsets:
            if offset > self._window.final and not full:
                break
            if entries[offset].state == IN_FLIGHT and not entries[offset].row:
                self._messages.claim_with_row(entries[offset], self._window.position)
        self._messages.park(self._window.position, full)
        if full:
            self._messages.block_loaded(self._window.position)
        self._walk()
        for offset in sorted(self._writes.acks):
            self._writes.give_row(entries[offset])

    def _write_plan(
        self,
        executions: list[Execution],
        now: float,
        release: bool = False,
        ahead: int = 0,
        falls_back: bool = False,
        keeps: bool = False,
    ) -> SettlePlan:
        ranges, released = self._queues.raise_lows(now)
        for offset in released:
            self._rows.add_acked(offset)
        written = self._writes.take(self._window.position, keeps)
        rows, deletes, dead, settled, taken_up, filtered, members, effects = written
        return SettlePlan(
            self._lease,
            self._window.position,
            self._writes.watermark,
            max(self._writes.claimed, ahead),
            rows,
            deletes,
            dead,
            settled,
            tuple(executions),
            tuple(ranges),
            taken_up,
            self._options.atomic,
            release,
            self._options.keep_results,
            filtered,
            members,
            effects,
            ahead > self._writes.claimed,
            falls_back,
        )


def _has_waited(since: float, now: float, linger: float) -> bool:
    """Tell whether a position has waited as long, or half as long again: all that wait end it at the same moments,
    so that one statement writes them."""
    if linger <= 0:
        return True
    return now // (linger / 2) - since // (linger / 2) >= 3
