"""Delivering, with the transactions of two consumer processes, their handlers, publishers and a person put together
statement by statement: one group, one partition, and every process may take it from the other at any time.

Nothing that is not acked is passed; nothing acked comes again; the watermark passes acked messages only; a stale token
changes nothing; what is dispatched has been charged before; a message begins only after those before it in its ordering
queue; collection deletes only what is acked. Once the faults stop, everything is settled that is not behind a key which
waits by its own outcome, and then that, too. The limits are tiny, so that they are reached.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import Error, transaction
from django.test import override_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sqlqueue import Postpone, Reject, Retry, publish
from sqlqueue.consumers.engine.throttle import Pace
from sqlqueue.core.partition import window as window_module
from sqlqueue.core.partition import writes as writes_module
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.log import collect as collect_module
from sqlqueue.log import fetch as fetch_module
from sqlqueue.log.collect import collect
from sqlqueue.log.fence import LOCK_SHARED, PREDICATE
from sqlqueue.log.groups import register
from sqlqueue.models import (
    BlockedRange,
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    PartitionLease,
    Receipt,
    Topic,
    dead_letter_topic,
)
from sqlqueue.operations.move import move
from tests.app.models import Effect
from tests.logs import LOG
from tests.protocol import tables
from tests.protocol.exploring import Broken, Rewriting, explore, finds, promise
from tests.protocol.processes import FOREVER, Process
from tests.protocol.stage import READ_COMMITTED, REPEATABLE_READ, Actor, stage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(36_000), pytest.mark.session]

SEATS = (0, 1)
PUBLISHERS = ("publisher 1", "publisher 2")
PERSON = "person"
ACTORS = (*PUBLISHERS, PERSON, "control 1", "handlers 1", "control 2", "handlers 2")
STEPS = 40
GROUP = "g"
OK, RETRY, WAIT, NO = "ok", "retry", "wait", "no"
MAX_ATTEMPTS = 3
TINY = (
    (window_module, "WINDOW_LIMIT", 5),
    (window_module, "HEADS_LIMIT", 3),
    (window_module, "SCAN_LIMIT", 3),
    (fetch_module, "SCAN_LIMIT", 3),
    (window_module, "LATE_LIMIT", 3),
)
# A claim ahead holds for good: what a former owner begins by it is refused anyway.
UNBOUND = ((writes_module, "AHEAD", math.inf), (writes_module, "FALLS_BACK", 250.0))
OFFSETS_AHEAD = 4
WAITING_KEY, LONG = "a", 3_600.0  # the key that waits at the end, and for how many seconds
ROUNDS = 60  # of one process alone, within which everything has to be settled
ROW_LOCKS = pytest.mark.database("mariadb", "mysql", "postgresql")
LOCKS = (" LOCK IN SHARE MODE", " FOR SHARE", " FOR UPDATE")
_topics = itertools.count(1)


class SettleMachine(RuleBasedStateMachine):
    """See the module."""

    stage: Any

    # -- the world ----------------------------------------------------------------------------------------------------

    @initialize(
        ordering=st.sampled_from(["key", "key", "partition", "none"]),
        atomic=st.booleans(),
        batch=st.booleans(),
        size=st.integers(1, 4),
        isolation=st.sampled_from([READ_COMMITTED, READ_COMMITTED, REPEATABLE_READ]),
        steady=st.booleans(),
    )
    def begin(self, ordering: str, atomic: bool, batch: bool, size: int, isolation: str, steady: bool = False) -> None:
        self.topic, self.ordering, self.atomic, self.isolation = f"settle{next(_topics)}", ordering, atomic, isolation
        self.batch, self.waits, self.steady = batch, False, steady
        topics = {self.topic: {"partitions": 1, "retention": 0.0}}
        self.settings = ExitStack()
        self.settings.enter_context(
            override_settings(SQLQUEUE={"TOPICS": topics, "WAKE": False, "FLUSH_INTERVAL": 0.0})
        )
        for module, name, limit in (*TINY, *UNBOUND):
            self.settings.enter_context(mock.patch.object(module, name, limit))
        self.settings.enter_context(mock.patch.object(Pace, "measure", lambda *given: self.measure(*given)))
        register(LOG, GROUP, self.topic)
        self.options = {
            "group": GROUP,
            "ordering": ordering,
            "atomic": atomic,
            "batch": batch,
            "batch_size": size,
            "max_attempts": MAX_ATTEMPTS,
        }
        self.actors: dict[str, Actor] = {actor.name: actor for actor in self.stage.actors}
        self.processes = [self.new_process(seat) for seat in SEATS]
        self.begun: list[tuple[Process, list[Any]]] = []
        self.keys: dict[int, str] = {}  # of what was published
        self.before: dict[int, frozenset[int]] = {}  # what was visible when a message took its offset
        self.done: dict[int, int] = {}  # by offset: the token under which a handler has returned
        self.charged: Counter[int] = Counter()  # begun attempts
        self.serials: set[int] = set()  # of the attempts that have begun
        self.spent: Counter[int] = Counter()  # effects from before a move of the group
        self.horizon = Horizon(LOG)  # the collector's
        self.now = tables.read(self.topic, GROUP)

    def new_process(self, seat: int) -> Process:
        control, handlers = self.actors[f"control {seat + 1}"], self.actors[f"handlers {seat + 1}"]
        return Process(control, handlers, self.topic, self.handle, **self.options)

    def measure(self, pace: Pace, now: float, highest: int) -> None:
        """With `steady` every process takes itself for one that settles often, and whose log grows."""
        pace.linger, pace.ahead = (FOREVER, OFFSETS_AHEAD) if self.steady else (0.0, 0)

    def process_of(self, actor: Actor) -> Process | None:
        return next((p for p in self.processes if actor in (p.control, p.handlers)), None)

    def handle(self, process: Process, deliveries: list[Any]) -> None:
        """What every handler does, in its actor's thread."""
        self.begun.append((process, deliveries))
        process.handlers.park("the handler's work")
        if self.atomic:
            for delivery in deliveries:
                Effect.objects.create(name=self.topic, value=str(delivery.offset))
        waits = self.waits and deliveries[0].key == WAITING_KEY
        said = WAIT if waits else process.says.pop(0) if process.says else OK
        if said != OK:
            if said == WAIT:
                self.charged.subtract(delivery.offset for delivery in deliveries)
            raise {RETRY: Retry(delay=0), WAIT: Postpone(delay=LONG if waits else 0), NO: Reject("no")}[said]
        if not self.atomic:
            self.done.update((delivery.offset, token_of(delivery)) for delivery in deliveries)

    def advance(self, actor: Actor, steps: int, operation: Callable[[], object] | None, **manners: Any) -> None:
        """Let an actor take some steps; with `operation`, that is what it begins if it has nothing to do."""
        if actor.idle and operation is not None:
            actor.start(operation, **manners)
            self.look()
        for _ in range(steps):
            if actor.idle:
                break
            actor.step()
            self.look()

    # -- what may happen ----------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(PUBLISHERS),
        keys=st.lists(st.sampled_from(["a", "a", "b", ""]), min_size=1, max_size=3),
        end=st.sampled_from(["autocommit", "commit", "commit", "roll back"]),
        steps=st.integers(1, 4),
        isolation=st.sampled_from([READ_COMMITTED, REPEATABLE_READ]),
    )
    def publish(self, name: str, keys: list[str], end: str, steps: int, isolation: str) -> None:
        self.advance(self.actors[name], steps, lambda: self.publish_keys(keys, end), isolation=isolation)

    def publish_keys(self, keys: list[str], end: str) -> None:
        if end == "autocommit":
            self.publish_each(keys)
            return
        with transaction.atomic():
            self.publish_each(keys)
            transaction.set_rollback(end == "roll back")

    def publish_each(self, keys: list[str]) -> None:
        for key in keys:
            offset = publish(self.topic, 1, key=key).offset
            self.keys[offset], self.before[offset] = key, self.now.messages

    @rule(
        seat=st.sampled_from(SEATS),
        takes=st.sampled_from([False, False, True]),
        steps=st.integers(1, 12),
        patient=st.booleans(),
    )
    def control(self, seat: int, takes: bool, steps: int, patient: bool) -> None:
        process = self.processes[seat]
        operation = process.take if takes or not process.holding else process.run_once
        self.advance(process.control, steps, operation, patient=patient, isolation=self.isolation)

    @rule(
        seat=st.sampled_from(SEATS),
        steps=st.integers(1, 12),
        says=st.lists(st.sampled_from([OK, OK, RETRY, WAIT, NO]), max_size=3),
        patient=st.booleans(),
    )
    def handlers(self, seat: int, steps: int, says: list[str], patient: bool) -> None:
        process = self.processes[seat]
        if process.handlers.idle:
            process.says = list(says)
        work = process.queue.work if process.queue.runs else None
        self.advance(process.handlers, steps, work, patient=patient, isolation=self.isolation)

    @rule(
        what=st.sampled_from(["crash", "crash and free", "close", "cut", "lose the reply", "reset"]),
        seat=st.sampled_from(SEATS),
        name=st.sampled_from(ACTORS),
        share=st.integers(0, 3),
        steps=st.integers(1, 20),
    )
    def disturb(self, what: str, seat: int, name: str, share: int, steps: int) -> None:
        """A process or a connection ends, or a person does something."""
        actor, process = self.actors[name], self.processes[seat]
        if what == "cut":
            actor.cut()
            self.look()
        elif what == "lose the reply":  # of its next commit
            actor.loses_reply = True
        elif what == "close":
            self.close(seat)
        elif what.startswith("crash"):
            self.end_process(seat)
            if what == "crash and free":  # by its supervisor
                self.advance(process.control, 5, process.free)
        else:
            offsets = sorted(self.now.messages)
            target = offsets[(len(offsets) - 1) * share // 3] - (share == 0) if offsets else 0
            self.advance(self.actors[PERSON], steps, partial(move, LOG, GROUP, self.topic, target))

    @rule(steps=st.integers(5, 40))
    def collect(self, steps: int) -> None:
        """A collector's iteration: some twenty statements."""
        self.advance(self.actors[PERSON], steps, self.collect_once)

    def collect_once(self) -> None:
        self.horizon.probe(highest_offset(LOG))
        collect(LOG, self.horizon, batches=10)

    def close(self, seat: int) -> None:
        process = self.processes[seat]
        if process.control.idle:
            self.advance(process.control, 30, process.close, isolation=self.isolation)
            self.charged.clear()  # what was released is not charged
            self.end_process(seat)

    def end_process(self, seat: int) -> None:
        process = self.processes[seat]
        process.control.crash()
        process.handlers.crash()
        self.look()
        self.processes[seat] = self.new_process(seat)

    # -- what must not ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Hold what everybody sees now against what was seen before the last step."""
        self.check_errors()
        movers = [actor for actor in self.stage.actors if actor.wrote]
        if movers:
            for actor in movers:
                actor.wrote = False
            before, self.now = self.now, tables.read(self.topic, GROUP)
            self.compare(before, self.now, movers)
        begun, self.begun = self.begun, []
        for process, deliveries in begun:
            self.check_begin(process, deliveries)

    def check_errors(self) -> None:
        for actor in self.stage.actors:
            error, actor.error = (actor.error, None) if actor.idle else (None, actor.error)
            if error is not None:
                known = isinstance(error, Error) and retries.classify(error) is not retries.ErrorKind.OTHER
                promise(known and self.process_of(actor) is None, f"{actor.name} has failed: {error!r}")

    def compare(self, before: tables.Tables, now: tables.Tables, movers: list[Actor]) -> None:
        newly = {o for o in now.messages if now.settled(o) and not (o in before.messages and before.settled(o))}
        undone = {o for o in now.messages & before.messages if before.settled(o) and not now.settled(o)}
        promise(now.token >= before.token and now.lease_token >= before.lease_token, "a token has come back")
        promise(now.token == now.lease_token, f"the lease's token is {now.lease_token}, the offset's {now.token}")
        promise(now.watermark <= now.position <= now.claimed, f"W <= P <= C does not hold: {now}")
        passed = sorted(o for o in now.messages if o <= now.watermark and not now.settled(o))
        promise(not passed, f"the watermark {now.watermark} has passed {passed}, which are not acked")
        promise(self.atomic or now.watermark == now.lowest, f"the watermark is {now.watermark}, not {now.lowest}")
        gone = sorted(o for o in before.messages - now.messages if o > before.watermark)
        promise(not gone, f"{gone} were collected before they were acked")
        if now.token == before.token:
            self.compare_settled(before, now, newly, undone, movers)
        elif now.holder == "":
            self.note_reset(before, now, undone)
        else:
            promise(not newly, f"{sorted(newly)} are taken for settled by who takes over")
            promise(not undone, f"{sorted(undone)} are forgotten by who takes over")
        doubled = [o for o, count in Counter(now.effects).items() if count > 1 + self.spent[o]]
        promise(not doubled, f"the effects of {doubled} were committed twice")
        halves = [o for o in now.effects if o in now.messages and self.is_effect(o, now) and not now.settled(o)]
        promise(not halves, f"the effects of {halves} were committed without their ack")

    def compare_settled(
        self, before: tables.Tables, now: tables.Tables, newly: set[int], undone: set[int], movers: list[Actor]
    ) -> None:
        promise(not undone, f"{sorted(undone)} were settled, and are not any more")
        lost = sorted(
            o for o in newly if self.done.get(o) != now.token and not self.is_effect(o, now) and o not in now.dead
        )
        promise(not lost, f"{lost} are passed, and were not handled")
        if now.standing != before.standing:
            owners = [p for p in map(self.process_of, movers) if p is not None and now.token in p.tokens]
            promise(owners, f"{[actor.name for actor in movers]} have no right to settle: {before} {now}")

    def note_reset(self, before: tables.Tables, now: tables.Tables, undone: set[int]) -> None:
        forgotten = [o for o, row in before.rows.items() if not row.acked and o <= now.position and o not in now.rows]
        promise(not forgotten, f"the move to {now.position} has forgotten {forgotten}, which stand before it")
        self.spent = Counter(now.effects)
        for offset in [o for o in self.charged if o > now.position]:
            del self.charged[offset]

    def is_effect(self, offset: int, now: tables.Tables) -> bool:
        return now.effects.count(offset) > self.spent[offset]

    def check_begin(self, process: Process, deliveries: list[Any]) -> None:
        now, company = self.now, {delivery.offset for delivery in deliveries}
        for delivery in deliveries:
            offset, attempt = delivery.offset, delivery.attempt
            if token_of(delivery) != now.token:
                continue
            promise(not now.settled(offset), f"{offset} begins after it was settled")
            row = now.rows.get(offset)
            charged = row.in_flight and row.count == attempt if row else attempt == 1 and offset <= now.claimed
            promise(charged, f"attempt {attempt} of {offset} begins before it was charged: {now}")
            serial = delivery._attempt.serial
            if serial not in self.serials:  # else its transaction met a deadlock, and is run again
                promise(attempt > self.charged[offset], f"attempt {attempt} of {offset} was counted before")
                self.serials.add(serial)
                self.charged[offset] += 1
            for other in self.before.get(offset, frozenset()) - company:
                if other < offset and other in now.messages and self.same_lane(other, offset):
                    ready = now.settled(other) or self.done.get(other) == now.token
                    promise(ready, f"{offset} begins before {other} of its ordering queue is done")

    def same_lane(self, one: int, other: int) -> bool:
        if self.ordering == "key":
            return bool(self.keys.get(one)) and self.keys.get(one) == self.keys.get(other)
        return self.ordering == "partition"

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "now"):
            return
        try:
            self.drain()
        finally:
            for actor in self.stage.actors:
                actor.crash()
            self.clean_up()
            self.settings.close()

    def drain(self) -> None:
        """The faults stop, one process stays: everything is settled."""
        for actor in self.stage.actors:
            actor.loses_reply = False
        self.steady = False
        self.end_process(1)
        while busy := [actor for actor in self.stage.actors if not actor.idle]:
            for actor in busy:
                self.advance(actor, 1, None)
        self.processes[0].says = []
        self.waits = self.ordering == "key" and not self.batch  # a batch waits as a whole
        if self.waits:
            left = self.go_on(lambda offset: self.now.keys[offset] != WAITING_KEY)
            promise(not left, f"{left} stand still, although only the key {WAITING_KEY!r} waits: {self.now}")
            self.waits = False
            DeliveryState.objects.filter(topic=self.topic).update(invisible_until=DatabaseNow())
        left = self.go_on(lambda offset: True)
        promise(not left and not self.now.rows and not self.now.ranges, f"{left} are never settled: {self.now}")
        promise(self.now.watermark == self.now.position, f"the watermark stays behind: {self.now}")

    def go_on(self, wanted: Callable[[int], bool]) -> list[int]:
        """Let the process that stays work until these are settled, and, if they are all, until nothing is left over;
        return those that are not."""
        process = self.processes[0]
        for _ in range(ROUNDS):
            left = sorted(o for o in self.now.messages if wanted(o) and not self.now.settled(o))
            if not left and (self.waits or not self.now.rows):
                return []
            self.finish(process.control, process.run_once if process.holding else process.take)
            while process.queue.runs:
                self.finish(process.handlers, process.queue.work)
        return sorted(o for o in self.now.messages if wanted(o) and not self.now.settled(o))

    def finish(self, actor: Actor, operation: Callable[[], object]) -> None:
        self.advance(actor, 1_000, operation, isolation=self.isolation)
        assert actor.idle, f"no end of {actor.name}: {actor.at}"

    def clean_up(self) -> None:
        for model in (DeliveryState, BlockedRange, Offset, PartitionLease, Receipt, ConsumerGroup):
            model.objects.filter(topic=self.topic).delete()
        Effect.objects.filter(name=self.topic).delete()
        names = [self.topic, dead_letter_topic(self.topic)]
        Message.objects.filter(topic__in=names).delete()
        Topic.objects.filter(name__in=names).delete()


def token_of(delivery: Any) -> int:
    return delivery._attempt.lease.token


def test_whatever_happens_between_two_statements_nothing_is_lost_and_nothing_comes_again() -> None:
    explore(SettleMachine, ACTORS, examples=12, steps=STEPS)


# -- that it can fail --------------------------------------------------------------------------------------------------


def finds_fault(*replacements: tuple[str, str]) -> str:
    return finds(SettleMachine, ACTORS, STEPS, Rewriting(*replacements))


@pytest.mark.long
@pytest.mark.once
def test_it_finds_settles_that_are_not_fenced() -> None:
    found = finds_fault(("WHERE id = %s AND fencing_token = %s", "WHERE id = %s AND (fencing_token = %s OR 1 = 1)"))
    assert "no right to settle" in found


@pytest.mark.once
def test_it_finds_what_is_dispatched_without_a_claim() -> None:
    found = finds_fault(("claimed_to, %s), updated_at", "position, 0 * %s), updated_at"))
    assert "before it was charged" in found or "P <= C" in found


@pytest.mark.once
def test_it_finds_collection_that_does_not_wait_for_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        collect_module, "acked_by_all", lambda alias, topic, streams, horizon: dict.fromkeys(streams, horizon)
    )
    assert "before they were acked" in finds(SettleMachine, ACTORS, STEPS)


@ROW_LOCKS
@pytest.mark.parametrize("locked", [True, False])
def test_an_atomic_settle_that_does_not_hold_the_fence_shows(locked: bool) -> None:
    """Its token is looked at, the partition is taken from it, and then it commits: drawn so seldom that it is told."""
    read = LOCK_SHARED.replace("{fence}", PREDICATE).removesuffix("{share}")
    rewrite = Rewriting(*[] if locked else [(read + lock, read) for lock in LOCKS])
    said = LOG.dialect.sql(read)
    with stage(*ACTORS, rewrite=rewrite) as SettleMachine.stage:
        machine = SettleMachine()
        machine.begin(ordering="none", atomic=True, batch=False, size=2, isolation=READ_COMMITTED)
        first, second = machine.processes
        machine.publish("publisher 1", ["a"], "autocommit", 4, READ_COMMITTED)
        machine.finish(first.control, first.take)
        machine.finish(first.control, first.run_once)
        while said not in first.handlers.at:
            machine.handlers(0, steps=1, says=[], patient=True)
        first.handlers.step()
        machine.finish(second.control, second.take)
        assert machine.now.token == (1 if locked else 2), "who looks at the token does not keep it from being changed"
        if locked:
            machine.handlers(0, steps=20, says=[], patient=True)
            assert machine.now.effects
        else:
            with pytest.raises(Broken, match="no right to settle"):
                machine.handlers(0, steps=20, says=[], patient=True)
            machine.begun.clear()
            machine.drain = lambda: None
        machine.teardown()
