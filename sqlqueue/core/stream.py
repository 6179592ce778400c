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
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from sqlqueue.core import batches
from sqlqueue.core.blocked import STALE, Range, Ranges, StoredRange
from sqlqueue.core.lanes import ACKED, BEHIND, HANDED, HELD, READY, Entry, Lane
from sqlqueue.core.outcomes import ACKED as OUTCOME_ACKED
from sqlqueue.core.outcomes import DEAD, HANDED_BACK, LOST, POSTPONED, RETRIED, Outcome
from sqlqueue.core.plan import ALONE, NOT_IN_FLIGHT, TOGETHER, DeadLetter, Hand, Message, Plan, RowWrite, Run, StoredRow
from sqlqueue.core.window import Read, Window

HEADS_LIMIT: Final = 100_000  # messages that wait by their own outcome; beyond it nothing new is read
WINDOW_LIMIT: Final = 10_000  # messages read onward and not yet passed by the position
FULL: Final = "full"  # the first of these is reached
HELD_BACK: Final = "held"  # the second
READY_SIZE: Final = 16 * 1024 * 1024  # characters of the payloads and headers that are read before they are handed out
HANDED_SIZE: Final = 64 * 1024 * 1024  # characters with handlers: nothing more is handed out meanwhile
SCAN_LIMIT: Final = 5_000  # messages of a stream that one look for those of a waiting key passes


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


class Missing(NamedTuple):
    """A message to be loaded: a late one, or the next one of a lane."""

    offset: int
    lane: Lane | None


Found = Mapping[int, tuple[StoredRow | None, Message]]  # by offset; a row that a person has written, perhaps


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
        ranges: Iterable[StoredRange] = (),
        now: float = 0.0,
    ):
        self.address, self.manners, self.id, self.token = address, manners, id, token
        self.watermark, self.claimed = watermark, claimed
        self.window = Window(position)
        self.ranges = Ranges(ranges)
        self.lost = False
        self.deadline = float("inf")  # monotonic: when the lease ends unless it is renewed
        self.handed = self._handed_size = 0
        self.ready = 0
        self._heaviest: int | None = None  # characters of the heaviest of the last messages
        self.loaded: dict[int, Entry] = {}  # ready, with a row or out of a range: they stand outside the window
        self._entries: dict[int, Entry] = {}
        self._lanes: dict[str, Lane] = {}
        self._turns: deque[Entry | Lane] = deque()  # free entries, and lanes that may have something to hand out
        self._waiting: list[tuple[float, int]] = []  # heap of (due, offset)
        self._changes = 0  # of the entries: counted whenever something is read, loaded or finished
        self._stalled: tuple[int, ...] = ()  # of a batch consumer: how it stood when nothing could be chosen
        self._due: dict[int, Entry] = {}  # due rows, to be loaded
        self._absent: dict[str, Lane] = {}  # lanes that may go on, and whose next messages are not in memory
        self._suspects: dict[int, Entry] = {}
        self._unsettled_rows: list[int] = []  # heap of offsets, cleaned lazily
        self._acked_rows: list[int] = []  # ascending offsets of acked rows that exist in the database
        self._writes: dict[int, RowWrite] = {}
        self._taken_up: set[int] = set()  # claimed out of a range: the next plan gives them their first row
        self._dead: list[DeadLetter] = []
        self._settled: list[Hand] = []
        self.heads = 0  # lanes, and messages without one, of which a message has an unsettled row
        self._acks_waiting = 0  # acked in memory only, above the position
        self._waits_since: float | None = None  # when acks, or those behind a slow message, began to wait
        for one in self.ranges:
            self._lanes[one.key] = lane = Lane(one.key)
            lane.range = one
        blocked = list(self._lanes.values())
        for row in rows:
            self._recall(row, now)
        for lane in blocked:
            self._advance(lane, now)

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """P: every message at or below it is acked, has a delivery-state row, or lies in its key's range."""
        return self.window.position

    @property
    def active(self) -> bool:
        """There is something in memory that a plan might have to write."""
        rows = self._writes or self._settled or self._acked_rows
        return bool(rows or self.window.offsets or self._turns or self.ranges.changed or self._crowded)

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

    @property
    def turns(self) -> int:
        """How many messages and lanes, or batches, may have something to hand out now."""
        return int(self.has_turns) if self.manners.batch else len(self._turns)

    def _standing(self) -> tuple[int, ...]:
        """What has to change before more of what is ready can be chosen for a batch."""
        return self.window.final, self.position, self._changes

    @property
    def settled_up(self) -> bool:
        """Nothing read is unsettled but what waits for its time, or behind such a one in its lane."""
        busy = self.handed or self.has_turns or self._due or self._writes or self._absent or self.window.late
        return not busy and (not self._suspects or self.suspect() is None)

    @property
    def room(self) -> int:
        """How many more messages to read onward."""
        if len(self.window.offsets) >= WINDOW_LIMIT:
            return 0
        return max(0, self._most_ready - self.ready)

    def limit_reached(self, horizon: int) -> str:
        """Return by which limit nothing new is read, though there may be something; "" for none."""
        if not self.window.more:
            return ""
        if self.heads >= HEADS_LIMIT:
            return FULL
        offsets = self.window.offsets
        return HELD_BACK if len(offsets) >= WINDOW_LIMIT and offsets[0] > horizon else ""

    @property
    def _crowded(self) -> bool:
        """Something is handed out, and what may stand behind it leaves no room for anything else."""
        return bool(self.handed and not self.room)

    @property
    def _most_ready(self) -> int:
        """How many ready messages are enough: none is read onward then. Their payloads are in memory: these are fewer
        if the last messages were heavy."""
        return max(1, min(2 * self.manners.batch_size, READY_SIZE // (self._heaviest or 1)))

    @property
    def _at_once(self) -> int:
        """How many messages to load with one statement at most."""
        return min(self.manners.batch_size, self._most_ready)

    @property
    def _held(self) -> int:
        """How many remembered messages in (P, F] a final read waits for, and how many ready ones any loading."""
        return self._most_ready + self.manners.batch_size

    @property
    def weighed(self) -> bool:
        """It is known how heavy messages are here."""
        return self._heaviest is not None

    def _weigh(self, messages: Iterable[Message]) -> None:
        """Expect the next messages to be as heavy as the heaviest of these; of a single one that is soon forgotten."""
        heaviest = max([message.size for message in messages], default=None)
        if heaviest is not None:
            self._heaviest = max(heaviest, (self._heaviest or 0) // 4)

    def next_due(self) -> float | None:
        """Return when (monotonic) the next waiting row is due."""
        return self._waiting[0][0] if self._waiting else None

    def _recall(self, row: StoredRow, now: float) -> None:
        """Remember a row of the tables."""
        if row.acked and row.offset <= self.position:
            self._drop_acked_row(row.offset, row.key)
            return
        lane = None if row.acked else self._lane_of(row.key)
        entry = Entry(row.offset, lane, HELD, None, self._key_of(row.key))
        entry.row, entry.count, entry.mark, entry.due = True, row.retry_count, row.in_flight, now + row.remaining
        self._entries[row.offset] = entry
        if row.offset > self.position:
            self.window.add(row.offset)
            self.window.cursor = max(self.window.cursor, row.offset)
        if row.acked:
            insort(self._acked_rows, row.offset)
            entry.state = ACKED
            return
        if lane is not None:
            lane.add(entry)
        self._count_row(entry, 1)
        heapq.heappush(self._unsettled_rows, row.offset)
        if row.in_flight:
            entry.due = now
            self._suspects[row.offset] = entry
        else:
            heapq.heappush(self._waiting, (entry.due, row.offset))

    def _key_of(self, key: str) -> str:
        """Return the key by whose range a message may come to be covered; "" if by none."""
        return key if self.manners.ordering == "key" else ""

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

    def next_read(self, horizon: int) -> Read | None:
        """Return what to read now; None: nothing is to be read, or there is no room."""
        if self.heads >= HEADS_LIMIT:
            return None
        return self.window.next_read(self.room, self._at_once, self._held, horizon)

    def take_in(
        self, read: Read, seen: Sequence[int], messages: Sequence[Message], horizon: int, now: float = 0.0
    ) -> int:
        """Remember what a read has found, both parts in one snapshot; `horizon` was known before it. Return how many
        messages were taken in: none, if late ones have to come first."""
        self._changes += 1
        if read.looks:
            for offset in self.window.compare(read, seen, horizon):
                self._vanish(offset, now)
            if self.window.late:
                return 0
        self._weigh(messages)
        for message in messages:
            self._take(message)
        self.window.was_read(read, messages[-1][0] if messages else None, len(messages) >= read.limit, horizon)
        return len(messages)

    def _take(self, message: Message) -> None:
        offset, key = message[0], message[1]
        if offset <= self.position or offset in self._entries:
            return
        if message.target_group and message.target_group != self.address.group:
            entry = Entry(offset, None, ACKED, None)  # not for this group: nothing to hand out
            self._acks_waiting += 1
        else:
            lane = self._lane_of(key)
            entry = Entry(offset, lane, READY, message, self._key_of(key))
            if lane is not None:
                if entry.key and lane.has_before(offset):
                    entry.state, entry.message = BEHIND, None
                lane.add(entry)
            if entry.state == READY:
                self.ready += 1
                self._offer(entry)
        self._entries[offset] = entry
        self.window.add(offset)

    def _vanish(self, offset: int, now: float) -> None:
        """A message that is remembered was deleted from the log: there is nothing to hand out."""
        entry = self._entries[offset]
        if entry.state in (READY, BEHIND) and not entry.row:
            self._leave(entry, now, had_row=False)

    # -- messages that are not in memory ------------------------------------------------------------------------------

    def missing(self, horizon: int) -> list[Missing]:
        """Return the messages to be loaded now: late ones, or the next ones of lanes that may go on."""
        if self.heads < HEADS_LIMIT:
            late = self.window.next_late(self.room, self._at_once, self._held, horizon)
            if late:
                return [Missing(offset, None) for offset in late]
        most = min(self._at_once, self._held - self.ready)
        found: list[Missing] = []
        for lane in self._absent.values():
            if len(found) >= most:
                break
            found += [Missing(offset, lane) for offset in islice(lane.absent(), most - len(found))]
        return found

    def bring(self, asked: Sequence[Missing], found: Found, now: float) -> None:
        """Take in what was missing."""
        self._changes += 1
        self._weigh(message for _, message in found.values())
        lanes: dict[str, list[int]] = {}
        for offset, lane in asked:
            row, message = found.get(offset, (None, None))
            if lane is None:
                if message is not None and offset not in self._entries:
                    self._recall(row, now) if row is not None else self._take(message)
                continue
            lanes.setdefault(lane.name, []).append(offset)
            if lane.range is None:
                self._unveil(self._entries[offset], row, message, now)
            elif message is not None and offset not in self._entries:
                self._take_up(lane, row, message, now)
        if asked[0].lane is None:
            self.window.took_late(len(asked))
        for name, offsets in lanes.items():
            if (lane := self._lanes.get(name)) is None:
                continue
            if lane.range is not None:
                lane.range.was_loaded(len(offsets))
                self.ranges.touch(lane.range)
            if not lane.busy:
                self._advance(lane, now)

    def _unveil(self, entry: Entry, row: StoredRow | None, message: Message | None, now: float) -> None:
        """A message that stood behind another is the first of its lane, or follows that one."""
        if message is None:
            self._leave(entry, now, had_row=False)
        elif row is not None:  # a person has written it
            self._drop(entry)
            self._recall(row, now)
        else:
            entry.state, entry.message = READY, message
            self.ready += 1

    def _take_up(self, lane: Lane, row: StoredRow | None, message: Message, now: float) -> None:
        """The next message of a range comes into memory. It gets its row when it is handed out."""
        if row is not None:
            self._recall(row._replace(key=lane.name), now)
        elif message.target_group in ("", self.address.group):
            entry = Entry(message.offset, lane, READY, message, lane.name)
            self._entries[message.offset] = self.loaded[message.offset] = entry
            self.ready += 1
            lane.add(entry)

    def _drop(self, entry: Entry) -> None:
        """Forget a message that was not handed out, and has no row."""
        if entry.state == READY:
            self.ready -= 1
        del self._entries[entry.offset]
        self.loaded.pop(entry.offset, None)
        if entry.offset > self.position:
            del self.window.offsets[bisect_left(self.window.offsets, entry.offset)]
        if entry.lane is not None:
            entry.lane.remove(entry)

    def to_scan(self) -> tuple[int, int] | None:
        """Return (low, high) in which to look for messages of keys that may go on; None: nothing is to be looked for.
        At most SCAN_LIMIT are passed at once."""
        if not self._absent or self.ready >= self._held:
            return None
        ranges: list[Range] = []
        for lane in self._absent.values():
            if lane.range is not None:
                if not lane.range.unscanned:
                    return None
                ranges.append(lane.range)
        if not ranges:
            return None
        return min(one.scanned for one in ranges), max(one.high for one in ranges)

    def scanned(self, low: int, high: int, keys: Sequence[tuple[int, str]], now: float) -> None:
        """Take note of (offset, key) of all messages in (low, high], or of as many as one look passes."""
        end = keys[-1][0] if len(keys) >= SCAN_LIMIT else high
        wanted = {lane.name: lane.range for lane in self._absent.values() if lane.range is not None}
        for offset, key in keys:
            one = wanted.get(key)
            if one is not None and one.scanned < offset <= one.high:
                one.found.append(offset)
        for one in wanted.values():
            if low <= one.scanned < end:
                one.scanned = min(end, one.high)
            if not one.found and one.loaded < one.scanned:
                one.loaded = one.scanned
                self.ranges.touch(one)
            self._advance(self._lanes[one.key], now)

    # -- rows that are due --------------------------------------------------------------------------------------------

    def due_rows(self, now: float, most: int) -> list[int]:
        """Return the offsets of rows that are due and first in their lane, to be loaded, at most `most`."""
        while self._waiting and self._waiting[0][0] <= now:
            _, offset = heapq.heappop(self._waiting)
            entry = self._entries.get(offset)
            if entry is not None and entry.state == HELD and not entry.mark and entry.due <= now:
                self._mark_due(entry, now)
        limit = self._most_ready
        if not self._due or (len(self.loaded) >= limit and batches.enough(self.loaded.values(), limit)):
            return []  # what has been loaded is to be handed out first
        # What the next plan has yet to write cannot be read back before.
        return list(islice((offset for offset in self._due if offset not in self._writes), min(most, limit)))

    def reschedule(self, offset: int, now: float) -> None:
        """Be told that the database holds a row to be due: somebody may have changed its time there."""
        entry = self._entries.get(offset)
        if entry is not None and entry.state == HELD and entry.due > now and offset not in self._writes:
            entry.due = now
            heapq.heappush(self._waiting, (now, offset))

    def _mark_due(self, entry: Entry, now: float) -> None:
        lane = entry.lane
        if lane is None:
            self._due[entry.offset] = entry
        elif lane.head is entry and not lane.busy:
            for follower in lane.items:  # those that have only waited become due together with the first
                if follower.state != HELD or follower.mark or follower.due > now or not lane.reaches(follower):
                    break
                if len(self._due) >= self._most_ready and follower is not entry:
                    break
                self._due[follower.offset] = follower

    def suspect(self) -> int | None:
        """Return the offset of a suspect that is first in its lane, if any: to be loaded, and handed out alone."""
        for offset, entry in self._suspects.items():  # ascending, as they were recalled
            if entry.lane is None or (entry.lane.head is entry and not entry.lane.busy):
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
                self._drop_acked_row(offset, entry.key)
                if not row.acked:
                    self._writes[offset] = RowWrite(offset, True, NOT_IN_FLIGHT, row.retry_count)
            self._leave(entry, now, had_row=True)
            return
        entry.count, entry.message = row.retry_count, message
        self._weigh([message])
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
            self.loaded[offset] = entry
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
        if self._handed_size >= HANDED_SIZE:
            return []
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
        if self.handed:
            return []
        offsets, final, most = self.window.offsets, self.window.final, self.manners.batch_size
        loaded = self.loaded.values()
        chosen = batches.choose_again(loaded) or batches.choose_untried(loaded, most)
        if not chosen:
            # An atomic batch that ends at F can move the position itself instead of writing a row for each message.
            bound = final if self.manners.atomic and offsets and offsets[0] <= final else None
            chosen = batches.choose_fresh((self._entries[offset] for offset in offsets), most, bound)
        if not chosen:
            self._stalled = self._standing()
            return []
        moves_to = batches.would_move_to(chosen, offsets, final) if self.manners.atomic else None
        return [Run(self, [self._hand(entry) for entry in chosen], True, self.position, moves_to)]

    def _hand(self, entry: Entry, alone: bool = False) -> Hand:
        attempt = entry.count + 1 if entry.row else 1
        assert entry.message is not None
        hand = entry.hand = Hand(self, entry.message, attempt, alone)
        if entry.state == READY:
            self.ready -= 1
        self.loaded.pop(entry.offset, None)
        entry.state = HANDED
        if entry.lane is not None:
            entry.lane.busy += 1
        self.handed += 1
        self._handed_size += hand.size
        if entry.offset <= self.position and not entry.row:
            self._leave_range(entry)
        if entry.row:
            mark = ALONE if alone else TOGETHER
            self._writes[entry.offset] = RowWrite(
                entry.offset, False, mark, attempt, self.manners.visibility_timeout, None
            )
        elif entry.offset > self.claimed:
            self.claimed = entry.offset
        return hand

    def _leave_range(self, entry: Entry) -> None:
        """The plan that claims it gives it its row, and raises its range's low."""
        self._add_row(entry)
        self._taken_up.add(entry.offset)
        if (one := self.ranges.get(entry.key)) is not None:
            one.messages -= 1
            self.ranges.touch(one)

    def _add_row(self, entry: Entry) -> None:
        entry.row = True
        self._count_row(entry, 1)
        heapq.heappush(self._unsettled_rows, entry.offset)

    def _count_row(self, entry: Entry, change: int) -> None:
        lane = entry.lane
        if lane is None:
            self.heads += change
        else:
            before, lane.rows = lane.rows, lane.rows + change
            self.heads += bool(lane.rows) - bool(before)

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
        self._handed_size -= hand.size
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
        elif had_row and not outcome.committed:
            self._writes[entry.offset] = RowWrite(entry.offset, True, NOT_IN_FLIGHT, hand.attempt)
        if entry.row:
            self._drop_acked_row(entry.offset, entry.key)
        if entry.row or entry.offset <= self.position:
            self._settled.append(hand)
        else:
            entry.ack = hand
        self._leave(entry, now, had_row)

    def _drop_acked_row(self, offset: int, key: str) -> None:
        """An acked row is deleted once the position has passed it, unless its key's range may come to cover it."""
        if offset > self.position or not self.ranges.keep(offset, key):
            insort(self._acked_rows, offset)

    def _leave(self, entry: Entry, now: float, had_row: bool) -> None:
        """The message is settled: it leaves its lane, and memory as soon as the position has passed it."""
        if entry.state == READY:
            self.ready -= 1
        entry.state, entry.message = ACKED, None
        self.loaded.pop(entry.offset, None)
        self._suspects.pop(entry.offset, None)
        if had_row:
            self._count_row(entry, -1)
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
        entry.row = True
        self._drop_acked_row(entry.offset, entry.key)
        self._leave(entry, now, had_row)

    def _hold(self, entry: Entry, hand: Hand, outcome: Outcome, now: float) -> None:
        """Retried, postponed: it gets or keeps a row, and waits."""
        count = hand.attempt - 1 if outcome.kind == POSTPONED else hand.attempt
        delay = 1.0 if outcome.kind == LOST else outcome.delay
        self._writes[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, count, delay, outcome.error or None)
        if not entry.row:
            self._add_row(entry)
        entry.state, entry.message, entry.count, entry.due = HELD, None, count, now + delay
        heapq.heappush(self._waiting, (entry.due, entry.offset))
        self._block(entry)
        if outcome.kind in (RETRIED, POSTPONED):
            self._settled.append(hand)

    def _hand_back(self, entry: Entry, hand: Hand, now: float) -> None:
        """Not started, not charged."""
        if entry.row:
            entry.count = hand.attempt - 1
            self._writes[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, entry.count)
            if entry.key and entry.lane is not None and entry.lane.items[0].state == HELD:
                entry.state, entry.message = HELD, None
                return
            self.loaded[entry.offset] = entry
        elif entry.key and entry.lane is not None and entry.lane.blocked_by_row(entry):
            entry.state, entry.message = BEHIND, None
            return
        entry.state = READY
        self.ready += 1
        if entry.lane is None:
            self._offer(entry)

    def _block(self, blocking: Entry) -> None:
        """A message waits, with its row, or its handler is slow: what stands behind it in its lane waits with it, and
        needs no payload."""
        lane = blocking.lane
        if lane is None or not blocking.key:
            return
        dropped: Entry | None = None
        for entry in list(islice(lane.items, lane.items.index(blocking) + 1, None)):
            if entry.state == BEHIND:
                break  # and all that follow
            if entry.state != READY:
                continue
            if entry.offset <= self.position and not entry.row:
                self._drop(entry)  # its range still covers it
                dropped = dropped or entry
            else:
                entry.state, entry.message = HELD if entry.row else BEHIND, None
                self.loaded.pop(entry.offset, None)
                self.ready -= 1
        if lane.range is not None and dropped is not None:
            # Not earlier: what is handed out may be acked before its row is written, and must not be read back then.
            lane.range.begin_again(dropped.offset - 1)

    def _advance(self, lane: Lane, now: float) -> None:
        """Nothing of the lane is handed out: see what is its first message now."""
        self._absent.pop(lane.name, None)
        head = lane.head
        if head is None:
            if lane.range is not None:
                self._absent[lane.name] = lane
            else:
                self._forget(lane)
        elif head.state == BEHIND:
            self._absent[lane.name] = lane
        elif head.state == READY:
            self._offer(head)
        elif head.state == HELD and not head.mark:
            if head.due <= now:
                self._mark_due(head, now)
            else:
                heapq.heappush(self._waiting, (head.due, head.offset))

    def _forget(self, lane: Lane) -> None:
        if not lane.listed and lane.range is None and self._lanes.get(lane.name) is lane:
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
            self._waits_since = now  # the next one is due after as long again
        plan = self._write_plan(runs, now)
        # A slow message may also fill the memory with what stands behind it; once it has a row, that can be parked.
        if not self._acks_waiting and not self._crowded:
            self._waits_since = None
        elif self._waits_since is None or self.position > before:
            self._waits_since = now
        written = plan.rows or plan.deletes or plan.dead or plan.settled or plan.ranges or runs
        return plan if written or self.position > before else None

    def _walk(self) -> None:
        """Move P to the highest p <= F such that every message read in (P, p] is acked, has a row, or waits behind an
        earlier one of its key: then the key's range comes to cover it."""
        entries, final, target = self._entries, self.window.final, self.position
        for offset in self.window.offsets:
            if offset > final:
                break
            entry = entries[offset]
            if entry.state != ACKED and not entry.row:
                waits = entry.key and entry.state in (READY, BEHIND)
                if not waits or entry.lane is None or not entry.lane.blocked_by_row(entry):
                    break
                self._park(entry, entry.lane)
            target = offset
        else:
            if target > self.position:
                target = max(target, final)
        if target > self.position:
            self._pass(target)

    def _park(self, entry: Entry, lane: Lane) -> None:
        """The position is about to pass a message that waits: its key's range remembers it, and memory does not."""
        if entry.state == READY:
            self.ready -= 1
        lane.remove(entry)
        del self._entries[entry.offset]
        lane.range = self.ranges.extend(entry.key, entry.offset)

    def _pass(self, target: int) -> None:
        for offset in self.window.move(target):
            entry = self._entries.get(offset)
            if entry is None or entry.state != ACKED:
                continue
            if not entry.row:
                self._acks_waiting -= 1
            if entry.ack is not None:
                self._settled.append(entry.ack)
            if self.ranges.keep(offset, entry.key):
                if not entry.row:
                    self._writes[offset] = RowWrite(offset, True, NOT_IN_FLIGHT, 1)
                else:
                    del self._acked_rows[bisect_left(self._acked_rows, offset)]
            del self._entries[offset]
        self.claimed = max(self.claimed, target)

    def _flush(self) -> None:
        """Acks have waited long enough in memory: what holds the position back gets a row in flight, so that it can
        move on; acks above the horizon become acked rows. So does a message whose handler is slow, wherever it stands,
        so that what stands behind it in its lane takes no room."""
        full = not self.room
        for offset in self.window.offsets:
            entry = self._entries[offset]
            if offset > self.window.final and not full:
                break
            if entry.state == HANDED and not entry.row and entry.hand is not None:
                entry.count = entry.hand.attempt
                self._add_row(entry)
                mark = ALONE if entry.hand.alone else TOGETHER
                timeout = self.manners.visibility_timeout
                self._writes[offset] = RowWrite(offset, False, mark, entry.count, timeout)
                self._block(entry)
        if full:
            for entry in list(self.loaded.values()):
                if entry.lane is not None and entry.lane.items[0].state == HANDED:
                    self._block(entry.lane.items[0])
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

    def _write_plan(self, runs: list[Run], now: float) -> Plan:
        ranges = self._raise_lows(now)
        passed = bisect_right(self._acked_rows, self.position)
        deletes = self._acked_rows[:passed]
        del self._acked_rows[:passed]
        for offset in deletes:
            self._writes.pop(offset, None)
        rows = list(self._writes.values())
        if len(self._unsettled_rows) > 2 * len(self._entries) + STALE:
            self._unsettled_rows = sorted(set(filter(self._has_unsettled_row, self._unsettled_rows)))
        low = self._unsettled_rows
        while low and not self._has_unsettled_row(low[0]):
            heapq.heappop(low)
        lowest = self.ranges.lowest()
        self.watermark = min(
            self.position, low[0] - 1 if low else self.position, self.position if lowest is None else lowest
        )
        plan = Plan(
            self,
            self.position,
            self.watermark,
            self.claimed,
            rows,
            deletes,
            self._dead,
            self._settled,
            runs,
            ranges=ranges,
            taken_up=self._taken_up,
        )
        self._writes, self._dead, self._settled, self._taken_up = {}, [], [], set()
        return plan

    def _has_unsettled_row(self, offset: int) -> bool:
        entry = self._entries.get(offset)
        return entry is not None and entry.row and entry.state != ACKED

    def _raise_lows(self, now: float) -> list[StoredRange]:
        """Let each range that has changed begin behind what has a row by now, and what a look has found to be empty;
        return what to store."""
        stored: list[StoredRange] = []
        for one in self.ranges.take_touched():
            lane = self._lanes[one.key]
            before = one.low
            without_row = next((entry.offset for entry in lane.items if not entry.row), one.loaded + 1)
            released = one.raise_low(min(one.loaded, without_row - 1))
            for offset in released:
                insort(self._acked_rows, offset)
            stored.append(one.stored())
            if one.low > before or one.low >= one.high:
                self.ranges.was_raised(one)
            if one.low >= one.high:
                lane.range = None
                if not lane.busy:
                    self._advance(lane, now)
        return stored

    def release_plan(self, now: float) -> Plan:
        """Return what to write when the lease is given up: acks in memory become rows, the rest is handed back."""
        for entry in [e for e in self._entries.values() if e.state == HANDED and e.hand is not None]:
            assert entry.hand is not None
            self.finish(entry.hand, Outcome(HANDED_BACK), now)
        self._walk()
        self._flush()
        plan = self._write_plan([], now)
        plan.release = True
        self.lost = True
        return plan
