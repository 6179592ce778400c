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
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from sqlqueue.core.outcomes import DEAD, Outcome
from sqlqueue.core.partition import arrivals, changes, settling, window
from sqlqueue.core.partition.arrivals import Sieve
from sqlqueue.core.partition.blocked import KeyRanges, StoredRange
from sqlqueue.core.partition.key_limit import KeyLimit, KeyRate
from sqlqueue.core.partition.ordering import HELD, Entry, choose_batch, enough, follow_position
from sqlqueue.core.partition.queues import Missing, OrderingQueues
from sqlqueue.core.partition.ref import ConsumerOptions, HeldLease, PartitionRef
from sqlqueue.core.partition.waiting import MOST_DEATHS, Delays, InDoubt
from sqlqueue.core.partition.window import Found, Read, ReadBudget, ReadWindow
from sqlqueue.core.partition.writes import ClaimAhead, Writes
from sqlqueue.core.settle_plan import ALONE, Attempt, Execution, FetchedMessage, StoredRow

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
        self.entries: dict[int, Entry] = {}
        self.in_flight = self.in_flight_size = 0
        self.window = ReadWindow(position)
        self.ranges = KeyRanges(ranges)
        self.budget = ReadBudget(max(options.batch_size, options.commit_every))
        self.delays, self.in_doubt = Delays(self.budget), InDoubt()
        self.queues = OrderingQueues(options, self.ranges, self.delays, key_limit)
        self.sieve = None if options.where is None else Sieve(ref.group, options.where)
        self.writes = Writes(claimed, watermark, self.ranges)
        self.claims_ahead: ClaimAhead | None = None  # none before the log grows so steadily that it pays
        self.changes = 0  # grows whenever something is read, loaded or finished
        self._stalled: tuple[int, ...] = ()  # of a batch consumer: _batch_state() when nothing could be chosen
        for row in rows:
            arrivals.recall(self, row, now)
        self.queues.find_absent(now)

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """How many characters and bytes of payloads and headers are in memory: of what is ready, and in flight."""
        return self.queues.ready_size + self.in_flight_size

    @property
    def active(self) -> bool:
        """Whether there is something in memory that a plan may have to write."""
        writes, claims = self.writes, self.claims_ahead
        return bool(
            self.window.offsets
            or self.queues.offered
            or self.has_no_room
            or writes.due
            or writes.lingers_since is not None
            or (claims is not None and claims.claimed > writes.claimed)
            or (self.sieve is not None and self.sieve.left_out)
        )

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to do until the log has something new, or something changes it from outside."""
        if not self.window.rests or self.in_flight or self.queues.ready or self.active:
            return False
        queues, delays = self.queues, self.delays
        waiting = delays.due or delays.waiting or self.in_doubt.entries or self.lease.progress
        return not (waiting or queues.absent or queues.holding)

    @property
    def has_candidates(self) -> bool:
        """Whether something may be dispatched now."""
        if self.options.together:
            return bool(self.queues.ready and not self.in_flight and self._stalled != self._batch_state())
        return bool(self.queues.offered)

    @property
    def candidates(self) -> int:
        """How many messages and ordering queues, or batches, may have something to dispatch now."""
        return int(self.has_candidates) if self.options.together else self.queues.candidates

    def _batch_state(self) -> tuple[int, ...]:
        """The values of which one has to change before ready messages that were not chosen can go into a batch."""
        return self.window.final, self.window.position, self.changes

    @property
    def settled_up(self) -> bool:
        """Whether everything read is settled, except messages that wait until they are due, and those behind them in
        their ordering queues."""
        to_load = self.delays.due or self.queues.absent or self.window.late
        waits = self.writes.rows or self.writes.effects or self.writes.lingers_since is not None
        return not (self.in_flight or self.has_candidates or waits or to_load) and self.in_doubt.first() is None

    def wants(self, message: FetchedMessage) -> bool:
        """Tell whether the filter matches a message, or there is none."""
        return self.sieve is None or self.sieve.wants(message)

    # -- how much to read ---------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many more messages to read beyond the cursor."""
        most, size = self.budget.most_ready - self.queues.ready, self.budget.half - self.held
        if most <= 0 or size <= 0 or len(self.window.offsets) >= window.WINDOW_LIMIT:
            return 0
        return self.budget.fitting(most, size)

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
    def has_no_room(self) -> bool:
        """Whether something is in flight, and the messages behind it leave no room to read others."""
        return bool((self.in_flight or (self.queues.full and self.queues.holding)) and not self.room)

    @property
    def reads_on(self) -> bool:
        """Whether the filter has left out of what was read, and there may be more."""
        return self.sieve is not None and bool(self.sieve.left_out) and self.window.more

    @property
    def _at_heads_limit(self) -> bool:
        return self.writes.heads >= window.HEADS_LIMIT

    # -- reading ------------------------------------------------------------------------------------------------------

    def next_read(self, horizon: int) -> Read | None:
        """Return what to read now; None: nothing is to be read, or there is no room."""
        if not self.window.wants(horizon) or self._at_heads_limit:
            return None
        read = self.window.next_read(self.room, *self._final, horizon)
        if read is None:
            return None
        size = max(0, self.budget.half - self.held)
        return read._replace(
            size=size, sift=self.options.where if self.sieve is not None and self.sieve.sifts else None
        )

    def take_in(self, read: Read, found: Found, horizon: int, now: float = 0.0) -> int:
        """Add what a read has found; horizon: known before its snapshot. Return how many messages it has found: 0 if
        late messages have to be read first."""
        self.changes += 1
        if read.looks:
            for offset in self.window.compare(read, found.seen, horizon):
                arrivals.vanish(self, offset, now)
            if self.window.late:
                return 0
        self.budget.weigh(found.messages, found.left_out)
        if self.sieve is None:
            arrivals.receive(self, found.messages)
        elif read.sift is None:
            arrivals.receive(self, self.sieve.take(found.messages, horizon, self.entries))
        else:
            self._take_sifted(self.sieve, found, horizon)
        self.window.was_read(read, found.last, found.cut or found.total >= read.limit, horizon)
        return found.total

    def _take_sifted(self, sieve: Sieve, found: Found, horizon: int) -> None:
        arrivals.receive(self, found.messages, wanted=True)
        arrivals.receive(self, sieve.take_sifted(found, horizon, self.entries), wanted=False)
        if not sieve.sifts:
            self.budget.forget()  # of most messages the size was not read

    def missing(self, horizon: int) -> list[Missing]:
        """Return the messages to be loaded now: late ones, or the next ones of ordering queues that may go on."""
        if self.window.late and not self._at_heads_limit:
            late = self.window.next_late(self.room, *self._final, horizon)
            if late:
                return [Missing(offset, None) for offset in late]
        if not self.queues.absent:
            return []
        budget, size = self.budget, self.loadable
        if not size and self.in_flight and self.queues.ready > 1:
            return []
        return self.queues.missing(min(budget.fitting(budget.at_once, size), budget.most_held - self.queues.ready))

    def add_missing(self, asked: Sequence[Missing], found: Gathered, now: float) -> None:
        """Add the messages that missing() asked for, as far as they were found."""
        self.changes += 1
        self.budget.weigh(message for _, message in found.values())
        if asked[0].queue is None:
            self._add_late([offset for offset, _ in asked], found, now)
        else:
            self._add_next(asked, found, now)

    def _add_late(self, offsets: Sequence[int], found: Gathered, now: float) -> None:
        for offset in offsets:
            row, message = found.get(offset, (None, None))
            if message is None or offset in self.entries:
                continue
            if row is not None:
                arrivals.recall(self, row, now)
            else:
                arrivals.receive(self, [message])
        self.window.took_late(len(offsets))

    def _add_next(self, asked: Sequence[Missing], found: Gathered, now: float) -> None:
        counts: dict[str, int] = {}
        for offset, queue in asked:
            assert queue is not None
            row, message = found.get(offset, (None, None))
            counts[queue.name] = counts.get(queue.name, 0) + 1
            if queue.range is None:
                arrivals.load_blocked(self, self.entries[offset], row, message, now)
            elif message is not None and offset not in self.entries:
                arrivals.take_up(self, queue, row, message, now)
        for name, count in counts.items():
            self.queues.were_loaded(name, count, now)

    def to_scan(self) -> tuple[int, int] | None:
        """Return (low, high] to scan for messages of keys that may go on, or None. One scan passes at most SCAN_LIMIT
        messages."""
        if not self.queues.absent or self.queues.ready >= self.budget.most_held:
            return None
        ranges = [queue.range for queue in self.queues.absent.values() if queue.range is not None]
        if not ranges or not all(one.unscanned for one in ranges):
            return None
        return min(one.scanned for one in ranges), max(one.high for one in ranges)

    def due_rows(self, now: float, most: int) -> list[int]:
        """Return the offsets of rows that are due and first in their ordering queue, to be loaded, at most `most`."""
        waiting = self.delays.waiting
        if waiting and waiting[0][0] <= now:
            self.delays.elapse(now)
        if not self.delays.due:
            return []
        limit, loaded, size = self.budget.most_ready, self.queues.loaded.values(), self.loadable
        if not size and enough(loaded, 1):
            return []  # one at a time: else it would wait as long as fresh ones keep coming
        if len(loaded) >= limit and enough(loaded, limit):
            return []  # dispatch what has been loaded first
        # Not those whose rows are yet to be written: they cannot be read back before.
        unwritten = self.writes.rows
        return list(
            islice(
                (offset for offset in self.delays.due if offset not in unwritten),
                self.budget.fitting(min(most, limit), size),
            )
        )

    def reschedule(self, offset: int, now: float) -> None:
        """Make a waiting row due now: it is due or acked in the database, where it has been changed."""
        entry = self.entries.get(offset)
        if entry is not None and entry.state == HELD and entry.due > now and offset not in self.writes.rows:
            entry.due = now
            self.delays.add(entry)

    def unfiltered_in_doubt(self, most: int) -> list[int]:
        """Return messages in doubt that the filter has not seen, at most `most` (fewer if they are heavy), each once;
        none without a filter. A former owner may have left out thousands between those that it had in flight."""
        return [] if self.sieve is None else self.in_doubt.take_unseen(self.budget.fitting(most, self.budget.half))

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
        if self.in_flight and self.in_flight_size >= self.budget.share:
            return []  # final reads go on meanwhile: what they bring would pile up with slow handlers
        allowed = None if key_rate is None else lambda key, count: key_rate.take(key, count, now)
        chosen = self.queues.choose(min(most, messages), of_a_queue, executions, allowed)
        if key_rate is not None:
            refused, self.queues.refused = self.queues.refused, []
            for entry in refused:
                changes.hold_back(self, entry, key_rate.wait(entry.key, now), now)
        return [Execution(self.lease, self._dispatch(entries)) for entries in chosen]

    def let_go(self, now: float) -> None:
        """Make due what was held back by the rate of its key: there is another one, or none, and what it does not allow
        will be held back anew."""
        for entry in self.entries.values():
            if entry.limited and entry.state == HELD:
                changes.let_go(self, entry, now)

    def _choose_batch(self, most: int) -> list[Execution]:
        if self.in_flight:
            return []
        offsets, final = self.window.offsets, self.window.final
        loaded = sorted(self.queues.loaded.values())
        # Those that have failed before, each in a call of its own, so that none is charged for another; then those that
        # have only waited, for another or because they were postponed; then fresh ones.
        if again := choose_batch((entry for entry in loaded if entry.count), most):
            return [Execution(self.lease, self._dispatch(again), True, apart=True)]
        chosen = choose_batch((entry for entry in loaded if not entry.count), most)
        if not chosen:
            # An atomic batch that ends at F can move the position itself instead of writing a row for each message.
            bounded = self.options.atomic and offsets and offsets[0] <= final
            read = islice(offsets, bisect_right(offsets, final)) if bounded else offsets
            chosen = choose_batch((self.entries[offset] for offset in read if not self.entries[offset].row), most)
        if not chosen:
            self._stalled = self._batch_state()
            return []
        follows = self.options.atomic and follow_position(chosen, offsets, final)
        return [Execution(self.lease, self._dispatch(chosen), True, self.window.position, follows)]

    def choose_alone(self, offset: int, now: float) -> list[Execution]:
        """Dispatch a loaded message in doubt alone, or dead-letter it."""
        entry = self.in_doubt.entries.get(offset)
        if entry is None or entry.message is None or entry.state != HELD:
            return []
        self.in_doubt.remove(entry)
        deaths, limit = entry.mark, self.options.max_attempts
        # It was alone when its process ended, at its last attempt or, without max_attempts, at the last of MOST_DEATHS
        # in a row.
        if deaths >= MOST_DEATHS if limit is None else entry.count >= limit and deaths >= ALONE:
            error = f"its consumer process ended {deaths} times while it was being handled"
            attempt = Attempt(self.lease, entry.message, entry.count, deaths)
            changes.dead_letter(self, entry, attempt, Outcome(DEAD, error=error), now)
            return []
        entry.mark = 0
        return [Execution(self.lease, self._dispatch([entry], deaths), batch=self.options.together)]

    def _dispatch(self, entries: Iterable[Entry], deaths: int = 0) -> list[Attempt]:
        return [changes.dispatch(self, entry, deaths) for entry in entries]

    def finish_all(self, reports: Iterable[tuple[Attempt, Outcome]], now: float) -> int:
        """Apply outcomes that handlers have reported; return how many were not superseded."""
        count = 0
        for attempt, outcome in reports:
            # The handler's own transaction may have moved the position.
            if outcome.moved_to is not None and outcome.moved_to > self.window.position:
                settling.move(self, outcome.moved_to)
            count += changes.finish(self, attempt, outcome, now)
        return count
