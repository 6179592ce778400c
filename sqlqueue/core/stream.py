"""The memory that an owner has of one stream, and what it decides from it: whom to hand out, how far the position
moves.

A stream is one (group, topic, partition, priority) under one fencing token. Pure: no database, no clock of its own (the
caller passes monotonic seconds). The rules are those of the delivery protocol; P, W, C, F are its letters:

- P position, W watermark, C claimed: as stored;
- F final: every message at or below it has been read after it was known that none can still appear there (`window`).

What it decides is changed in memory at once and written by the plan. So a plan must be executed until it succeeds, or
the whole stream be dropped; there is no third way.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sqlqueue.core.lanes import ACKED, HANDED, HELD, READY, Entry, Lane
from sqlqueue.core.outcomes import ACKED as OUTCOME_ACKED
from sqlqueue.core.outcomes import DEAD, HANDED_BACK, LOST, POSTPONED, RETRIED, Outcome
from sqlqueue.core.plan import ALONE, NOT_IN_FLIGHT, TOGETHER, DeadLetter, Hand, Message, Plan, RowWrite, Run, StoredRow
from sqlqueue.core.window import Window

PARKED_LIMIT: Final = 1_000  # rows of messages waiting behind a blocked key; beyond it the position waits
ROWS_LIMIT: Final = 10_000  # unsettled rows; beyond it nothing new is read until some are settled
WINDOW_LIMIT: Final = 10_000  # messages read and not yet passed by the position


@dataclass(frozen=True, slots=True)
class Address:
    """Which stream it is."""

    group: str
    topic: str
    partition: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Manners:
    """How a consumer wants its streams handed out."""

    ordering: str = "key"
    max_attempts: int = 5
    visibility_timeout: float = 60.0
    batch: bool = False
    batch_size: int = 100
    atomic: bool = False


class Stream:
    """See the module."""

    def __init__(
        self,
        address: Address,
        manners: Manners,
        *,
        id: int,
        token: int,
        position: int,
        watermark: int,
        claimed: int,
        rows: Iterable[StoredRow] = (),
        now: float = 0.0,
    ):
        self.address, self.manners, self.id, self.token = address, manners, id, token
        self.watermark, self.claimed = watermark, claimed
        self.window = Window(position)
        self.lost = False
        self.deadline = float("inf")  # monotonic: when the lease ends unless it is renewed
        self.handed = 0
        self.ready = 0
        self._entries: dict[int, Entry] = {}
        self._lanes: dict[str, Lane] = {}
        self._turns: deque[Entry | Lane] = deque()  # free entries, and lanes that may have something to hand out
        self._waiting: list[tuple[float, int]] = []  # heap of (due, offset)
        self._loaded: dict[int, Entry] = {}  # ready, with a row: they have been handed out before
        self._changes = 0  # of the entries: counted whenever something is read, loaded or finished
        self._stalled: tuple[int, ...] = ()  # of a batch consumer: how it stood when nothing could be chosen
        self._due: dict[int, Entry] = {}  # due rows, to be loaded
        self._suspects: dict[int, Entry] = {}
        self._unsettled_rows: list[int] = []  # heap of offsets, cleaned lazily
        self._acked_rows: list[int] = []  # ascending offsets of acked rows that exist in the database
        self._writes: dict[int, RowWrite] = {}
        self._dead: list[DeadLetter] = []
        self._settled: list[Hand] = []
        self._parked = self._row_count = 0
        self._acks_waiting = 0  # acked in memory only, above the position
        self._waits_since: float | None = None  # when acks, or those behind a slow message, began to wait
        for row in rows:
            self._recall(row, now)

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """P: every message at or below it is acked, or has a delivery-state row."""
        return self.window.position

    @property
    def active(self) -> bool:
        """There is something in memory that a plan might have to write."""
        return bool(self.window.offsets or self._turns or self._writes or self._settled or self._acked_rows)

    @property
    def has_suspects(self) -> bool:
        """Some rows were in flight with a former owner."""
        return bool(self._suspects)

    @property
    def has_turns(self) -> bool:
        """Something may be handed out now."""
        if self.manners.batch:
            return bool(self.ready and not self.handed and self._stalled != self._standing())
        return bool(self._turns)

    def _standing(self) -> tuple[int, ...]:
        """What has to change before more of what is ready can be chosen for a batch."""
        return self.window.final, self.position, self._changes

    @property
    def settled_up(self) -> bool:
        """Nothing read is unsettled but what waits for its time, or behind such a one in its lane."""
        busy = self.handed or self.has_turns or self._due or self._writes
        return not busy and (not self._suspects or self.suspect() is None)

    @property
    def room(self) -> int:
        """How many more messages to read."""
        if self._row_count >= ROWS_LIMIT or len(self.window.offsets) >= WINDOW_LIMIT:
            return 0
        return max(0, 2 * self.manners.batch_size - self.ready)

    def next_due(self) -> float | None:
        """Return when (monotonic) the next waiting row is due."""
        return self._waiting[0][0] if self._waiting else None

    def _recall(self, row: StoredRow, now: float) -> None:
        if row.acked:
            insort(self._acked_rows, row.offset)
            if row.offset <= self.position:
                return
        lane = None if row.acked else self._lane_of(row.key)
        entry = Entry(row.offset, lane, HELD, None)
        entry.row, entry.count, entry.mark, entry.due = True, row.retry_count, row.in_flight, now + row.remaining
        self._entries[row.offset] = entry
        if row.offset > self.position:
            self.window.add(row.offset)
        if row.acked:
            entry.state = ACKED
            return
        if lane is not None:
            lane.add(entry)
        self._row_count += 1
        heapq.heappush(self._unsettled_rows, row.offset)
        if row.in_flight:
            entry.due = now
            self._suspects[row.offset] = entry
        else:
            heapq.heappush(self._waiting, (entry.due, row.offset))

    def _lane_of(self, key: str) -> Lane | None:
        ordering = self.manners.ordering
        if ordering == "none" or (ordering == "key" and not key):
            return None
        name = key if ordering == "key" else ""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name)
        return lane

    # -- reading ------------------------------------------------------------------------------------------------------

    def next_read(self, horizon: int) -> tuple[int, int]:
        """Return (the offset to read beyond, how many messages at most; 0: there is no room now)."""
        return self.window.next_read(self.room, self.manners.batch_size, horizon)

    def take_in(self, messages: Sequence[Message], start: int, limit: int, horizon: int, between: int = -1) -> bool:
        """Remember what a fetch of at most `limit` messages beyond `start` has read; `horizon` was known before it, and
        `between` messages were visible with it from F to `start` (-1: not counted).

        False if some of those are unknown here: then nothing is taken in, and the next read begins at F.
        """
        position, entries, window = self.position, self._entries, self.window
        self._changes += 1
        if not window.is_complete(start, between):
            window.late = True
            return False
        for message in messages:
            offset = message[0]
            if offset <= position or offset in entries:
                continue
            if message.target_group and message.target_group != self.address.group:
                entry = Entry(offset, None, ACKED, None)  # not for this group: nothing to hand out
                self._acks_waiting += 1
            else:
                lane = self._lane_of(message[1])
                entry = Entry(offset, lane, READY, message)
                self.ready += 1
                if lane is not None:
                    lane.add(entry)
                self._offer(entry)
            entries[offset] = entry
            window.add(offset)
        window.was_read(messages[-1][0] if messages else None, len(messages) >= limit, horizon)
        return True

    # -- rows that are due --------------------------------------------------------------------------------------------

    def due_rows(self, now: float, most: int) -> list[int]:
        """Return the offsets of rows that are due and first in their lane, to be loaded, at most `most`."""
        while self._waiting and self._waiting[0][0] <= now:
            _, offset = heapq.heappop(self._waiting)
            entry = self._entries.get(offset)
            if entry is not None and entry.state == HELD and not entry.mark and entry.due <= now:
                self._mark_due(entry, now)
        if not self._due or self._loaded_enough():
            return []  # what has been loaded is to be handed out first
        # What the next plan has yet to write cannot be read back before.
        return list(islice((offset for offset in self._due if offset not in self._writes), most))

    def _loaded_enough(self) -> bool:
        """What stands behind a message that failed again does not count: nothing of it can be handed out before that
        one, which is among the due."""
        limit = 2 * self.manners.batch_size
        if len(self._loaded) < limit:
            return False
        return sum(entry.lane is None or entry.lane.items[0].state != HELD for entry in self._loaded.values()) >= limit

    def reschedule(self, offset: int, now: float) -> None:
        """Be told that the database holds a row to be due: somebody may have changed its time there."""
        entry = self._entries.get(offset)
        if entry is not None and entry.state == HELD and entry.due > now and offset not in self._writes:
            entry.due = now
            heapq.heappush(self._waiting, (now, offset))

    def _mark_due(self, entry: Entry, now: float) -> None:
        if entry.lane is None:
            self._due[entry.offset] = entry
        elif entry.lane.items and entry.lane.items[0] is entry and not entry.lane.busy:
            for follower in entry.lane.items:  # parked ones become due together with the one that they wait for
                if follower.state != HELD or follower.mark or follower.due > now:
                    break
                if len(self._due) >= 2 * self.manners.batch_size and follower is not entry:
                    break
                self._due[follower.offset] = follower

    def suspect(self) -> int | None:
        """Return the offset of a suspect that is first in its lane, if any: to be loaded, and handed out alone."""
        for offset, entry in self._suspects.items():  # ascending, as they were recalled
            if entry.lane is None or (entry.lane.items[0] is entry and not entry.lane.busy):
                return offset
        return None

    def load(self, offset: int, row: StoredRow | None, message: Message | None, now: float) -> None:
        """Take in what the database holds of a row that was due: its present values, and its message."""
        entry = self._entries.get(offset)
        self._changes += 1
        self._due.pop(offset, None)
        if entry is None or entry.state != HELD:
            return
        if row is None or row.acked or message is None:
            # Acked by a commit whose reply was lost, or purged by a person: either way there is nothing left to do.
            entry.row = row is not None
            if row is not None:
                insort(self._acked_rows, offset)
                if not row.acked:
                    self._writes[offset] = RowWrite(offset, True, NOT_IN_FLIGHT, row.retry_count)
            self._leave(entry, now, had_row=True)
            return
        entry.count, entry.message = row.retry_count, message
        self._unpark(entry)
        if entry.mark:
            entry.mark = row.in_flight
            if not entry.mark:
                self._suspects.pop(offset, None)
        if row.remaining > 0 and not entry.mark:
            entry.due = now + row.remaining
            heapq.heappush(self._waiting, (entry.due, offset))
        elif not entry.mark:
            entry.state = READY
            self.ready += 1
            self._loaded[offset] = entry
            self._offer(entry)

    # -- handing out --------------------------------------------------------------------------------------------------

    def _offer(self, entry: Entry) -> None:
        """A ready message, or the lane that it stands in, is to have its turn; batches are chosen by place instead."""
        lane = entry.lane
        if self.manners.batch:
            return
        if lane is None:
            self._turns.append(entry)
        elif not lane.listed and not lane.busy:
            lane.listed = True
            self._turns.append(lane)

    def choose(self, most: int, of_a_lane: int | None = None) -> list[Run]:
        """Hand out at most `most` messages, of one lane at most `of_a_lane`, if that is given (or one batch): the runs
        to start once the plan that claims them is written."""
        if self.manners.batch:
            return self._choose_batch()
        runs: list[Run] = []
        for _ in range(len(self._turns)):
            if most <= 0:
                break
            turn = self._turns.popleft()
            entries = self._take_turn(turn, min(most, of_a_lane or most))
            if entries:
                most -= len(entries)
                runs.append(Run(self, [self._hand(entry) for entry in entries]))
        return runs

    def _take_turn(self, turn: Entry | Lane, most: int) -> list[Entry]:
        if isinstance(turn, Entry):
            return [turn] if turn.state == READY else []
        turn.listed = False
        if not turn.items:
            self._forget(turn)
        return [] if turn.busy else turn.head_run(most)

    def _choose_batch(self) -> list[Run]:
        """One batch at a time: fresh messages together, in the order of the log, and before them those that have only
        waited (for another, or because they were postponed); what has failed before comes one by one, so that a bad
        message is found and its neighbours are not charged for it."""
        if self.handed:
            return []
        chosen = self._choose_again() or self._choose_untried() or self._choose_fresh()
        if not chosen:
            self._stalled = self._standing()
            return []
        moves_to = self._would_move_to(chosen) if self.manners.atomic else None
        return [Run(self, [self._hand(entry) for entry in chosen], True, self.position, moves_to)]

    def _choose_again(self) -> list[Entry]:
        for entry in self._loaded.values():
            if not entry.untried and (entry.lane is None or entry.lane.items[0] is entry):
                return [entry]
        return []

    def _choose_untried(self) -> list[Entry]:
        """Messages that have a row and were never charged an attempt, chosen as fresh ones are."""
        chosen: list[Entry] = []
        taken: dict[Lane, int] = {}
        for offset in sorted(self._loaded):
            entry = self._loaded[offset]
            if entry.untried and len(chosen) < self.manners.batch_size and _follows(entry, taken):
                chosen.append(entry)
        return chosen

    def _choose_fresh(self) -> list[Entry]:
        """Ready messages of lanes whose earlier ones are all chosen too."""
        offsets, final = self.window.offsets, self.window.final
        # An atomic batch that ends at F can move the position itself instead of writing a row for each message.
        bound = final if self.manners.atomic and offsets and offsets[0] <= final else None
        chosen: list[Entry] = []
        taken: dict[Lane, int] = {}
        for offset in offsets:
            if len(chosen) >= self.manners.batch_size or (bound is not None and offset > bound):
                break
            entry = self._entries[offset]
            if entry.state != READY or entry.row:
                continue
            if _follows(entry, taken):
                chosen.append(entry)
        return chosen

    def _would_move_to(self, chosen: Sequence[Entry]) -> int | None:
        """Return where the position may move when all of these are acked: they follow it without a gap, up to F."""
        offsets = self.window.offsets
        follows = len(offsets) >= len(chosen) and all(e.offset == o and not e.row for e, o in zip(chosen, offsets))
        return chosen[-1].offset if follows and chosen[-1].offset <= self.window.final else None

    def _hand(self, entry: Entry, alone: bool = False) -> Hand:
        attempt = entry.count + 1 if entry.row else 1
        assert entry.message is not None
        hand = entry.hand = Hand(self, entry.message, attempt, alone)
        if entry.state == READY:
            self.ready -= 1
        self._loaded.pop(entry.offset, None)
        entry.state = HANDED
        if entry.lane is not None:
            entry.lane.busy += 1
        self.handed += 1
        if entry.row:
            mark = ALONE if alone else TOGETHER
            self._writes[entry.offset] = RowWrite(
                entry.offset, False, mark, attempt, self.manners.visibility_timeout, None
            )
        elif entry.offset > self.claimed:
            self.claimed = entry.offset
        return hand

    def choose_alone(self, offset: int, now: float) -> list[Run]:
        """Hand out a loaded suspect, alone; or dead-letter it, if it was alone at its last attempt."""
        entry = self._suspects.get(offset)
        if entry is None or entry.message is None or entry.state != HELD:
            return []
        if entry.count >= self.manners.max_attempts and entry.mark == ALONE:
            error = f"its consumer process ended {entry.count} times while it was being handled"
            del self._suspects[offset]
            self._bury(entry, Hand(self, entry.message, entry.count, alone=True), error, now)
            return []
        del self._suspects[offset]
        entry.mark = 0
        hand = self._hand(entry, alone=True)
        return [Run(self, [hand], batch=self.manners.batch)]

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def finish(self, hand: Hand, outcome: Outcome, now: float) -> bool:
        """Take in what became of a hand; False if it was superseded meanwhile (overrun), and changes nothing."""
        entry = self._entries.get(hand.message.offset)
        if entry is None or entry.hand is not hand:
            return False
        entry.hand = None
        self.handed -= 1
        self._changes += 1
        lane = entry.lane
        if lane is not None:
            lane.busy -= 1
        hand.outcome = outcome
        kind = outcome.kind
        if kind == OUTCOME_ACKED:
            self._ack(entry, hand, outcome, now)
        elif kind == HANDED_BACK:
            self._hand_back(entry, hand, now)
        elif kind == DEAD:
            self._bury(entry, hand, outcome.error, now)
        else:
            self._hold(entry, hand, outcome, now)
        if lane is not None and not lane.busy:
            self._advance(lane, now)
        return True

    def _ack(self, entry: Entry, hand: Hand, outcome: Outcome, now: float) -> None:
        had_row = entry.row
        if outcome.committed and entry.offset > self.position:
            # The handler's transaction wrote an acked row (or, for a batch, moved the position: then there is none,
            # and deleting it later deletes nothing).
            entry.row = True
            self._writes.pop(entry.offset, None)
            insort(self._acked_rows, entry.offset)
        elif outcome.committed and had_row:
            insort(self._acked_rows, entry.offset)
        elif had_row:
            self._writes[entry.offset] = RowWrite(entry.offset, True, NOT_IN_FLIGHT, hand.attempt)
            insort(self._acked_rows, entry.offset)
        if entry.row or entry.offset <= self.position:
            self._settled.append(hand)
        else:
            entry.ack = hand
        self._leave(entry, now, had_row)

    def _leave(self, entry: Entry, now: float, had_row: bool) -> None:
        """The message is settled: it leaves its lane, and memory as soon as the position has passed it."""
        if entry.state == READY:
            self.ready -= 1
        entry.state, entry.message = ACKED, None
        self._loaded.pop(entry.offset, None)
        self._unpark(entry)
        self._suspects.pop(entry.offset, None)
        if had_row:
            self._row_count -= 1
        if not entry.row and entry.offset > self.position:
            self._acks_waiting += 1
        lane = entry.lane
        if lane is not None:
            lane.remove(entry)
            if not lane.busy:
                self._advance(lane, now)
        if entry.offset <= self.position:
            del self._entries[entry.offset]

    def _bury(self, entry: Entry, hand: Hand, error: str, now: float) -> None:
        self._dead.append(DeadLetter(hand.message, hand.attempt, error))
        if hand.outcome is None:
            hand.outcome = Outcome(DEAD, error=error)
        self._settled.append(hand)
        had_row = entry.row
        # The acked row stands in the same transaction as the copy, unless the position passes the message there.
        self._writes[entry.offset] = RowWrite(entry.offset, True, NOT_IN_FLIGHT, hand.attempt, 0.0, error)
        if not had_row:
            entry.row = True
        insort(self._acked_rows, entry.offset)
        self._leave(entry, now, had_row)

    def _hold(self, entry: Entry, hand: Hand, outcome: Outcome, now: float) -> None:
        """Retried, postponed: it gets or keeps a row, and waits."""
        count = hand.attempt - 1 if outcome.kind == POSTPONED else hand.attempt
        delay = 1.0 if outcome.kind == LOST else outcome.delay
        self._writes[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, count, delay, outcome.error or None)
        if not entry.row:
            entry.row = True
            self._row_count += 1
            heapq.heappush(self._unsettled_rows, entry.offset)
        entry.state, entry.message, entry.count, entry.due = HELD, None, count, now + delay
        heapq.heappush(self._waiting, (entry.due, entry.offset))
        if outcome.kind in (RETRIED, POSTPONED):
            self._settled.append(hand)

    def _hand_back(self, entry: Entry, hand: Hand, now: float) -> None:
        """Not started, not charged."""
        entry.state = READY
        self.ready += 1
        if entry.row:
            entry.count = hand.attempt - 1
            self._loaded[entry.offset] = entry
            self._writes[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, entry.count)
        if entry.lane is None:
            self._offer(entry)

    def _advance(self, lane: Lane, now: float) -> None:
        """Nothing of the lane is handed out: see what is its first message now."""
        if not lane.items:
            self._forget(lane)
            return
        head = lane.items[0]
        if head.state == READY:
            self._offer(head)
        elif head.state == HELD and not head.mark:
            if head.due <= now:
                self._mark_due(head, now)
            else:
                heapq.heappush(self._waiting, (head.due, head.offset))

    def _forget(self, lane: Lane) -> None:
        if not lane.listed and self._lanes.get(lane.name) is lane:
            del self._lanes[lane.name]

    # -- settling -----------------------------------------------------------------------------------------------------

    def committed_to(self, position: int) -> None:
        """Learn that an atomic batch has moved the stored position itself."""
        if position <= self.position:
            return
        self._pass(position)

    def plan(self, now: float, flush_after: float, runs: list[Run]) -> Plan | None:
        """Return what to write now, the claims of the runs that were chosen included; None if there is nothing."""
        before = self.position
        self._walk()
        if self._waits_since is not None and now - self._waits_since >= flush_after:
            self._flush()
        plan = self._write_plan(runs)
        # A slow message may also fill the memory with what stands behind it; once it has a row, that can be parked.
        if not self._acks_waiting and not (self.handed and not self.room):
            self._waits_since = None
        elif self._waits_since is None or self.position > before:
            self._waits_since = now
        written = plan.rows or plan.deletes or plan.dead or plan.settled or runs
        return plan if written or self.position > before else None

    def _walk(self) -> None:
        """Move P to the highest p <= F such that every message read in (P, p] is acked or has a row."""
        entries, final, target = self._entries, self.window.final, self.position
        by_key = self.manners.ordering == "key"
        for offset in self.window.offsets:
            if offset > final:
                break
            entry = entries[offset]
            if entry.state == ACKED or entry.row:
                target = offset
            elif (
                by_key
                and entry.state == READY
                and entry.lane is not None
                and entry.lane.blocked_by_row(entry)
                and self._parked < PARKED_LIMIT
            ):
                self._park(entry)
                target = offset
            else:
                break
        else:
            if target > self.position:
                target = max(target, final)
        if target > self.position:
            self._pass(target)

    def _pass(self, target: int) -> None:
        for offset in self.window.move(target):
            entry = self._entries[offset]
            if entry.state == ACKED:
                if not entry.row:
                    self._acks_waiting -= 1
                if entry.ack is not None:
                    self._settled.append(entry.ack)
                del self._entries[offset]
        self.claimed = max(self.claimed, target)

    def _park(self, entry: Entry) -> None:
        """A later message of a blocked key gets a row, so that the position can pass it."""
        self.ready -= 1
        self._parked += 1
        self._row_count += 1
        entry.state, entry.message, entry.row, entry.count, entry.due = HELD, None, True, 0, 0.0
        entry.parked = True
        heapq.heappush(self._unsettled_rows, entry.offset)
        self._writes[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, 0)

    def _unpark(self, entry: Entry) -> None:
        if entry.parked:
            entry.parked = False
            self._parked -= 1

    def _flush(self) -> None:
        """Acks have waited long enough in memory: what holds the position back gets a row in flight, so that it can
        move on; acks above the horizon become acked rows."""
        for offset in self.window.offsets:
            if offset > self.window.final:
                break
            entry = self._entries[offset]
            if entry.state == HANDED and not entry.row and entry.hand is not None:
                mark = ALONE if entry.hand.alone else TOGETHER
                entry.row = True
                entry.count = entry.hand.attempt
                self._row_count += 1
                heapq.heappush(self._unsettled_rows, offset)
                timeout = self.manners.visibility_timeout
                self._writes[offset] = RowWrite(offset, False, mark, entry.count, timeout)
        self._walk()
        for offset in self.window.offsets:
            entry = self._entries[offset]
            if entry.state == ACKED and not entry.row:
                entry.row = True
                self._acks_waiting -= 1
                self._writes[offset] = RowWrite(offset, True, NOT_IN_FLIGHT, 1)
                insort(self._acked_rows, offset)
                if entry.ack is not None:
                    self._settled.append(entry.ack)
                    entry.ack = None

    def _write_plan(self, runs: list[Run]) -> Plan:
        passed = bisect_right(self._acked_rows, self.position)
        deletes = self._acked_rows[:passed]
        del self._acked_rows[:passed]
        for offset in deletes:
            self._writes.pop(offset, None)
        rows = list(self._writes.values())
        low, entries = self._unsettled_rows, self._entries
        while low:
            entry = entries.get(low[0])
            if entry is not None and entry.row and entry.state != ACKED:
                break
            heapq.heappop(low)
        self.watermark = min(low[0] - 1, self.position) if low else self.position
        plan = Plan(self, self.position, self.watermark, self.claimed, rows, deletes, self._dead, self._settled, runs)
        self._writes, self._dead, self._settled = {}, [], []
        return plan

    def release_plan(self, now: float) -> Plan:
        """Return what to write when the lease is given up: acks in memory become rows, the rest is handed back."""
        for entry in [e for e in self._entries.values() if e.state == HANDED and e.hand is not None]:
            assert entry.hand is not None
            self.finish(entry.hand, Outcome(HANDED_BACK), now)
        self._walk()
        self._flush()
        plan = self._write_plan([])
        plan.release = True
        self.lost = True
        return plan


def _follows(entry: Entry, taken: dict[Lane, int]) -> bool:
    """Tell whether all earlier messages of an entry's lane are chosen; then count it among them."""
    lane = entry.lane
    if lane is None:
        return True
    before = taken.get(lane, 0)
    if lane.busy or before >= len(lane.items) or lane.items[before] is not entry:
        return False
    taken[lane] = before + 1
    return True
