"""The horizon, with the transactions of publishers and consumers put together statement by statement.

Whenever a consumer holds h to be the horizon, no message at or below h becomes visible afterwards; and once no
transaction is open, a few probes reach the log's end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from django.db import connection, transaction
from django.test import override_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.consumers.engine.log_end import LogEnd
from sqlqueue.consumers.engine.ownership import WorkingSet
from sqlqueue.database import horizon as horizon_module
from sqlqueue.database import insert_sql
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.insert_sql import HORIZON
from sqlqueue.log.fetch import poll_head
from sqlqueue.models import Message, Topic
from tests.core.planting import Fault
from tests.logs import LOG
from tests.protocol.exploring import Rewriting, explore, finds, promise
from tests.protocol.stage import READ_COMMITTED, REPEATABLE_READ, Actor

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(3_600), pytest.mark.session]

PUBLISHERS = ("publisher 1", "publisher 2", "publisher 3")
PROBERS = ("consumer 1", "consumer 2")
ACTORS = (*PUBLISHERS, *PROBERS)
STEPS = 40
TOPIC = "horizon"
ONE, MANY, KEPT, UNDONE = "publish", "publish many", "publish in a savepoint", "publish and roll back to before"
# The second: what is undone from a transaction's very beginning gives back the gate that it took.
PROGRAMS = st.lists(st.sampled_from([ONE, MANY, KEPT, UNDONE]), min_size=1, max_size=3) | st.just([UNDONE, ONE])
AUTOCOMMIT, COMMIT, ROLLBACK = "autocommit", "commit", "roll back"

_slots = threading.local()


class Probing:
    """A consumer's part: it looks at the log's end, then probes the gate."""

    def __init__(self) -> None:
        self.horizon = Horizon(LOG)

    def __call__(self) -> None:
        self.horizon.probe(highest_offset(LOG))


class Sharing(Probing):
    """One of many: it takes over what another one has found, and lets the others know what it finds."""

    def __call__(self) -> None:
        head = poll_head(LOG, shared=True)
        self.horizon.learn(head.shared, head.highest)
        self.horizon.probe(head.highest)
        self.horizon.share()


class Looking:
    """A consumer's part as its reader plays it, which probes only where an offset is not visible. It has read the log
    so far: the numbers of earlier examples are gaps to it."""

    def __init__(self) -> None:
        self.log_end, self.notified = LogEnd(LOG, None), False
        _slots.slot = 0
        publish(TOPIC, 1)
        for _ in range(2):
            self()

    @property
    def horizon(self) -> Horizon:
        return self.log_end.horizon

    def __call__(self) -> None:
        self.notified = not self.notified  # else it would never count what it polls
        self.log_end.look(WorkingSet(), 0.0, notified=self.notified)


class HorizonMachine(RuleBasedStateMachine):
    """See the module."""

    stage: object
    probing: Callable[[], Probing | Looking] = Probing

    @initialize()
    def begin(self) -> None:
        self.actors: dict[str, Actor] = {actor.name: actor for actor in self.stage.actors}
        self.probers = {name: self.probing() for name in PROBERS}
        self.visible = visible()
        self.held = dict.fromkeys(PROBERS, 0)

    @rule(
        name=st.sampled_from(PUBLISHERS),
        steps=st.integers(1, 6),
        program=PROGRAMS,
        end=st.sampled_from([AUTOCOMMIT, COMMIT, COMMIT, COMMIT, ROLLBACK]),
        slot=st.integers(0, 2),
        isolation=st.sampled_from([READ_COMMITTED, REPEATABLE_READ]),
    )
    def publish(self, name: str, steps: int, program: list[str], end: str, slot: int, isolation: str) -> None:
        """Go on, or begin if there is nothing to go on with."""
        actor = self.actors[name]
        if actor.idle:
            actor.start(lambda: carry_out(program, end, slot), isolation=isolation)
        for _ in range(steps):
            actor.step()
            self.look()

    @rule(name=st.sampled_from(PROBERS), steps=st.integers(1, 4))
    def probe(self, name: str, steps: int) -> None:
        actor = self.actors[name]
        for _ in range(steps):
            if actor.idle:
                actor.start(self.probers[name])
            actor.step()
            self.look()

    @rule(name=st.sampled_from(ACTORS), chance=st.integers(0, 5))
    def crash(self, name: str, chance: int) -> None:
        if not chance:
            self.actors[name].crash()
            if name in PROBERS:
                self.probers[name], self.held[name] = self.probing(), 0
            self.look()

    def look(self) -> None:
        """What was held to be the horizon before must not have risen above what is visible only now."""
        now = visible()
        new = now - self.visible
        for name, prober in self.probers.items():
            low = sorted(offset for offset in new if offset <= self.held[name])
            promise(not low, f"{low} became visible after {name} held {self.held[name]} to be the horizon")
            promise(prober.horizon.value >= self.held[name], f"the horizon of {name} has fallen")
            promise(prober.horizon.value <= max(now, default=0), f"the horizon of {name} lies beyond the log")
            self.held[name] = prober.horizon.value
        self.visible = now

    def teardown(self) -> None:
        if not hasattr(self, "probers"):
            return
        try:
            publishers = [self.actors[name] for name in PUBLISHERS]
            self.stage.finish(*publishers)
            self.look()
            for name in PROBERS:
                self.stage.finish(self.actors[name])
                for _ in range(3):
                    self.actors[name].start(self.probers[name])
                    self.stage.finish(self.actors[name])
                reached, end = self.probers[name].horizon.value, max(self.visible, default=0)
                promise(reached == end, f"{name} has reached {reached} of {end}, and no publisher is at work")
            for actor in publishers:
                promise(actor.error is None, f"{actor.name} has failed: {actor.error!r}")
        finally:
            for actor in self.stage.actors:
                actor.crash()
            Message.objects.all().delete()


def carry_out(program: list[str], end: str, slot: int) -> None:
    """A publisher's part."""
    _slots.slot = slot
    if end == AUTOCOMMIT:
        publish_as(program)
        return
    with transaction.atomic():
        publish_as(program)
        transaction.set_rollback(end == ROLLBACK)


def publish_as(program: list[str]) -> None:
    for word in program:
        if word == ONE:
            publish(TOPIC, 1)
        elif word == MANY:
            publish_many(TOPIC, [NewMessage(1), NewMessage(2)])
        else:
            with transaction.atomic():
                publish(TOPIC, 1)
                transaction.set_rollback(word == UNDONE)


def visible() -> set[int]:
    return set(Message.objects.values_list("offset", flat=True))


@pytest.fixture(autouse=True)
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Which slot a publisher takes is drawn as all else: few of them, so that they are shared."""
    monkeypatch.setattr(insert_sql, "slot", lambda: _slots.slot)
    with override_settings(SQLQUEUE={"TOPICS": {TOPIC: {"partitions": 1}}, "WAKE": False}):
        Topic.objects.create(name=TOPIC, partitions=1)
        yield


def test_no_message_appears_below_the_horizon() -> None:
    explore(HorizonMachine, ACTORS, examples=40, steps=STEPS)


def test_nor_below_one_that_another_consumer_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HorizonMachine, "probing", Sharing)
    explore(HorizonMachine, ACTORS, examples=40, steps=STEPS)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_nor_where_a_reader_has_seen_every_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HorizonMachine, "probing", Looking)
    explore(HorizonMachine, ACTORS, examples=40, steps=STEPS)


# -- that it can fail --------------------------------------------------------------------------------------------------

GATED = pytest.mark.database("mariadb", "mysql", "postgresql")
SLOTTED = pytest.mark.database("mariadb", "mysql")
GATE = "SELECT generation FROM sqlqueue_publish_gate WHERE slot = %s AND writer = '' LOCK IN SHARE MODE"
UNGATED = "SELECT 0 * %s"


@GATED
def test_it_finds_a_horizon_that_is_the_highest_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Horizon, "_still_held", lambda self: set())
    assert "became visible after" in finds(HorizonMachine, ACTORS, STEPS)


@GATED
def test_it_finds_publishers_that_pass_by_the_gate() -> None:
    mysql = (GATE, UNGATED)
    postgresql = ("PG_ADVISORY_XACT_LOCK_SHARED(", "GREATEST(")
    assert "became visible after" in finds(HorizonMachine, ACTORS, STEPS, Rewriting(mysql, postgresql))


class Hasty(Probing):
    """Probes with a candidate that it reads after the gate's answer."""

    def __call__(self) -> None:
        held = self.horizon._still_held()
        self.horizon._still_held = lambda: held
        super().__call__()
        del self.horizon._still_held


@pytest.mark.long
@GATED
def test_it_finds_a_candidate_that_is_read_after_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HorizonMachine, "probing", Hasty)
    assert "became visible after" in finds(HorizonMachine, ACTORS, STEPS)


class OnceATransaction(Rewriting):
    """Only the first statement of a transaction takes the gate."""

    def __call__(self, sql: str) -> str:
        transaction, taken = connection.atomic_blocks[:1], getattr(connection, "gate_taken_in", None)
        rewritten = super().__call__(sql)
        if rewritten == sql or not transaction:
            return sql
        connection.gate_taken_in = transaction
        return rewritten if transaction == taken else sql


@pytest.mark.long
@SLOTTED
def test_it_finds_publishers_that_take_the_gate_once_a_transaction() -> None:
    """A rollback to the first savepoint gives the lock back, and what is published after it is unprotected."""
    once = OnceATransaction((GATE, UNGATED))
    assert "became visible after" in finds(HorizonMachine, ACTORS, STEPS, once)


@SLOTTED
def test_it_finds_a_horizon_that_is_never_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horizon_module, "SLOTS", 257)
    assert "no publisher is at work" in finds(HorizonMachine, ACTORS, STEPS)


class Rash(Sharing):
    """Lets the others know its candidate."""

    def __call__(self) -> None:
        LOG.execute("UPDATE sqlqueue_publish_gate SET value = %s WHERE slot = %s", (highest_offset(LOG), HORIZON))
        super().__call__()


@pytest.mark.long
@GATED
def test_it_finds_a_candidate_that_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HorizonMachine, "probing", Rash)
    assert "became visible after" in finds(HorizonMachine, ACTORS, STEPS)


OVERLOOKING = {
    "among the newest": Fault(LogEnd, "_follow", "if self.gated and newest.total < newest.last - low:", "if False:"),
    "in a watch": Fault(LogEnd, "_watch_all", "sum(seen.values()) == self.highest - low", "True"),
}


@pytest.mark.long
@GATED
@pytest.mark.parametrize("where", OVERLOOKING)
def test_it_finds_a_reader_that_overlooks_an_offset(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    OVERLOOKING[where].plant(monkeypatch)
    monkeypatch.setattr(HorizonMachine, "probing", Looking)
    assert "became visible after" in finds(HorizonMachine, ACTORS, STEPS)
