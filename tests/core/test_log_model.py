"""The engine's decisions against the invariants: the real AssignedPartition, SettlePlan, Reader and choice of the
Dispatcher over tables in memory.

Publishers commit in any order; owners read, dispatch, settle, crash and take over; an operator moves the group;
collection deletes.

The tables' side (`Tables`, `Group`) does with a plan's values what the operations' SQL does, and nothing else: every
decision is the engine's own. It also keeps what no table knows, and the invariants need: what was handled.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from dataclasses import dataclass, field
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sqlqueue.consumers.engine import log_end as following
from sqlqueue.consumers.engine import log_end as log_end_module
from sqlqueue.consumers.engine import reader as reader_module
from sqlqueue.consumers.engine.ownership import WorkingSet
from sqlqueue.consumers.engine.reader import Reader
from sqlqueue.consumers.handlers import executor as executor_module
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.core.flow import Rate
from sqlqueue.core.outcomes import COMMITTED, DEAD, LOST, POSTPONED, RELEASED, RETRIED, SUCCESS, UNSTARTED, Outcome
from sqlqueue.core.partition import arrivals, changes, key_limit, settling, window, writes
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.blocked import StoredRange
from sqlqueue.core.partition.key_limit import NO_LIMIT, KeyLimit
from sqlqueue.core.partition.ordering import HELD, IN_FLIGHT, READY
from sqlqueue.core.partition.ref import ConsumerOptions, PartitionRef
from sqlqueue.core.partition.window import Found
from sqlqueue.core.settle_plan import (
    ALONE,
    NOT_IN_FLIGHT,
    TOGETHER,
    Attempt,
    Execution,
    FetchedMessage,
    SettlePlan,
    StoredRow,
)
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.log.fetch import Head, Newest
from tests.core.choosing import Choice
from tests.core.weighing import fitting
from tests.logs import LOG

pytestmark = pytest.mark.once

OPEN, VISIBLE, ROLLED_BACK, COLLECTED = "open", "visible", "rolled back", "collected"
EXAMPLES = int(os.environ.get("PROTOCOL_EXAMPLES", "0"))
FLUSH = 5.0
LINGER, AHEAD, OFFSETS_AHEAD = 2.0, 2.0, 3
WEIGHTS = (1, 2, 1, 9)  # characters of messages
POISON = "a"  # the key whose messages, in some runs, wait by their own outcome
LONG = 10_000.0  # what waits so long by its own outcome does not become due in a drain


@dataclass
class Row:
    """A delivery-state row; `due` in the tables' time."""

    acked: bool
    in_flight: int
    count: int
    due: float = 0.0


@dataclass
class Group:
    """One group in one partition: its offset row, its delivery states, and (below) what has really happened."""

    position: int = 0
    watermark: int = 0
    claimed: int = 0
    token: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    ranges: dict[str, StoredRange] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)  # the log's
    done: set[int] = field(default_factory=set)  # handled to the end, or dead-lettered
    skipped: set[int] = field(default_factory=set)  # by an operator, who has moved the group beyond them
    started: dict[int, int] = field(default_factory=dict)  # charged starts of a handler
    effects: dict[int, int] = field(default_factory=dict)  # committed transactions of atomic handlers
    dead: dict[int, int] = field(default_factory=dict)
    unsettled_by_crash: bool = False
    lost: dict[int, tuple[float, set[int]]] = field(
        default_factory=dict
    )  # of each former token: when, what was visible

    def raise_token(self, tables: Tables) -> None:
        self.lost[self.token] = tables.now, set(tables.visible())
        self.token += 1

    def lowest(self) -> int:
        unacked = [o - 1 for o, row in self.rows.items() if not row.acked and o <= self.position]
        return min([self.position, *unacked, *(one.low for one in self.ranges.values())])

    def settled(self, offset: int) -> bool:
        row = self.rows.get(offset)
        return row.acked if row else offset <= self.position and not self.blocked(offset)

    def blocked(self, offset: int) -> bool:
        one = self.ranges.get(self.keys[offset - 1])
        return one is not None and one.low < offset <= one.high


class Tables:
    """The log, and time."""

    def __init__(self) -> None:
        self.status: list[str] = []
        self.keys: list[str] = []
        self.targets: list[str] = []
        self.left_out = 0  # by the groups' filter: each one of so many; negative: all but those
        self.rate_of_keys: Rate | None = None  # by the groups' limit
        self.most_of_a_key: int | None = None  # in flight, by the groups' limit
        self.share: int | None = None  # of each owner's memory, in characters; None: all that there is
        self.before: list[set[int]] = []  # what was visible when the offset was taken
        self.now = 100.0
        self.groups = {"one": Group(keys=self.keys), "two": Group(keys=self.keys)}
        self.pending: deque[tuple[int, str]] = deque()  # commits that are to happen between two statements

    def visible(self, above: int = 0, to: int | None = None) -> list[int]:
        end = len(self.status) if to is None else min(to, len(self.status))  # a claim may be ahead of the log
        return [o for o in range(above + 1, end + 1) if self.status[o - 1] == VISIBLE]

    def horizon(self) -> int:
        return self.status.index(OPEN) if OPEN in self.status else len(self.status)

    def message(self, offset: int) -> FetchedMessage:
        payload = "1" * (1 if self.share is None else WEIGHTS[offset % len(WEIGHTS)])
        return FetchedMessage(offset, self.keys[offset - 1], f"m{offset}", payload, None, 0, self.targets[offset - 1])

    # The filter.

    fields = ()

    def matches(self, message: tuple[object, ...]) -> bool:
        return not self.left_out or (message[0] % abs(self.left_out) > 0) is (self.left_out > 0)

    def select(self, rows):
        return list(filter(self.matches, rows))

    def concerns(self, offset: int, group: str) -> bool:
        """The group has to handle it."""
        return self.targets[offset - 1] in ("", group) and self.matches(self.message(offset))

    def interrupt(self) -> None:
        """Something else of the world happens here, between two statements."""
        if self.pending:
            offset, status = self.pending.popleft()
            if not offset:
                return
            if offset > len(self.status):
                self.take_offset(*status.split("/"))
            elif self.status[offset - 1] == OPEN or status == COLLECTED:
                self.status[offset - 1] = status

    def take_offset(self, key: str, target: str = "") -> int:
        self.before.append(set(self.visible()) | {o for o, s in enumerate(self.status, 1) if s == COLLECTED})
        self.status.append(OPEN)
        self.keys.append(key)
        self.targets.append(target)
        return len(self.status)

    def perf_counter(self) -> float:
        """The reader's clock, too: by a real one the same steps would do other things on a busy machine."""
        return self.now

    # What the reader's statements answer.

    def poll_head(self, alias: str, server=None, shared: bool = False, requested: bool = False) -> Head:
        self.interrupt()
        return Head(max(self.visible(), default=0), None, None, None)

    def watch(self, alias: str, low: int, high: int, server=None) -> dict[tuple[str, int, int], int]:
        self.interrupt()
        count = len(self.visible(low, high))
        return {("t", 0, 0): count} if count else {}

    def read_newest(self, alias: str, above: int, most: int, server=None) -> Newest:
        self.interrupt()
        offsets = self.visible(above)[:most]
        messages = {("t", 0, 0): [self.message(offset) for offset in offsets]} if offsets else {}
        return Newest(messages, len(offsets), offsets[-1] if offsets else above, None)

    def fetch(self, alias, reads, server=None):
        self.interrupt()
        return [self._read(read) for _, read in reads]

    def sift(self, alias, reads, server=None):
        found = self.fetch(alias, reads)
        self.interrupt()  # between what the filter looks at, and what it matches
        return list(map(self._sifted, found))

    def _sifted(self, found):
        matching = self.select(found.messages)
        there = [message for message in matching if self.status[message.offset - 1] == VISIBLE]
        others = [(*message, 0) for message in found.messages if message not in matching]
        gone = [message.offset for message in matching if message not in there]
        return found._replace(messages=there, left_out=others, gone=gone)

    def _read(self, read):
        seen = self.visible(read.since, read.start)[: read.looks] if read.looks else []
        offsets = self.visible(read.start, read.end)[: read.limit]
        count = self.fitting(offsets, read.size)
        return Found(seen, [self.message(o) for o in offsets[:count]], cut=count < len(offsets))

    def fitting(self, offsets: list[int], size: int | None) -> int:
        return fitting([self.message(offset).size for offset in offsets], size)

    def gather(self, alias, asked, server=None):
        return [self.gathered(*each) for each in asked]

    def gathered(self, address, offsets, size):
        self.interrupt()
        offsets = offsets[: self.fitting(offsets, size)]
        rows = self.groups[address.group].rows
        there = [o for o in offsets if self.status[o - 1] == VISIBLE]
        return {o: (self.stored(o, rows[o]) if o in rows else None, self.message(o)) for o in there}, len(offsets)

    def scan(self, alias, address, low, high, server=None):
        self.interrupt()
        return [(o, self.keys[o - 1]) for o in self.visible(low, high)[: window.SCAN_LIMIT]]

    def load(self, alias, asked, server=None):
        return [self.loaded_rows(*each) for each in asked]

    def loaded_rows(self, address, offsets, size):
        self.interrupt()
        offsets = offsets[: self.fitting(offsets, size)]
        rows = self.groups[address.group].rows
        return {o: (self.stored(o, rows[o]), self.loaded(o)) for o in offsets if o in rows}, len(offsets)

    def loaded(self, offset: int) -> FetchedMessage | None:
        return self.message(offset) if self.status[offset - 1] == VISIBLE else None

    def stored(self, offset: int, row: Row) -> StoredRow:
        return StoredRow(offset, row.acked, row.in_flight, row.count, row.due - self.now, self.keys[offset - 1])


class FakeHorizon:
    """The gate's answer: a candidate that was visible before is final once nothing at or below it is open."""

    def __init__(self, tables: Tables):
        self.tables, self.value, self.candidate = tables, 0, 0

    def probe(self, highest: int) -> int:
        self.tables.interrupt()
        self.candidate = max(self.candidate, highest)
        self.value = max(self.value, min(self.candidate, self.tables.horizon()))
        return self.value

    def all_visible(self, offset: int) -> None:
        self.value = max(self.value, offset)


class Owner:
    """One process's part in one group: a reader, an assigned partition while it holds the lease, and its handlers."""

    def __init__(self, tables: Tables, name: str, options: ConsumerOptions):
        self.tables, self.name, self.options = tables, name, options
        self.group = tables.groups[name]
        self.restart()

    def restart(self) -> None:
        self.reader = Reader(LOG, ServerIdentity(LOG))
        self.reader.log_end.horizon = FakeHorizon(self.tables)
        self.reader.log_end.gated = True  # whatever the suite's database is
        self.stream: AssignedPartition | None = None
        self.executions: list[Execution] = []
        self.running: dict[Attempt, Execution] = {}
        self.reports: deque[tuple[Attempt, Outcome]] = deque()
        self.choice = Choice(self.name, self.options, self.reader, self.tables.rate_of_keys)
        self.executor = HandlerExecutor(LOG, self.choice.consumer)
        self.unwritten: list[tuple[SettlePlan, float]] = []  # and when each was sent first

    def look(self, notified: bool = False) -> None:
        """Look for what is new, as the owner of its partition."""
        assert self.stream is not None
        working_set = WorkingSet()
        working_set.wake_all([self.stream], 0)
        self.reader.log_end.look(working_set, self.tables.now, notified=notified)

    def drop(self) -> None:
        """The token was stale: its partition is void, and so is what its handlers report from now on."""
        assert self.stream is not None
        self.stream.lease.lost = True
        self.stream = None
        self.executions, self.running = [], {}
        self.choice = Choice(self.name, self.options, self.reader, self.tables.rate_of_keys)
        self.reports.clear()

    # -- the operations, on the tables' side --------------------------------------------------------------------------

    def acquire(self) -> None:
        group, tables, horizon = self.group, self.tables, self.reader.log_end.horizon.value
        group.raise_token(tables)
        for offset in tables.visible(group.position, group.claimed):
            if offset not in group.rows and tables.targets[offset - 1] in ("", self.name):
                group.rows[offset] = Row(False, TOGETHER, 1, tables.now)
        if group.claimed > group.position:
            group.position = max(group.position, min(group.claimed, horizon))
        group.claimed = group.position
        group.watermark = max(group.watermark, group.lowest())
        self.stream = AssignedPartition(
            PartitionRef(self.name, "t", 0),
            self.options,
            id=1,
            token=group.token,
            position=group.position,
            watermark=group.watermark,
            claimed=group.claimed,
            rows=[tables.stored(o, row) for o, row in sorted(group.rows.items())],
            ranges=group.ranges.values(),
            now=tables.now,
            key_limit=KeyLimit(tables.most_of_a_key),
        )
        if tables.share is not None:
            self.stream.budget.share = tables.share

    def execute(self, plan: SettlePlan) -> bool:
        """Settle, as log/settle.py does; False if the token is stale."""
        group, lease = self.group, plan.lease
        if lease.token != group.token:
            return False
        settled = self.settled_already(plan)
        group.position = max(group.position, plan.position)
        group.watermark = max(group.watermark, plan.watermark)
        if plan.release or plan.falls_back:
            group.claimed = group.position if plan.release else max(group.position, plan.claimed)
        else:
            group.claimed = max(group.claimed, plan.claimed)
        for offset in plan.deletes:
            group.rows.pop(offset, None)
        for row in plan.rows:
            old = group.rows.get(row.offset)
            if row.offset in settled or (old and old.acked):
                continue
            group.rows[row.offset] = Row(row.acked, row.in_flight, row.retry_count, self.tables.now + row.delay)
        for one in plan.ranges:
            assert one.low >= group.ranges.get(one.key, one).low, f"the low of {one} fell"
            group.ranges[one.key] = one
            if one.low >= one.high:
                del group.ranges[one.key]
        for letter in plan.dead:
            if letter.message.offset not in settled:
                group.dead[letter.message.offset] = group.dead.get(letter.message.offset, 0) + 1
                group.done.add(letter.message.offset)
        return True

    def settled_already(self, plan: SettlePlan) -> set[int]:
        """What an atomic handler's own transaction has settled has the last word."""
        if not self.options.atomic:
            return set()
        offsets = {row.offset for row in plan.rows if not row.acked} | {dead.message.offset for dead in plan.dead}
        offsets -= plan.taken_up
        return {o for o in offsets if self.group.settled(o)}

    def commit(self, attempts: list[Attempt], execution: Execution) -> Outcome | None:
        """The last statements of an atomic handler, and its commit; None: LeaseLost, all rolled back."""
        group, lease = self.group, execution.lease
        if lease.token != group.token or any(attempt.outcome is not None for attempt in attempts):
            return None
        moved = None
        to = execution.move_for(attempts)
        if to is not None and group.position == execution.position:
            moved = group.position = to
            group.claimed = max(group.claimed, moved)
        else:
            for attempt in attempts:
                row = group.rows.get(attempt.offset)
                if row is None and (attempt.number != 1 or attempt.offset <= group.position):
                    return None
                if row is not None and (row.acked or not row.in_flight or row.count != attempt.number):
                    return None
            for attempt in attempts:
                group.rows[attempt.offset] = Row(True, NOT_IN_FLIGHT, attempt.number)
        for attempt in attempts:
            group.done.add(attempt.offset)
            group.effects[attempt.offset] = group.effects.get(attempt.offset, 0) + 1
            assert group.effects[attempt.offset] == 1, f"the atomic effects of {attempt.offset} were committed twice"
            assert attempt.offset not in group.dead, f"{attempt.offset} is dead, and was committed"
        if moved is not None:
            group.watermark = max(group.watermark, group.lowest())
        return COMMITTED if moved is None else Outcome("acked", committed=True, moved_to=moved)

    # -- the control thread's parts of an iteration --------------------------------------------------------------------

    def take_reports(self) -> None:
        while self.reports:
            attempt, outcome = self.reports.popleft()
            assert self.stream is not None
            if self.stream.finish_all([(attempt, outcome)], self.tables.now):
                self.choice.finished(attempt)

    def choose(self, most: int) -> list[Execution]:
        assert self.stream is not None
        executions = self.choice.choose(self.stream, most, self.tables.now)
        if self.tables.most_of_a_key is not None:
            for started in {h.message.key for each in executions for h in each.attempts if not h.deaths}:
                entries = self.stream.entries.values()
                held = [e.offset for e in entries if e.state == IN_FLIGHT and e.key == started]
                assert not started or len(held) <= self.tables.most_of_a_key, f"{held} of {started} are in flight"
        return executions

    def settle(self, most: int, flush: bool = False, linger: float = 0.0, steady: bool = False) -> None:
        """Choose, plan, write, start: what an iteration does at its end."""
        if self.stream is not None and self.write_again() and (plan := self.plan(most, flush, linger, steady)):
            self.write(plan, self.tables.now)

    def plan(self, most: int, flush: bool, linger: float = 0.0, steady: bool = False) -> SettlePlan | None:
        """steady: the log grows, so that what comes next may be claimed."""
        stream, end = self.stream, self.reader.log_end.highest + OFFSETS_AHEAD if steady else 0
        assert stream is not None
        executions = self.choose(most)
        plan = settling.plan(stream, self.tables.now, 0.0 if flush else FLUSH, executions, linger, end)
        if plan is None:
            self.executions += executions
        elif plan.ahead:
            waiting = [entry.offset for entry in stream.entries.values() if entry.state == READY]
            assert not waiting, f"{waiting} wait, and are claimed up to {plan.claimed}"
            assert plan.claimed <= len(self.tables.status) + OFFSETS_AHEAD
        return plan

    def write(self, plan: SettlePlan, sent: float) -> None:
        if not self.execute(plan):
            self.drop()
            return
        assert self.stream is not None
        settling.was_written(self.stream, plan, sent)
        self.executions += plan.executions

    def write_again(self) -> bool:
        """A plan whose reply was lost is executed again before anything else; False if that finds a stale token."""
        for plan, sent in list(self.unwritten):
            self.unwritten.remove((plan, sent))
            self.write(plan, sent)
        return self.stream is not None


KINDS = st.sampled_from(["ok", "ok", "ok", "retry", "wait", "no"])


def rough(machine: LogMachine) -> bool:
    return machine.faults


class LogMachine(RuleBasedStateMachine):
    """Two groups, two owners each, one partition."""

    faults = True  # of processes, and every step by itself
    heads = 3

    @initialize(
        ordering=st.sampled_from(["key", "key", "partition", "none"]),
        batch=st.booleans(),
        atomic=st.booleans(),
        attempts=st.sampled_from([2, 3, None]),
        size=st.integers(1, 3),
        left_out=st.sampled_from([0, 0, 2, 3, -3]),
        share=st.sampled_from([None, None, 20, 8, 1]),
    )
    def begin(
        self,
        ordering: str,
        batch: bool,
        atomic: bool,
        attempts: int | None,
        size: int,
        left_out: int = 0,
        limited: bool = False,
        most_of_a_key: int | None = None,
        share: int | None = None,
    ) -> None:
        self.tables = Tables()
        self.tables.share = share
        self.tables.most_of_a_key = most_of_a_key
        self.tables.rate_of_keys = Rate("20/m") if limited else None
        self.tables.left_out = left_out
        tables = self.tables
        self.patches = [
            mock.patch.object(log_end_module, "poll_head", tables.poll_head),
            mock.patch.object(log_end_module, "watch", tables.watch),
            mock.patch.object(following, "read_newest", tables.read_newest),
            mock.patch.object(following, "NEWEST_AT_ONCE", 3),
            mock.patch.object(reader_module, "fetch", tables.fetch),
            mock.patch.object(reader_module, "sift", tables.sift),
            mock.patch.object(reader_module, "load", tables.load),
            mock.patch.object(reader_module, "gather", tables.gather),
            mock.patch.object(reader_module, "scan", tables.scan),
            mock.patch.object(window, "WINDOW_LIMIT", 5),
            mock.patch.object(window, "HEADS_LIMIT", self.heads),
            mock.patch.object(window, "SCAN_LIMIT", 3),
            mock.patch.object(key_limit, "AHEAD", 2),
            mock.patch.object(writes, "AHEAD", AHEAD),
            mock.patch.object(writes, "FALLS_BACK", 4.0),
            mock.patch.object(writes, "REFRAINS", 3.0),
            mock.patch.object(executor_module, "now", tables.perf_counter),
            mock.patch.object(window, "LATE_LIMIT", 2),
            mock.patch.object(arrivals, "ENOUGH", 2),
            mock.patch.object(arrivals, "RARE", 2),
            mock.patch.object(reader_module, "time", tables),
        ]
        for patch in self.patches:
            patch.start()
        where = self.tables if left_out else None
        self.options = ConsumerOptions(ordering, attempts, 60.0, batch, size, atomic, where=where)
        self.owners = [Owner(tables, name, self.options) for name in ("one", "two") for _ in range(2)]
        self.watermarks = dict.fromkeys(tables.groups, 0)

    def teardown(self) -> None:
        if not hasattr(self, "patches"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.drain()
        finally:
            for patch in self.patches:
                patch.stop()

    # -- publishers ---------------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(["a", "a", "b", ""]), group=st.sampled_from(["", "", "", "one"]), commit=st.booleans())
    def publish(self, key: str, group: str, commit: bool) -> None:
        offset = self.tables.take_offset(key, group)
        if commit:
            self.tables.status[offset - 1] = VISIBLE

    @rule(
        keys=st.sampled_from(["a", "a", "b", "", "ab", "aab"]),
        count=st.integers(4, 8),
        late=st.sampled_from([(), (), (0,), (1,), (3,), (7,), (0, 1), (0, 2), (1, 2), (0, 3, 4)]),
    )
    def burst(self, keys: str, count: int, late: tuple[int, ...]) -> None:
        """More messages than a window holds, of a few keys in turn; some may be of transactions that go on."""
        for number in range(count):
            offset = self.tables.take_offset(keys[number % len(keys)] if keys else "")
            if number not in late:
                self.tables.status[offset - 1] = VISIBLE

    @precondition(lambda self: OPEN in self.tables.status)
    @rule(
        data=st.data(),
        status=st.sampled_from([VISIBLE, VISIBLE, VISIBLE, ROLLED_BACK]),
        then=st.sampled_from(["", "all", "its key's next", "deletion"]),
    )
    def end(self, data: st.DataObject, status: str, then: str) -> None:
        """A publisher's transaction ends, in any order, or all do. Its key's next messages may follow at once; or a
        person deletes one that was visible before, so that there are as many as there were."""
        tables = self.tables
        opened = [o for o, s in enumerate(tables.status, 1) if s == OPEN]
        if then == "all":
            tables.status = [status if each == OPEN else each for each in tables.status]
            return
        ended = data.draw(st.sampled_from(opened))
        deletable = self.deletable(ended) if then == "deletion" else []
        tables.status[ended - 1] = status
        if then == "its key's next":
            for _ in range(2):
                tables.status[tables.take_offset(tables.keys[ended - 1]) - 1] = VISIBLE
        if deletable:
            tables.status[data.draw(st.sampled_from(deletable)) - 1] = COLLECTED

    def deletable(self, above: int = 0) -> list[int]:
        """What a person may delete: not what a group has a row for."""
        groups = self.tables.groups.values()
        return [o for o in self.tables.visible(above) if not any(o in group.rows for group in groups)]

    def interruptions(self, data: st.DataObject) -> None:
        """Let publishers do something between the statements of what comes next."""
        opened = [o for o, s in enumerate(self.tables.status, 1) if s == OPEN]
        self.tables.pending.clear()
        self.tables.pending += [(0, "")] * data.draw(st.integers(0, 4))  # between these statements nothing happens
        for what in data.draw(st.lists(st.sampled_from(["commit", "publish"]), max_size=3)):
            if opened and what == "commit":
                self.tables.pending.append((opened.pop(), VISIBLE))
            else:
                offset = len(self.tables.status) + 1 + len([1 for o, s in self.tables.pending if "/" in s])
                self.tables.pending += [(offset, data.draw(st.sampled_from("ab")) + "/"), (offset, VISIBLE)]

    # -- owners -------------------------------------------------------------------------------------------------------

    def owner(self, index: int) -> Owner | None:
        """One that holds a lease, or thinks so."""
        active = [owner for owner in self.owners if owner.stream is not None]
        return active[index % len(active)] if active else None

    def somebody_owns(self) -> bool:
        return any(owner.stream is not None for owner in self.owners)

    @precondition(somebody_owns)
    @rule(
        index=st.integers(0, 3),
        data=st.data(),
        most=st.integers(1, 4),
        flush=st.sampled_from([False, False, True]),
        kinds=st.lists(KINDS, max_size=6),
        steady=st.booleans(),
        notified=st.booleans(),
    )
    def turn(
        self,
        index: int,
        data: st.DataObject,
        most: int,
        flush: bool,
        kinds: list[str],
        steady: bool,
        notified: bool,
    ) -> None:
        """A whole iteration, and some of the handlers that it starts."""
        owner = self.owner(index)
        self.interruptions(data)
        owner.take_reports()
        owner.look(notified=notified)
        owner.reader.read([owner.stream], self.tables.now)
        self.tables.pending.clear()
        self.load(owner)
        owner.settle(most, flush, LINGER if steady else 0.0, steady)
        for kind in kinds:
            if owner.stream is None:
                return
            self.start_one(owner, 0)
            self.finish_one(owner, 0, kind)

    @precondition(somebody_owns)
    @rule(
        index=st.integers(0, 3),
        turns=st.integers(2, 8),
        poison=st.sampled_from([None, None, POISON]),
        steady=st.booleans(),
    )
    def work_on(self, index: int, turns: int, poison: str | None, steady: bool = False) -> None:
        """Many whole iterations: a window fills if nothing moves the position on."""
        owner = self.owner(index)
        for _ in range(turns):
            if owner is not None and owner.stream is not None and owner.write_again():
                self.work(owner, poison, steady)

    @precondition(rough)
    @rule(index=st.integers(0, 3), steal=st.integers(0, 5))
    def acquire(self, index: int, steal: int) -> None:
        """Take the lease: free, or (rarely) expired while its holder goes on."""
        owner = self.owners[index]
        held = any(o.stream and o.stream.token == o.group.token for o in self.owners if o.name == owner.name)
        if owner.stream is not None or (held and steal):
            return
        if held:
            owner.group.unsettled_by_crash = True
            self.forget_acks_in_memory(owner)
        owner.acquire()

    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3), data=st.data(), notified=st.booleans())
    def look(self, index: int, data: st.DataObject, notified: bool) -> None:
        if owner := self.owner(index):
            self.interruptions(data)
            owner.look(notified=notified)
            self.tables.pending.clear()

    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3), data=st.data())
    def read(self, index: int, data: st.DataObject) -> None:
        if owner := self.owner(index):
            self.interruptions(data)
            owner.reader.read([owner.stream], self.tables.now)
            self.tables.pending.clear()

    @precondition(rough)
    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3))
    def load_due(self, index: int) -> None:
        if owner := self.owner(index):
            self.load(owner)

    def load(self, owner: Owner, server=None) -> None:
        owner.reader.load_due([owner.stream], self.tables.now)

    @precondition(rough)
    @precondition(somebody_owns)
    @rule(
        index=st.integers(0, 3),
        most=st.integers(0, 4),
        flush=st.booleans(),
        linger=st.sampled_from([0.0, LINGER]),
        steady=st.booleans(),
    )
    def settle(self, index: int, most: int, flush: bool, linger: float, steady: bool) -> None:
        if owner := self.owner(index):
            owner.settle(most, flush, linger, steady)

    @precondition(rough)
    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3), flush=st.booleans(), steady=st.booleans())
    def settle_without_reply(self, index: int, flush: bool, steady: bool) -> None:
        """The plan is written, and its reply is lost: it will be written again, before anything else."""
        owner = self.owner(index)
        if owner is None or not owner.write_again():
            return
        plan = owner.plan(2, flush, LINGER if steady else 0.0, steady)
        if plan is not None:
            owner.execute(plan)
            owner.unwritten.append((plan, self.tables.now))

    @precondition(rough)
    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3), which=st.integers(0, 5))
    def start(self, index: int, which: int) -> None:
        """A handler begins."""
        if owner := self.owner(index):
            self.start_one(owner, which)

    def start_one(self, owner: Owner, which: int) -> None:
        executions = [execution for execution in owner.executions if not execution.stopped]
        if not executions:
            return
        execution = executions[which % len(executions)]
        if execution.batch:
            attempts = []
            while (attempt := execution.start_next()) is not None:
                attempts.append(attempt)
        elif any(r is execution for r in owner.running.values()):
            return
        else:
            attempt = execution.start_next()
            attempts = [attempt] if attempt else []
        if attempts and not owner.executor.started(attempts):
            owner.reports += [(attempt, UNSTARTED) for attempt in (*attempts, *execution.stop())]
            attempts = []
        for attempt in attempts:
            self.begins(owner, attempt)
            owner.running[attempt] = execution
        if not attempts:
            owner.executions.remove(execution)

    def begins(self, owner: Owner, attempt: Attempt) -> None:
        """A handler starts: in order, and with its attempts counted."""
        group, offset, tables = owner.group, attempt.offset, self.tables
        if attempt.lease.token != group.token:
            # A zombie: it may start what it holds, and its outcome will be refused. What came after the successor has
            # counted, only for a moment.
            when, known = group.lost[attempt.lease.token]
            assert offset in known or tables.now < when + AHEAD, f"{offset} begins, unknown to the next owner"
            return
        assert tables.concerns(offset, owner.name), f"{offset} is delivered to {owner.name}, whose filter leaves it out"
        group.started[offset] = group.started.get(offset, 0) + 1
        assert offset not in group.done, f"{offset} is delivered again after its settle"
        assert attempt.number >= group.started[offset], f"{offset}: started {group.started[offset]} times, {attempt}"
        exact = attempt.number == group.started[offset]
        assert exact or group.unsettled_by_crash, f"{offset}: attempt {attempt.number} at start {group.started[offset]}"
        row = group.rows.get(offset)
        counted = row.count if row else int(offset <= group.claimed)
        assert counted >= attempt.number, (
            f"{offset} begins at attempt {attempt.number}, and the tables know of {counted}"
        )
        beside = [h for h in owner.running if h.outcome is None and h.lease.token == group.token]
        if attempt.deaths or any(h.deaths for h in beside):
            assert not beside, f"{offset} begins beside {[h.offset for h in beside]}, and one of them was in doubt"
        together = {attempt} if not self.options.batch else {h for h, r in owner.running.items()} | {attempt}
        for other in tables.visible():
            if other == offset or self.lane(other) != self.lane(offset) or other in group.skipped:
                continue
            if not tables.concerns(other, owner.name):
                continue
            running = any(h.offset == other and h not in together for h in owner.running if h.outcome is None)
            assert not running, f"{other} and {offset} of one lane run side by side"
            if other < offset and other in tables.before[offset - 1]:
                with_it = any(h.offset == other for r in owner.executions for h in r.attempts if r.batch)
                reported = any(h.offset == other and o.kind in ("acked", DEAD) for h, o in owner.reports)
                assert other in group.done or with_it or reported, f"{offset} starts before {other} is settled"

    def lane(self, offset: int) -> object:
        key = self.tables.keys[offset - 1]
        return {"key": key or offset, "partition": "all", "none": offset}[self.options.ordering]

    @precondition(rough)
    @rule(
        index=st.integers(0, 3),
        which=st.integers(0, 5),
        kind=st.sampled_from(["ok", "ok", "ok", "retry", "wait", "no"]),
        most=st.sampled_from([99, 1, 2]),
    )
    def finish(self, index: int, which: int, kind: str, most: int) -> None:
        """A handler ends, and reports; of a batch perhaps its first messages only."""
        if owner := self.owner(index):
            self.finish_one(owner, which, kind, most)

    def finish_one(self, owner: Owner, which: int, kind: str, most: int = 99) -> None:
        if not owner.running:
            return
        attempt = list(owner.running)[which % len(owner.running)]
        execution = owner.running[attempt]
        attempts = [h for h in execution.attempts if h in owner.running] if execution.batch else [attempt]
        self.report(owner, execution, attempts[:most], kind)

    def report(self, owner: Owner, execution: Execution, attempts: list[Attempt], kind: str) -> None:
        outcome = None
        if kind == "ok":
            outcome = owner.commit(attempts, execution) if self.options.atomic else SUCCESS
        for attempt in attempts:
            del owner.running[attempt]
        if outcome is not None and outcome.moved_to is not None:
            execution.moved(attempts, outcome.moved_to)
        left = [h for h in execution.attempts if h in owner.running]
        if not left and (execution.batch or (outcome or UNSTARTED).kind != "acked"):
            if execution in owner.executions:
                owner.executions.remove(execution)
            owner.reports += [(later, UNSTARTED) for later in execution.stop()]
        if left and (outcome is None or outcome.kind != "acked"):  # of a batch
            self.hold_up(owner, left, attempts)
        for attempt in attempts:
            alone = (
                kind == "wait long" and self.tables.keys[attempt.offset - 1] != POISON
            )  # in a batch with a poisoned one
            said = outcome or self.failure("wait" if alone else kind, attempt)
            owner.reports.append((attempt, said))
            if attempt.outcome is None and attempt.lease.token == owner.group.token and said.kind == POSTPONED:
                owner.group.started[attempt.offset] -= 1
            if said is SUCCESS and attempt.outcome is None and attempt.lease.token == owner.group.token:
                owner.group.done.add(attempt.offset)

    def hold_up(self, owner: Owner, left: list[Attempt], waiting: list[Attempt]) -> None:
        """Release what is behind a message that waits."""
        for attempt in left:
            if any(self.lane(h.offset) == self.lane(attempt.offset) for h in waiting):
                self.take_back(owner, attempt)

    def take_back(self, owner: Owner, attempt: Attempt) -> None:
        """Release an attempt that has started, uncharged."""
        del owner.running[attempt]
        owner.reports.append((attempt, UNSTARTED))
        if attempt.outcome is None and attempt.lease.token == owner.group.token:
            owner.group.started[attempt.offset] -= 1

    def failure(self, kind: str, attempt: Attempt) -> Outcome:
        if kind == "ok":
            return Outcome(LOST)  # an atomic handler's LeaseLost
        if kind in ("wait", "wait long"):
            return Outcome(POSTPONED, LONG if kind == "wait long" else 1.0)
        last = self.options.max_attempts is not None and attempt.number >= self.options.max_attempts
        return Outcome(DEAD, error="no") if kind == "no" or last else Outcome(RETRIED, 1.0, "again")

    @precondition(rough)
    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3))
    def take_reports(self, index: int) -> None:
        if owner := self.owner(index):
            owner.take_reports()

    @precondition(rough)
    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3), which=st.integers(0, 5))
    def hand_back(self, index: int, which: int) -> None:
        """An execution is stopped: what has not started is released, uncharged."""
        owner = self.owner(index)
        if owner and owner.executions:
            execution = owner.executions[which % len(owner.executions)]
            owner.reports += [(attempt, UNSTARTED) for attempt in execution.stop()]

    @precondition(rough)
    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3), which=st.integers(0, 5))
    def overrun(self, index: int, which: int) -> None:
        """A visibility timeout passes; the handler goes on, and may report (or commit) later."""
        owner = self.owner(index)
        late = [attempt for attempt in owner.running if attempt.outcome is None] if owner else []
        if not owner or not late:
            return
        attempt = late[which % len(late)]
        execution = owner.running[attempt]
        owner.reports += [(later, UNSTARTED) for later in execution.stop()]
        outcome = self.failure("retry", attempt)
        if changes.finish(owner.stream, attempt, outcome, self.tables.now):
            owner.choice.finished(attempt)
        for other in [h for h in execution.attempts if h in owner.running and h is not attempt]:
            self.take_back(owner, other)  # of a batch: those that had returned

    @precondition(rough)
    @precondition(somebody_owns)
    @rule(index=st.integers(0, 3))
    def release(self, index: int) -> None:
        """A graceful end of a tenancy. Handlers that still run are strays: their outcomes are void."""
        owner = self.owner(index)
        if owner is None or not owner.write_again():
            return
        owner.take_reports()
        running = list(owner.running)
        plan = settling.release_plan(owner.stream, self.tables.now)
        if owner.execute(plan):
            for attempt in running:
                if attempt.outcome is not None and attempt.outcome.kind == RELEASED:
                    owner.group.started[attempt.offset] -= 1
            unwritten = [o for o in owner.group.done if not owner.group.settled(o)]
            assert not unwritten, f"the acks of {unwritten} were lost at a graceful release"
        owner.drop()
        owner.unwritten.clear()

    @precondition(rough)
    @rule(index=st.integers(0, 3), chance=st.integers(0, 2))
    def crash(self, index: int, chance: int = 0) -> None:
        if chance:
            return
        owner = self.owners[index]
        if owner.stream is not None and owner.stream.token == owner.group.token:
            self.forget_acks_in_memory(owner)
            owner.group.unsettled_by_crash = True
        owner.restart()

    def forget_acks_in_memory(self, owner: Owner) -> None:
        """What was handled and not yet written will be delivered again: at least once."""
        group = owner.group
        group.done = {o for o in group.done if group.settled(o) or o in group.dead}

    def steal(self, owner: Owner) -> None:
        """Another owner takes the partition, and this one goes on."""
        for rival in self.owners:
            if rival.name == owner.name and rival is not owner and rival.stream is None:
                owner.group.unsettled_by_crash = True
                self.forget_acks_in_memory(rival)
                rival.acquire()

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.tables.now += seconds

    # -- people and the collector -------------------------------------------------------------------------------------

    @precondition(rough)
    @rule(name=st.sampled_from(["one", "two"]), share=st.integers(0, 4), chance=st.integers(0, 2))
    def reset(self, name: str, share: int, chance: int) -> None:
        if chance:
            return
        group, tables = self.tables.groups[name], self.tables
        oldest = max((o for o, s in enumerate(tables.status, 1) if s == COLLECTED), default=0)
        target = min(max(len(tables.status) * share // 4, oldest), tables.horizon())
        group.raise_token(tables)
        group.rows = {o: row for o, row in group.rows.items() if o <= target}
        passed = [o for o in tables.visible(group.position, target) if o not in group.rows]
        kept = [one._replace(high=min(one.high, target)) for one in group.ranges.values() if one.low < target]
        group.ranges = {one.key: one for one in kept}
        group.skipped = {o for o in group.skipped | set(passed) if o <= target}
        # A zombie's unwritten acks are lost with its token.
        group.done = {o for o in group.done if o <= target and (group.settled(o) or o in group.dead)} | {
            o for o in group.done if o <= target and o in passed
        }
        for counts in (group.started, group.effects, group.dead):
            for offset in [o for o in counts if o > target]:
                del counts[offset]
        group.position = group.claimed = target
        group.watermark = self.watermarks[name] = group.lowest()
        group.unsettled_by_crash = True

    @rule(data=st.data(), chance=st.integers(0, 3))
    def discard(self, data: st.DataObject, chance: int) -> None:
        """An operator deletes a message, whichever owner has read it."""
        if not chance and (deletable := self.deletable()):
            self.tables.status[data.draw(st.sampled_from(deletable)) - 1] = COLLECTED

    @rule()
    def collect(self) -> None:
        tables = self.tables
        floor = min(group.watermark for group in tables.groups.values())
        for offset in tables.visible(0, floor):
            for name, group in tables.groups.items():
                finished = offset in group.done or offset in group.skipped
                mine = tables.concerns(offset, name)
                assert finished or not mine, f"{offset} is collected before {name} has done with it"
            tables.status[offset - 1] = COLLECTED

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_passed_that_may_still_come(self) -> None:
        for group in self.tables.groups.values() if hasattr(self, "tables") else ():
            assert group.position <= self.tables.horizon()

    @invariant()
    def what_counts_as_done_was_handled(self) -> None:
        if not hasattr(self, "tables"):
            return
        for name, group in self.tables.groups.items():
            for offset in self.tables.visible():
                if group.settled(offset) and self.tables.concerns(offset, name):
                    assert offset in group.done | group.skipped, f"{offset} counts as done for {name}, and was not"

    @invariant()
    def the_watermark_is_the_lowest_unsettled(self) -> None:
        for name, group in self.tables.groups.items() if hasattr(self, "tables") else ():
            exact = group.lowest()
            assert group.watermark == exact or (group.watermark < exact and self.options.atomic), (
                group.watermark,
                exact,
            )
            assert group.watermark >= self.watermarks[name], "a watermark fell"
            self.watermarks[name] = group.watermark

    @invariant()
    def the_memory_is_bounded(self) -> None:
        for owner in self.owners if hasattr(self, "owners") else ():
            if owner.stream is not None:
                check_bounds(owner.stream)

    # -- the end ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Faults stop, publishers commit, an owner of each group works on: all is settled, and nothing is left over."""
        tables = self.tables
        tables.status = [VISIBLE if status == OPEN else status for status in tables.status]
        tables.pending.clear()
        deleted = [offset for offset, status in enumerate(tables.status, 1) if status == COLLECTED]
        if any(group.position < max(deleted, default=0) for group in tables.groups.values()):
            # The log's end was deleted before it was seen from a horizon: only the next message moves that beyond it.
            tables.status[tables.take_offset("") - 1] = VISIBLE
        for owner in (self.owners[0], self.owners[2]):
            rival = self.owners[self.owners.index(owner) + 1]
            for each in (owner, rival):
                if each.stream is not None and each.stream.token != each.group.token:
                    self.crash(self.owners.index(each))
            if rival.stream is not None:
                owner = rival
            if owner.stream is None:
                owner.acquire()
            self.work(owner)  # takes in what was reported
            if owner.stream is None:
                owner.acquire()
            tables.now += LONG
            if self.options.ordering == "key" or tables.most_of_a_key is not None:
                self.keep_working(owner, POISON)
                self.nothing_else_stands_still(owner)
                tables.now += LONG
            self.keep_working(owner, None)
            self.is_finished(owner)

    def keep_working(self, owner: Owner, poison: str | None) -> None:
        for _ in range(60 + 12 * len(self.tables.status)):
            self.work(owner, poison)
            if owner.stream is None:
                owner.acquire()
            self.the_watermark_is_the_lowest_unsettled()

    def nothing_else_stands_still(self, owner: Owner) -> None:
        """What does not stand behind a key that waits by its own outcome is delivered, and the marks are where they
        belong, however many messages wait behind that one."""
        group, tables = owner.group, self.tables
        open_ = [o for o in tables.visible() if tables.concerns(o, owner.name)]
        open_ = [o for o in open_ if o not in group.done | group.skipped]
        stuck = [o for o in open_ if tables.keys[o - 1] != POISON]
        if owner.running and owner.stream is not None and owner.stream.in_doubt.entries:
            return  # these wait until nothing is in flight, and what is in flight of the poisoned key runs on
        assert not stuck, f"{stuck} stand still, though they do not wait behind {open_}: {group}"
        if tables.most_of_a_key is not None:
            return  # what is in flight needs no row before something is settled behind it
        end = max(tables.visible(), default=0)
        assert group.position >= end, f"{group} stands still below {end}"
        assert group.watermark == (group.lowest() if open_ else group.position)
        assert not open_ or group.watermark < open_[0]

    def work(self, owner: Owner, poison: str | None = None, steady: bool = False, notified: bool = False) -> None:
        """One iteration, in the order of the real one, and every handler. What has the poisoned key waits long."""
        owner.take_reports()
        owner.look(notified=notified)
        owner.reader.read([owner.stream], self.tables.now)
        self.load(owner)
        owner.settle(3, linger=LINGER if steady else 0.0, steady=steady)
        if owner.stream is None:
            return
        for which in range(20):
            self.start_one(owner, which if self.tables.most_of_a_key is not None else 0)
            for attempt, execution in list(owner.running.items()):
                if attempt in owner.running:
                    attempts = [h for h in execution.attempts if h in owner.running] if execution.batch else [attempt]
                    poisoned = poison and any(self.tables.keys[h.offset - 1] == poison for h in attempts)
                    if poisoned and self.tables.most_of_a_key is not None and not attempt.deaths:
                        continue  # it runs on: its key is held by its limit
                    self.report(owner, execution, attempts, "wait long" if poisoned else "ok")
        self.tables.now += 1.0

    def is_finished(self, owner: Owner) -> None:
        group, tables, stream = owner.group, self.tables, owner.stream
        mine = [o for o in tables.visible() if tables.concerns(o, owner.name)]
        missing = [o for o in mine if o not in group.done | group.skipped]
        assert not missing, f"{missing} never came to {owner.name}: {group}"
        assert all(group.settled(o) for o in mine), group
        assert stream is not None
        assert group.position == group.watermark >= max(tables.visible(), default=0), group
        assert group.claimed == group.position, group
        assert not group.rows, group
        assert not group.ranges, group
        counters = (stream.in_flight, stream.queues.ready, stream.writes.heads, stream.queues.absent)
        assert not any(counters), counters
        left = (
            stream.entries,
            stream.in_doubt.entries,
            stream.delays.due,
            stream.writes.rows,
            stream.writes.acks,
            stream.writes.acked,
            stream.window.offsets,
            stream.sieve is not None and stream.sieve.left_out,
        )
        assert not any(left), left
        assert not stream.queues._by_name, stream.queues._by_name
        assert not stream.queues.candidates
        assert stream.settled_up
        assert not owner.choice.outstanding
        assert not owner.choice.alone


FAULTS = ["crash", "another owner", "another owner", "reset", "release", "no reply", "hand back"]


class SteadyMachine(LogMachine):
    """Owners that claim ahead as much as they may, and lose their partitions meanwhile."""

    faults = False  # but those below
    publish = burst = end = turn = look = read = discard = None  # less happens, so that this happens often

    @initialize(
        ordering=st.sampled_from(["key", "key", "partition", "none"]),
        batch=st.booleans(),
        atomic=st.booleans(),
        attempts=st.sampled_from([1, 2, None]),
    )
    def begin(self, ordering: str, batch: bool, atomic: bool, attempts: int | None) -> None:
        super().begin(ordering, batch, atomic, attempts, 3)
        self.owners[0].acquire()

    @precondition(LogMachine.somebody_owns)
    @rule(
        index=st.integers(0, 3),
        messages=st.integers(1, 5),
        seconds=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        kinds=st.lists(KINDS, max_size=3),
        last=st.sampled_from([0, 0, 1, 2]),
        fault=st.sampled_from(["", "", *FAULTS]),
    )
    def stream(self, index: int, messages: int, seconds: float, kinds: list[str], last: int, fault: str) -> None:
        """Messages of many keys come one by one, and the owner takes each. Of the last ones no handler has begun."""
        for number in range(messages):
            offset = self.tables.take_offset(f"k{len(self.tables.status)}")
            self.tables.status[offset - 1] = VISIBLE
            self.tables.now += seconds
            owner = self.owner(index)
            if owner is None or not owner.write_again():
                return
            owner.take_reports()
            owner.look(notified=True)
            owner.reader.read([owner.stream], self.tables.now)
            self.load(owner)
            owner.settle(3, linger=LINGER, steady=True)
            if number < messages - last:
                self.start_one(owner, number)
                for kind in kinds or ["ok"]:
                    self.finish_one(owner, 0, kind)
        if fault:
            self.suffer(index, fault, 2)

    @rule(
        index=st.integers(0, 3),
        fault=st.sampled_from(FAULTS),
        share=st.integers(0, 4),
    )
    def suffer(self, index: int, fault: str, share: int) -> None:
        owner = self.owner(index)
        if owner is None or fault == "crash":
            self.crash(index, 0)
        elif fault == "reset":
            self.reset(owner.name, share, 0)
        elif fault == "no reply":
            self.settle_without_reply(index, flush=False, steady=True)
        elif fault == "hand back":
            self.hand_back(index, 0)
        else:
            self.release(index) if fault == "release" else self.steal(owner)

    @rule(index=st.integers(0, 3))
    def come(self, index: int) -> None:
        self.acquire(index, 1)

    @precondition(LogMachine.somebody_owns)
    @rule(index=st.integers(0, 3), seconds=st.sampled_from([0.0, 1.0, AHEAD]), which=st.integers(0, 5))
    def begin_late(self, index: int, seconds: float, which: int) -> None:
        """A handler begins that has waited for a thread."""
        self.tables.now += seconds
        if owner := self.owner(index):
            self.start_one(owner, which)


class QuietMachine(LogMachine):
    """One owner that goes on, keys in order, next to no room: what publishers, handlers and a person do to it."""

    faults = False

    @initialize(size=st.integers(1, 2), left_out=st.sampled_from([0, 2, -3]))
    def begin(self, size: int, left_out: int = 0) -> None:
        super().begin("key", False, False, 3, size, left_out)
        self.owners[0].acquire()


class LimitedMachine(LogMachine):
    """Groups with a rate of each key."""

    @initialize(atomic=st.booleans(), attempts=st.sampled_from([2, None]), size=st.integers(1, 2))
    def begin(self, atomic: bool, attempts: int | None, size: int) -> None:
        super().begin("key", False, atomic, attempts, size, limited=True)


class KeyLimitMachine(LogMachine):
    """Groups without an order, with a limit of what is in flight of a key; it is changed now and then."""

    heads = 1_000  # everything in flight has a row, while its key is held

    @initialize(
        atomic=st.booleans(),
        attempts=st.sampled_from([2, None]),
        size=st.integers(1, 2),
        left_out=st.sampled_from([0, 0, 2]),
        most=st.sampled_from([1, 2, None]),
    )
    def begin(self, atomic: bool, attempts: int | None, size: int, left_out: int, most: int | None) -> None:
        super().begin("none", False, atomic, attempts, size, left_out, most_of_a_key=most)

    @rule(most=st.sampled_from([1, 2, 3, None]))
    def change_limit(self, most: int | None) -> None:
        self.tables.most_of_a_key = most
        for owner in self.owners:
            if owner.stream is not None:
                owner.stream.queues.limit.most = NO_LIMIT if most is None else most
                owner.stream.queues.follow_limit(owner.stream.entries.values())


def check_bounds(stream: AssignedPartition) -> None:
    """No more is in memory than a window, and no more payloads than can be dispatched soon."""
    batch, entries = stream.options.batch_size, stream.entries.values()
    unwritten = [entry for entry in entries if entry.offset > stream.window.position and not entry.row]
    assert len(unwritten) <= window.WINDOW_LIMIT + 6 * batch, "more is remembered than a window and what is read"
    assert stream.queues.ready <= 6 * batch, "more payloads are in memory than can be dispatched soon"
    of_handlers = sum(entry.attempt.message.size for entry in entries if entry.attempt is not None)
    assert stream.held == of_handlers + sum(entry.message.size for entry in entries if entry.state == READY)
    heaviest = max((entry.message.size for entry in entries if entry.message is not None), default=0)
    assert stream.held <= stream.budget.share + 6 * heaviest, "more bytes are in memory than its share"
    if stream.options.ordering == "key":
        for entry in entries:
            waits = entry.queue is not None and entry.queue.entries and entry.queue.entries[0].state == HELD
            assert not (waits and entry.state == READY), f"{entry.offset} is in memory, and waits behind its key"


@pytest.mark.parametrize(
    ("machine", "examples"),
    [(LogMachine, 50), (SteadyMachine, 35), (LimitedMachine, 15), (KeyLimitMachine, 25)],
)
def test_every_interleaving_keeps_the_invariants(machine: type[LogMachine], examples: int) -> None:
    """Nothing lost, nothing out of order, attempts counted, nothing left over: whatever happens in whatever order."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


assert ALONE > TOGETHER > NOT_IN_FLIGHT  # a row in flight is told by its number
