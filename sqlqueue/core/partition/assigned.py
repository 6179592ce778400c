"""A partition while a process owns it: what to read next, what to dispatch, and how far the position moves.

An assigned partition is one (group, topic, partition, priority) under one fencing token. Pure: no database, no clock of
its own (the caller passes monotonic seconds). The rules are those of docs/protocol.md; P, W, C, F are its letters:

- P position, W watermark, C claimed: as stored;
- F final: every message at or below it has been read after it was known that none can still appear there (`window`).

A decision changes the memory at once, and the next plan writes it. So the caller executes a plan until it succeeds, or
drops the whole assigned partition.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from sqlqueue.core.lease import HeldLease
from sqlqueue.core.outcomes import DEAD, RELEASED, Outcome
from sqlqueue.core.partition import batches, limits
from sqlqueue.core.partition.arrivals import Arrivals
from sqlqueue.core.partition.blocked import KeyRanges, StoredRange
from sqlqueue.core.partition.budget import ReadBudget
from sqlqueue.core.partition.delays import Delays
from sqlqueue.core.partition.in_doubt import MOST_DEATHS, InDoubt
from sqlqueue.core.partition.key_limit import KeyLimit
from sqlqueue.core.partition.key_rate import KeyRate
from sqlqueue.core.partition.limited_queues import queues_for
from sqlqueue.core.partition.ordering import HELD, Entry
from sqlqueue.core.partition.queues import Missing
from sqlqueue.core.partition.ref import ConsumerOptions, PartitionRef
from sqlqueue.core.partition.rows import Rows
from sqlqueue.core.partition.settling import Settling
from sqlqueue.core.partition.sieve import Sieve
from sqlqueue.core.partition.transitions import Transitions
from sqlqueue.core.partition.window import Found, Read, ReadWindow
from sqlqueue.core.partition.writes import WriteBuffer
from sqlqueue.core.settle_plan import ALONE, Attempt, Execution, FetchedMessage, SettlePlan, StoredRow

Gathered = Mapping[int, tuple[StoredRow | None, FetchedMessage]]  # by offset; with a row if an operator has written one


class AssignedPartition:
    """One (group, topic, partition, priority) under one fencing token. Only the control thread may use it."""

    def __init__(
        self,
        ref: PartitionRef,
        options: ConsumerOptions,
        *,
        id: int,
        token: int,
        position: int,
        watermark: int,
        claimed: int,
        rows: Iterable[StoredRow] = (),
        ranges: Iterable[StoredRange] = (),
        now: float = 0.0,
        key_limit: KeyLimit | None = None,
    ):
        self.ref, self.options, self.id, self.token = ref, options, id, token
        self.lease = HeldLease(ref, id, token)
        self.window = ReadWindow(position)
        self.ranges = KeyRanges(ranges)
        self.budget = ReadBudget(max(options.batch_size, options.commit_every))
        self.delays, self.in_doubt = Delays(self.budget), InDoubt()
        self.queues = queues_for(options, self.ranges, self.delays, key_limit)
        self.rows = Rows(self.ranges)
        self.sieve = Sieve(ref.group, options.where)
        self.writes = WriteBuffer(claimed, watermark, self.rows, self.ranges, self.lease.members)
        self.messages = Transitions(
            options.visibility_timeout, self.queues, self.delays, self.in_doubt, self.ranges, self.rows, self.writes
        )
        parts = (self.messages, self.queues, self.delays, self.in_doubt, self.rows, self.writes)
        self.arrivals = Arrivals(ref.group, self.sieve, *parts)
        self.settling = Settling(
            self.lease,
            options,
            lambda: self.room,
            self.window,
            self.sieve,
            self.messages,
            self.queues,
            self.rows,
            self.writes,
        )
        self._changes = 0  # grows whenever something is read, loaded or finished
        self._stalled: tuple[int, ...] = ()  # of a batch consumer: _batch_state() when nothing could be chosen
        with_range = self.queues.with_range()
        for row in rows:
            self._recall(row, now)
        for queue in with_range:
            self.queues.advance(queue, now)

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """P: every message at or below it is acked, has a delivery-state row, or lies in its key's range."""
        return self.window.position

    @property
    def watermark(self) -> int:
        """W, as the last plan writes it."""
        return self.writes.watermark

    @property
    def ready(self) -> int:
        """How many messages are in memory and may be dispatched once their ordering queue allows it."""
        return self.queues.ready

    @property
    def in_flight(self) -> int:
        """How many messages are in flight."""
        return self.messages.in_flight

    @property
    def held(self) -> int:
        """How many characters and bytes of payloads and headers are in memory: of what is ready, and in flight."""
        return self.queues.ready_size + self.messages.in_flight_size

    @property
    def active(self) -> bool:
        """Whether there is something in memory that a plan may have to write."""
        known = self.window.offsets or self.queues.has_candidates or self.settling.crowded or self.sieve.has_left_out
        return bool(self.writes.due or known or self.settling.lingers or self.settling.is_ahead)

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to do until the log has something new, or something changes it from outside."""
        if not self.window.rests or self.messages.in_flight or self.ready or self.active:
            return False
        queues, delays = self.queues, self.delays
        waiting = delays or delays.next_due() is not None or self.in_doubt or self.lease.progress
        return not (waiting or queues.has_absent or queues.holding)

    @property
    def has_in_doubt(self) -> bool:
        """Whether messages are in doubt: in flight with a former owner."""
        return bool(self.in_doubt)

    @property
    def has_candidates(self) -> bool:
        """Whether something may be dispatched now."""
        if self.options.together:
            return bool(self.ready and not self.in_flight and self._stalled != self._batch_state())
        return self.queues.has_candidates

    @property
    def candidates(self) -> int:
        """How many messages and ordering queues, or batches, may have something to dispatch now."""
        return int(self.has_candidates) if self.options.together else self.queues.candidates

    def urgencies(self, most: int) -> list[int]:
        """Return how urgent the next messages to dispatch are, at most `most`, highest first; none unless the consumer
        goes by urgency."""
        return self.queues.urgencies(most)

    def _batch_state(self) -> tuple[int, ...]:
        """The values of which one has to change before ready messages that were not chosen can go into a batch."""
        return self.window.final, self.window.position, self._changes

    @property
    def settled_up(self) -> bool:
        """Whether everything read is settled, except messages that wait until they are due, and those behind them in
        their ordering queues."""
        to_load = self.delays or self.queues.has_absent or self.window.late
        busy = self.in_flight or self.has_candidates or self.writes.rows or to_load or self.settling.lingers
        return not busy and self.in_doubt.first() is None

    @property
    def uncounted(self) -> bool:
        """Whether members of batches are settled that no settle has counted yet: the position has to pass them, or
        their rows."""
        members = self.lease.members
        return bool(members) and (self.rows.has_acked or any(offset in members for offset in self.writes.acks))

    @property
    def weighed(self) -> bool:
        """Whether the size of recent messages is known."""
        return self.budget.weighed

    def next_due(self) -> float | None:
        """Return when (monotonic) the next waiting row is due."""
        return self.delays.next_due()

    # -- how much to read ---------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more messages to read beyond the cursor."""
        budget = self.budget
        most, size = budget.most_ready - self.queues.ready, budget.half - self.held
        if most <= 0 or size <= 0 or len(self.window.offsets) >= limits.WINDOW_LIMIT:
            return 0
        return budget.fitting(most, size)

    @property
    def loadable(self) -> int:
        """How many bytes of messages may be loaded whose turn has come; one message may always be, whatever it has."""
        return max(0, self.budget.share - self.held)

    @property
    def _final(self) -> tuple[int, int]:
        """How many messages a final read adds without room, and how many remembered ones in (P, F] it waits for: it
        never waits for bytes."""
        budget = self.budget
        return (budget.at_once, budget.most_held) if budget.half > self.held else (1, 2)

    @property
    def reads_on(self) -> bool:
        """Whether the filter has left out of what was read, and there may be more."""
        return self.sieve.has_left_out and self.window.more

    @property
    def _at_heads_limit(self) -> bool:
        return self.rows.heads >= limits.HEADS_LIMIT

    # -- reading ------------------------------------------------------------------------------------------------------

    def next_read(self, horizon: int) -> Read | None:
        """Return what to read now; None: nothing is to be read, or there is no room."""
        if self._at_heads_limit or not self.window.wants(horizon):
            return None
        read = self.window.next_read(self.room, *self._final, horizon)
        if read is None:
            return None
        size = max(0, self.budget.half - self.held)
        return read._replace(size=size, sift=self.options.where if self.sieve.sifts else None)

    def take_in(self, read: Read, found: Found, horizon: int, now: float = 0.0) -> int:
        """Add what a read has found; horizon: known before its snapshot. Return how many messages it has found: 0 if
        late messages have to be read first."""
        self._changes += 1
        if read.looks:
            for offset in self.window.compare(read, found.seen, horizon):
                self.arrivals.vanish(offset, self.position, now)
            if self.window.late:
                return 0
        self.budget.weigh(found.messages, found.left_out)
        if read.sift is None:
            self._receive(self.sieve.take(found.messages, horizon, self.messages.entries))
        else:
            self._take_sifted(found, horizon)
        self.window.was_read(read, found.last, found.cut or found.total >= read.limit, horizon)
        return found.total

    def _take_sifted(self, found: Found, horizon: int) -> None:
        self._receive(found.messages, wanted=True)
        self._receive(self.sieve.take_sifted(found, horizon, self.messages.entries), wanted=False)
        if not self.sieve.sifts:
            self.budget.forget()  # of most messages the size was not read

    def _receive(self, messages: Iterable[FetchedMessage], wanted: bool | None = None) -> None:
        position = self.window.position
        above = [message for message in messages if message[0] > position]
        self.window.add_all(self.arrivals.receive(above, wanted))

    def _recall(self, row: StoredRow, now: float) -> None:
        self.arrivals.recall(row, self.position, now)
        if row.offset > self.position:
            self.window.recall(row.offset)

    def missing(self, horizon: int) -> list[Missing]:
        """Return the messages to be loaded now: late ones, or the next ones of ordering queues that may go on."""
        if self.window.late and not self._at_heads_limit:
            late = self.window.next_late(self.room, *self._final, horizon)
            if late:
                return [Missing(offset, None) for offset in late]
        if not self.queues.has_absent:
            return []
        budget, size = self.budget, self.loadable
        if not size and self.in_flight and self.ready > 1:
            return []
        return self.queues.missing(min(budget.fitting(budget.at_once, size), budget.most_held - self.queues.ready))

    def add_missing(self, asked: Sequence[Missing], found: Gathered, now: float) -> None:
        """Add the messages that missing() asked for, as far as they were found."""
        self._changes += 1
        self.budget.weigh(message for _, message in found.values())
        if asked[0].queue is None:
            self._add_late([offset for offset, _ in asked], found, now)
        else:
            self._add_next(asked, found, now)

    def _add_late(self, offsets: Sequence[int], found: Gathered, now: float) -> None:
        for offset in offsets:
            row, message = found.get(offset, (None, None))
            if message is None or offset in self.messages.entries:
                continue
            if row is not None:
                self._recall(row, now)
            else:
                self._receive([message])
        self.window.took_late(len(offsets))

    def _add_next(self, asked: Sequence[Missing], found: Gathered, now: float) -> None:
        counts: dict[str, int] = {}
        for offset, queue in asked:
            assert queue is not None
            row, message = found.get(offset, (None, None))
            counts[queue.name] = counts.get(queue.name, 0) + 1
            if queue.range is None:
                self.arrivals.load_blocked(self.messages.entries[offset], row, message, self.position, now)
            elif message is not None and offset not in self.messages.entries:
                self.arrivals.take_up(queue, row, message, self.position, now)
        for name, count in counts.items():
            self.queues.were_loaded(name, count, now)

    def to_scan(self) -> tuple[int, int] | None:
        """Return (low, high] to scan for messages of keys that may go on, or None. One scan passes at most SCAN_LIMIT
        messages."""
        if not self.queues.has_absent or self.queues.ready >= self.budget.most_held:
            return None
        return self.queues.to_scan()

    def scanned(self, low: int, high: int, keys: Sequence[tuple[int, str]], now: float) -> None:
        """Record (offset, key) of all messages in (low, high], or of the first SCAN_LIMIT of them."""
        self.queues.scanned(low, high, keys, now)

    # -- rows that are due --------------------------------------------------------------------------------------------

    def due_rows(self, now: float, most: int) -> list[int]:
        """Return the offsets of rows that are due and first in their ordering queue, to be loaded, at most `most`."""
        self.delays.elapse(now)
        if not self.delays:
            return []
        limit, loaded, size = self.budget.most_ready, self.queues.loaded.values(), self.loadable
        if not size and batches.enough(loaded, 1):
            return []  # one at a time: else it would wait as long as fresh ones keep coming
        if len(loaded) >= limit and batches.enough(loaded, limit):
            return []  # dispatch what has been loaded first
        return self.delays.to_load(self.budget.fitting(min(most, limit), size), self.writes.rows)

    def waiting(self, now: float) -> list[int]:
        """Return the offsets of the rows that are not due yet."""
        return self.delays.offsets(now)

    def reschedule(self, offset: int, now: float) -> None:
        """Make a waiting row due now: it is due or acked in the database, where it has been changed."""
        self.arrivals.reschedule(offset, now)

    def unfiltered_in_doubt(self, most: int) -> list[int]:
        """Return messages in doubt that the filter has not seen, at most `most` (fewer if they are heavy), each once;
        none without a filter. A former owner may have left out thousands between those that it had in flight."""
        return self.in_doubt.take_unseen(self.budget.fitting(most, self.budget.half)) if self.sieve.filters else []

    def next_in_doubt(self) -> int | None:
        """Return the offset of a message in doubt that is first in its ordering queue, to be loaded and dispatched
        alone; None if there is none."""
        return self.in_doubt.first()

    def load(self, offset: int, row: StoredRow | None, message: FetchedMessage | None, now: float) -> None:
        """Add what the database holds of a row that was due or in doubt: its present values, and its message."""
        self._changes += 1
        if message is not None:
            self.budget.weigh([message])
        self.arrivals.load(offset, row, message, self.position, now)

    # -- dispatching --------------------------------------------------------------------------------------------------

    def choose(
        self,
        most: int,
        of_a_queue: int | None = None,
        messages: int = sys.maxsize,
        executions: int = sys.maxsize,
        key_rate: KeyRate | None = None,
        now: float = 0.0,
    ) -> list[Execution]:
        """Dispatch at most `most` messages, of one ordering queue at most `of_a_queue` if that is given, or one batch.
        Return the executions to start once the plan that claims them is written. messages, executions: what the group's
        limits allow, of a batch too; key_rate: what is allowed of each key. What that does not allow is held back."""
        if self.options.together:
            return self._choose_batch(min(messages, self.options.most_together))
        if self.in_flight and self.messages.in_flight_size >= self.budget.share:
            return []  # final reads go on meanwhile: what they bring would pile up with slow handlers
        if key_rate is None:
            chosen = self.queues.choose(min(most, messages), of_a_queue, executions)
        else:
            chosen = self._choose_by_key_rate(min(most, messages), of_a_queue, executions, key_rate, now)
        return [Execution(self.lease, self._dispatch(entries)) for entries in chosen]

    def _choose_by_key_rate(
        self, most: int, of_a_queue: int | None, executions: int, key_rate: KeyRate, now: float
    ) -> list[list[Entry]]:
        chosen = self.queues.choose(most, of_a_queue, executions, lambda key, count: key_rate.take(key, count, now))
        refused, self.queues.refused = self.queues.refused, []
        for entry in refused:
            self.messages.hold_back(entry, key_rate.wait(entry.key, now), self.position, now)
        return chosen

    def follow_key_limit(self) -> None:
        """Let the limit of what may be in flight of a key hold as it is now; what is in flight goes on."""
        self.queues.follow_limit(self.messages.entries.values())

    def leave(self) -> None:
        """Count nothing as in flight any more for the limit of keys: it has another owner now."""
        self.queues.leave()

    def let_go(self, now: float) -> None:
        """Make due what was held back by the rate of its key: there is another one, or none, and what it does not allow
        will be held back anew."""
        for entry in self.messages.entries.values():
            if entry.limited and entry.state == HELD:
                self.messages.let_go(entry, now)

    def _choose_batch(self, most: int) -> list[Execution]:
        if self.in_flight:
            return []
        offsets, final = self.window.offsets, self.window.final
        loaded = self.queues.loaded.values()
        again = batches.choose_again(loaded, most)
        if again:
            return [Execution(self.lease, self._dispatch(again), True, apart=True)]
        chosen = batches.choose_untried(loaded, most)
        if not chosen:
            # An atomic batch that ends at F can move the position itself instead of writing a row for each message.
            bound = final if self.options.atomic and offsets and offsets[0] <= final else None
            chosen = batches.choose_fresh((self.messages.entries[offset] for offset in offsets), most, bound)
        if not chosen:
            self._stalled = self._batch_state()
            return []
        # Members of batches need their rows: the settle that deletes those counts them.
        members = self.lease.members
        may_move = self.options.atomic and not (members and any(entry.offset in members for entry in chosen))
        follows = may_move and batches.follow_position(chosen, offsets, final)
        return [Execution(self.lease, self._dispatch(chosen), True, self.position, follows)]

    def choose_alone(self, offset: int, now: float) -> list[Execution]:
        """Dispatch a loaded message in doubt alone, or dead-letter it."""
        entry = self.in_doubt.get(offset)
        if entry is None or entry.message is None or entry.state != HELD:
            return []
        self.in_doubt.remove(entry)
        deaths = entry.mark
        if self._is_deadly(entry):
            error = f"its consumer process ended {deaths} times while it was being handled"
            attempt = Attempt(self.lease, entry.message, entry.count, deaths)
            self.messages.dead_letter(entry, attempt, Outcome(DEAD, error=error), self.position, now)
            return []
        entry.mark = 0
        return [Execution(self.lease, self._dispatch([entry], deaths), batch=self.options.together)]

    def _is_deadly(self, entry: Entry) -> bool:
        """Tell whether a message in doubt is a dead letter: it was alone when its process ended, at its last attempt
        or, without max_attempts, at the last of MOST_DEATHS in a row."""
        most = self.options.max_attempts
        return entry.mark >= MOST_DEATHS if most is None else entry.count >= most and entry.mark >= ALONE

    def _dispatch(self, entries: Iterable[Entry], deaths: int = 0) -> list[Attempt]:
        lease, position, dispatch = self.lease, self.window.position, self.messages.dispatch
        attempts: list[Attempt] = []
        for entry in entries:
            assert entry.message is not None
            attempt = Attempt(lease, entry.message, entry.count + 1 if entry.row else 1, deaths)
            dispatch(entry, attempt, position)
            attempts.append(attempt)
        return attempts

    def finish(self, attempt: Attempt, outcome: Outcome, now: float) -> bool:
        """Apply the outcome of an attempt; return False, and change nothing, if it was superseded (overrun)."""
        if not self.messages.finish(attempt, outcome, self.window.position, now):
            return False
        if outcome.kind == RELEASED and now >= attempt.claimed_until:
            self.settling.refused(now)
        self._changes += 1
        return True

    def finish_all(self, reports: Iterable[tuple[Attempt, Outcome]], now: float) -> int:
        """Apply outcomes that handlers have reported; return how many were not superseded."""
        count = 0
        for attempt, outcome in reports:
            if outcome.moved_to is not None:  # the handler's own transaction has moved the position
                self.settling.committed_to(outcome.moved_to)
            count += self.finish(attempt, outcome, now)
        return count

    # -- settling -----------------------------------------------------------------------------------------------------

    def plan(
        self, now: float, flush_after: float, executions: list[Execution], linger: float = 0.0, end: int = 0
    ) -> SettlePlan | None:
        """Return what to write now, with the claims of the executions that were chosen; None if there is nothing: then
        these are claimed already, and may start at once. linger: for so many seconds a position alone may wait; end:
        about where the log will end soon, so that the partition may be claimed ahead up to there; 0: it may not."""
        return self.settling.plan(now, flush_after, executions, linger, end if end and self._keeps_up else 0)

    @property
    def _keeps_up(self) -> bool:
        """Whether nothing of the log waits but what is in flight: the next messages can start when they are read."""
        waits = self.queues.ready or self.window.more or self.window.late or self.in_doubt or self.ranges
        # Atomic handlers write rows; of what a filter leaves out a takeover would write some, too.
        return not (waits or self.queues.limits_keys or self.options.atomic or self.sieve.filters)

    def was_written(self, plan: SettlePlan, began: float) -> None:
        """Record that a plan is stored; began: monotonic seconds, before it was sent."""
        self.settling.was_written(plan, began)

    def release_plan(self, now: float) -> SettlePlan:
        """Return what to write when the lease is released: acks in memory become rows, other attempts are released."""
        for entry in list(self.messages.entries.values()):
            if entry.attempt is not None:
                self.finish(entry.attempt, Outcome(RELEASED), now)
        return self.settling.release_plan(now)
