"""The model of the engine finds the faults for which the protocol has a rule: each is planted, and has to show.

What is drawn often is left to be drawn; the rest is told to the model step by step, without the fault and with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sqlqueue.consumers.engine.dispatcher import Dispatcher
from sqlqueue.consumers.engine.log_end import Following, LogEnd
from sqlqueue.consumers.engine.reader import Reader
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.core.partition import arrivals, changes, settling
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.blocked import KeyRanges
from sqlqueue.core.partition.ordering import OrderingQueue
from sqlqueue.core.partition.queues import OrderingQueues
from sqlqueue.core.partition.window import Found, ReadWindow
from sqlqueue.core.partition.writes import ClaimAhead
from tests.core.planting import Fault
from tests.core.test_log_model import (
    AHEAD,
    COLLECTED,
    LONG,
    VISIBLE,
    KeyLimitMachine,
    LimitedMachine,
    LogMachine,
    QuietMachine,
)

pytestmark = pytest.mark.once

EXAMPLES = int(os.environ.get("PROTOCOL_EXAMPLES", "0"))
UNTIL_FOUND = 300
STEPS = 40

FAULTS = {
    "final reads need no room": Fault(
        ReadWindow, "next_read", "not final_due or self.known(self.position, self.final) >= held", "True"
    ),
    "what waits behind a key lies in a range": Fault(
        changes, "cover", "queue is None or not queue.blocked_by_row(entry)", "True"
    ),
}


def finds(machine: type[LogMachine], examples: int) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.parametrize("rule", FAULTS)
def test_it_finds_the_engine_without_the_rule_that(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[rule].plant(monkeypatch)
    finds(QuietMachine, EXAMPLES or UNTIL_FOUND)


class Scene:
    """A quiet machine that is told what happens."""

    def __init__(self, size: int = 1, left_out: int = 0, most_of_a_key: int | None = None, rated: bool = False) -> None:
        if rated:
            self.machine = LimitedMachine()
            self.machine.begin(atomic=False, attempts=2, size=size)
            self.machine.owners[0].acquire()
        elif most_of_a_key is None:
            self.machine = QuietMachine()
            self.machine.begin(size=size, left_out=left_out)
        else:
            self.machine = KeyLimitMachine()
            self.machine.begin(atomic=False, attempts=2, size=size, left_out=left_out, most=most_of_a_key)
            self.machine.owners[0].acquire()
        self.tables, self.owner = self.machine.tables, self.machine.owners[0]

    def publish(self, keys: str, late: tuple[int, ...] = ()) -> None:
        self.machine.burst(keys, count=len(keys), late=late)

    def ends(self, *offsets: int) -> None:
        for offset in offsets:
            self.tables.status[offset - 1] = VISIBLE

    def work(self, turns: int, poison: str | None = None, steady: bool = False) -> None:
        for _ in range(turns):
            self.machine.work_on(0, 1, poison, steady)
            self.machine.what_counts_as_done_was_handled()
            self.machine.the_memory_is_bounded()


def a_late_one_is_there_when_others_are_read(scene: Scene) -> None:
    scene.publish("bac", late=(0, 1))
    scene.work(2)
    scene.ends(2)  # the horizon stays below it
    scene.publish("aa")
    scene.work(1)


def one_is_not_seen_among_those_that_are_counted(scene: Scene) -> None:
    scene.publish("a")
    scene.work(2)
    scene.publish("bac", late=(0,))
    scene.work(2)
    scene.ends(2)
    scene.work(3)


def one_comes_late_before_another_that_is_due(scene: Scene) -> None:
    """All of a key that may start one in three seconds."""
    scene.publish("aaa", late=(0, 2))
    reads(scene)
    scene.publish("a")
    reads(scene)
    scene.machine.start_one(scene.owner, 0)
    scene.machine.finish_one(scene.owner, 0, "ok")
    scene.work(2)
    for late in (3, 1):
        scene.ends(late)
        reads(scene)
    scene.work(4)


def is_notified(scene: Scene, turns: int = 1) -> None:
    for _ in range(turns):
        scene.machine.work(scene.owner, notified=True)
        scene.machine.what_counts_as_done_was_handled()
        scene.machine.the_memory_is_bounded()


def one_is_not_among_the_newest(scene: Scene) -> None:
    scene.publish("a")
    scene.work(2)
    scene.publish("ba", late=(0,))
    is_notified(scene, 2)
    scene.ends(2)
    scene.work(3)


def the_newest_are_not_the_next_ones(scene: Scene) -> None:
    scene.publish("abcdefghij")
    scene.owner.look()
    scene.owner.reader.read([scene.owner.stream], scene.tables.now)
    scene.owner.settle(2)
    for _ in range(2):
        scene.machine.start_one(scene.owner, 0)
        scene.machine.finish_one(scene.owner, 0, "ok")
    scene.owner.take_reports()
    scene.owner.settle(2)
    for _ in range(2):
        scene.machine.start_one(scene.owner, 0)
        scene.machine.finish_one(scene.owner, 0, "ok")
    scene.publish("a")
    is_notified(scene)
    scene.work(6)


def one_comes_late_and_another_is_deleted(scene: Scene) -> None:
    scene.publish("ab", late=(0,))
    scene.work(2)
    scene.ends(1)
    scene.tables.status[1] = COLLECTED
    scene.work(3)


def one_comes_between_the_read_and_the_next_statement(scene: Scene) -> None:
    scene.publish("ab", late=(0,))
    scene.tables.pending.extend([(0, "")] * 4)  # the poll of the head, the probe, the watch, the read
    scene.tables.pending.append((1, VISIBLE))
    scene.work(3)


def one_was_acked_before_those_that_fail(scene: Scene) -> None:
    scene.publish("aaa", late=(0, 1))
    scene.work(2)
    scene.ends(1, 2)
    scene.publish("a")
    scene.work(6, poison="a")
    scene.tables.now += LONG
    scene.work(6)


def more_of_a_key_come_while_its_range_is_used_up(scene: Scene) -> None:
    scene.publish("aaaa")
    scene.work(6, poison="a")
    scene.tables.now += LONG
    for _ in range(6):
        scene.publish("a")
        scene.work(1)


def fewer_are_dispatched_than_were_taken_up(scene: Scene) -> None:
    scene.publish("aaaa")
    scene.work(6, poison="a")
    scene.tables.now += LONG
    scene.work(1)
    scene.owner.take_reports()
    scene.owner.reader.read([scene.owner.stream], scene.tables.now)
    scene.owner.settle(1)
    scene.work(1)


def some_are_released_behind_one_that_overran(scene: Scene) -> None:
    scene.publish("aaaa")
    scene.work(6, poison="a")
    scene.tables.now += LONG
    scene.work(1)
    scene.owner.take_reports()
    scene.owner.reader.read([scene.owner.stream], scene.tables.now)
    scene.owner.settle(2)
    scene.machine.start_one(scene.owner, 0)
    scene.machine.overrun(0, 0)
    scene.owner.take_reports()
    scene.machine.the_memory_is_bounded()


def two_are_in_doubt(scene: Scene) -> None:
    scene.publish("ab")
    for crashes in (True, False):
        for _ in range(3):
            scene.owner.look()
            scene.owner.reader.read([scene.owner.stream], scene.tables.now)
            scene.owner.settle(2)
            for which in (0, 1):
                scene.machine.start_one(scene.owner, which)
        if crashes:
            scene.machine.crash(0, 0)
            scene.owner.acquire()


def what_matches_is_deleted_before_it_is_read_whole(scene: Scene) -> None:
    scene.publish("bbbbbbbb")
    # The poll of the head, the probe, the watch, a read of whole messages, and one of what the filter looks at.
    scene.tables.pending.extend([(0, "")] * 5)
    scene.tables.pending.append((3, COLLECTED))
    scene.work(3)
    assert scene.tables.status[2] == COLLECTED
    assert scene.tables.groups["one"].done >= {6}


def one_is_acked_and_lies_in_the_range_that_is_used_up(scene: Scene) -> None:
    """The next messages of its key are looked for before the plan that stores its ack."""
    scene.publish("aaaaa", late=(0, 1, 2))
    scene.ends(3)
    scene.owner.look()
    scene.owner.reader.read([scene.owner.stream], scene.tables.now)
    scene.owner.settle(1)
    scene.machine.start_one(scene.owner, 0)
    scene.machine.finish_one(scene.owner, 0, "retry")
    scene.ends(1, 2)
    scene.work(1)
    scene.tables.now += LONG
    scene.work(4)


def claimed_ahead(scene: Scene) -> None:
    """The log grows steadily, and the owner keeps up."""
    for _ in range(3):
        scene.publish("b")
        scene.work(1, steady=True)
    assert scene.owner.group.claimed > len(scene.tables.status)
    scene.tables.now -= 1.0  # no time has passed since the last write


def reads(scene: Scene, most: int = 2) -> None:
    """An iteration up to the handlers, in which no position is due."""
    scene.owner.take_reports()
    scene.owner.look()
    scene.owner.reader.read([scene.owner.stream], scene.tables.now)
    scene.owner.settle(most, linger=LONG, steady=True)


def another_owner_comes_and_a_handler_begins_late(scene: Scene) -> None:
    claimed_ahead(scene)
    scene.machine.steal(scene.owner)
    scene.publish("b")
    reads(scene)
    assert scene.owner.executions
    scene.tables.now += AHEAD
    scene.machine.start_one(scene.owner, 0)


def another_owner_comes_and_the_former_one_goes_on(scene: Scene) -> None:
    claimed_ahead(scene)
    scene.machine.steal(scene.owner)
    scene.tables.now += AHEAD
    scene.publish("b")
    reads(scene)
    scene.machine.start_one(scene.owner, 0)


def more_come_than_are_claimed(scene: Scene) -> None:
    claimed_ahead(scene)
    scene.publish("cdefghij")
    for which in range(6):
        reads(scene)
        scene.machine.start_one(scene.owner, which)


def some_wait_while_others_are_handled(scene: Scene) -> None:
    claimed_ahead(scene)
    scene.publish("abab")
    reads(scene, most=1)
    scene.tables.now += AHEAD
    reads(scene, most=1)


TOLD = [
    (
        another_owner_comes_and_a_handler_begins_late,
        [Fault(HandlerExecutor, "started", "moment >= attempt.claimed_until", "False")],
        "begins, unknown to the next owner",
    ),
    (
        another_owner_comes_and_the_former_one_goes_on,
        [
            Fault(ClaimAhead, "covers", "now >= self.until", "False"),
            Fault(HandlerExecutor, "started", "moment >= attempt.claimed_until", "0.0 > attempt.claimed_until"),
        ],
        "begins, unknown to the next owner",
    ),
    (
        more_come_than_are_claimed,
        [Fault(ClaimAhead, "covers", "and attempt.offset <= self.claimed", "")],
        "and the tables know of 0",
    ),
    (
        some_wait_while_others_are_handled,
        [Fault(settling, "_claims_to", "waits or ", "")],
        "wait, and are claimed up to",
    ),
    (
        one_is_acked_and_lies_in_the_range_that_is_used_up,
        [Fault(arrivals, "take_up", "p.writes.rows.get(message.offset)", "None")],
        "is delivered again after its settle",
    ),
    (
        a_late_one_is_there_when_others_are_read,
        [
            Fault(AssignedPartition, "take_in", "        if self.window.late:\n            return 0\n", ""),
            Fault(ReadWindow, "was_read", "self.final = max(", "self.final = self.final if self.late else max("),
        ],
        "starts before 2 is settled",
    ),
    (
        one_is_not_seen_among_those_that_are_counted,
        [Fault(LogEnd, "_watch_all", "sum(seen.values()) ==", "1 + sum(seen.values()) >=")],
        "2 counts as done for one, and was not",
    ),
    (
        one_comes_late_before_another_that_is_due,
        [Fault(OrderingQueues, "came_due", "queue.entries[0].state == HELD", "False")],
        "is in memory, and waits behind its key",
    ),
    (
        one_is_not_among_the_newest,
        [Fault(LogEnd, "_follow", "newest.total < newest.last - low", "1 + newest.total < newest.last - low")],
        "2 counts as done for one, and was not",
    ),
    (
        the_newest_are_not_the_next_ones,
        [Fault(Following, "already_read", "read.start < self._above or", "")],
        "counts as done for one, and was not",
    ),
    (
        one_comes_late_and_another_is_deleted,
        [Fault(ReadWindow, "compare", "remembered != list(seen)", "len(remembered) != len(seen)")],
        "1 counts as done for one, and was not",
    ),
    (
        one_comes_between_the_read_and_the_next_statement,
        [
            Fault(
                Reader,
                "_read",
                "for (assigned, read), found in zip(wanting, self._fetch(wanting)):",
                "fetched, reached = self._fetch(wanting), self.log_end.horizon.probe(self.log_end.highest)\n"
                "    for (assigned, read), found in zip(wanting, fetched):",
            )
        ],
        "1 counts as done for one, and was not",
    ),
    (
        one_was_acked_before_those_that_fail,
        [Fault(KeyRanges, "keep", "found is None or offset <= found.low", "True")],
        "3 is delivered again after its settle",
    ),
    (
        more_of_a_key_come_while_its_range_is_used_up,
        [
            Fault(OrderingQueue, "has_before", "self.range is not None", "False"),
            Fault(OrderingQueues, "receive", "queue.range is None", "True"),
            Fault(OrderingQueue, "ready_at_head", "self.range.loaded", "math.inf"),
            Fault(OrderingQueue, "reaches", "self.range is None or", "True or"),
            Fault(OrderingQueue, "blocked_by_row", "self.range is not None or", ""),
        ],
        "is settled",
    ),
    (
        fewer_are_dispatched_than_were_taken_up,
        [Fault(OrderingQueues, "raise_lows", "min(one.loaded, without_row - 1)", "one.loaded")],
        "counts as done for one, and was not",
    ),
    (
        some_are_released_behind_one_that_overran,
        [
            Fault(
                changes,
                "_is_behind",
                "queue.entries[0].state == HELD",
                "False",
            )
        ],
        "is in memory, and waits behind",
    ),
    (
        two_are_in_doubt,
        [
            Fault(Dispatcher, "_choose", "if self.in_flight.alone:", "if False:"),
            Fault(Dispatcher, "_choose_in_doubt", "if self.in_flight:", "if False:"),
        ],
        "and one of them was in doubt",
    ),
    (
        what_matches_is_deleted_before_it_is_read_whole,
        [Fault(Found, "total", " + len(self.gone)", "")],
        "6 counts as done for one, and was not",
    ),
]
OPTIONS = {
    one_is_acked_and_lies_in_the_range_that_is_used_up: {"size": 2, "most_of_a_key": 1},
    a_late_one_is_there_when_others_are_read: {"size": 1},
    what_matches_is_deleted_before_it_is_read_whole: {"size": 1, "left_out": -3},
    one_comes_late_before_another_that_is_due: {"size": 1, "rated": True},
}


@pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])
@pytest.mark.parametrize(("happens", "faults", "said"), TOLD, ids=[happens.__name__ for happens, _, _ in TOLD])
def test_it_shows_when(
    happens: Callable[[Scene], None],
    faults: list[Fault],
    said: str,
    planted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for fault in faults if planted else ():
        fault.plant(monkeypatch)
    scene = Scene(**OPTIONS.get(happens, {"size": 2}))
    try:
        if planted:
            scene.machine.drain = lambda: None
            with pytest.raises(AssertionError, match=said):
                happens(scene)
        else:
            happens(scene)
    finally:
        scene.machine.teardown()
