"""Leases, with the transactions of three consumers put together statement by statement.

A partition is never one's while another's lease on it holds; tokens only grow, and the leases' and the offset rows' are
the same; an owner that has lost a lease finds out at the next renewal, and changes nothing until then; once the faults
stop, every partition has an owner, and each consumer its share.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from django.db import Error
from django.test import override_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sqlqueue.consumers.background.lease_renewer import LeaseRenewer
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.in_flight import InFlight
from sqlqueue.consumers.engine.ownership import Ownership
from sqlqueue.consumers.engine.reserved_threads import withdraw
from sqlqueue.consumers.engine.subscription import Subscription
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.core.partition import settling
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import HeldLease
from sqlqueue.core.settle_plan import SettlePlan
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.leases import release
from sqlqueue.leases.heartbeat import Shown
from sqlqueue.log.groups import register
from sqlqueue.log.settle import settle
from sqlqueue.models import ConsumerGroup, Offset, PartitionLease, SubscriberHeartbeat, Topic
from sqlqueue.operations.move import move
from tests.logs import LOG
from tests.protocol.exploring import Broken, Rewriting, explore, finds, promise
from tests.protocol.stage import READ_COMMITTED, REPEATABLE_READ, Actor, stage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(36_000), pytest.mark.session]

SEATS = (0, 1, 2)
CONTROLS = tuple(f"control {seat + 1}" for seat in SEATS)
KEEPERS = tuple(f"keeper {seat + 1}" for seat in SEATS)
WORLD = "world"
ACTORS = (*CONTROLS, *KEEPERS, WORLD)
STEPS = 40
GROUP = "g"
PARTITIONS = 4
DURATION = 3_600.0  # seconds: a lease ends when the world says so
# The database's clock reaches the end of a consumer's leases, or of its heartbeat.
EXPIRE = "UPDATE sqlqueue_partition_lease SET valid_until = {now} WHERE topic = %s AND holder = %s"
FALL_SILENT = "UPDATE sqlqueue_subscriber_heartbeat SET expires_at = {now} WHERE topic = %s AND subscriber = %s"
_topics = itertools.count(1)


class Lease(NamedTuple):
    """A lease and its partition's offset row (None: there is none yet), as everybody sees them at one moment."""

    holder: str
    token: int
    holds: bool  # it has a holder, and has not expired
    offset: tuple[int, int, int, int] | None = None  # token, position, watermark, claim


class Threads:
    """Stands for the threads of a member: other groups' handlers take all of them, or not."""

    def __init__(self, subscription: Subscription):
        self.subscription, self.taken = subscription, False

    @property
    def full(self) -> frozenset[Subscription]:
        return frozenset([self.subscription] if self.taken else [])

    starved = full


class Member:
    """One life of a consumer: the control thread and the lease renewer are two actors."""

    _names = itertools.count(1)

    def __init__(self, control: Actor, keeper: Actor, topic: str):
        self.control, self.keeping = control, keeper
        self.name = f"member {next(self._names)}"
        made = build(topic, {"group": GROUP})
        self.subscription = Subscription(LOG, replace(made, handler=lambda delivery: None))
        self.ownership = Ownership(LOG, self.name, [self.subscription], DURATION)
        self.lost: list[HeldLease] = []
        self.keeper = LeaseRenewer(self.ownership, 1.0, Shown, self.lost.extend, Liveness())
        self.threads: Any = Threads(self.subscription)
        self.withdraw = partial(withdraw, self.ownership, self.threads, InFlight(), self.keeper.beat)
        self.doomed: list[AssignedPartition] = []  # what was lost before its lease renewer's present iteration
        self.claims = 1_000
        self.had: set[tuple[int, int]] = set()  # every (partition, token) that it has believed in

    def streams(self) -> list[AssignedPartition]:
        """What it believes to own."""
        return list(self.subscription.assigned.values())

    def balance(self) -> None:
        """Part of an iteration: drop what the lease renewer has found lost, acquire and release."""
        self.drop_lost()
        self.guarded(lambda: self.ownership.balance(0, lambda: 0.0))
        if self.guarded(self.withdraw):
            self.guarded(lambda: self.ownership.balance(0, lambda: 0.0))
        for subscription, partitions in self.ownership.drained().items():
            self.release(subscription, partitions)

    def release(self, subscription: Subscription, partitions: set[int]) -> None:
        streams = [stream for ref, stream in subscription.assigned.items() if ref.partition in partitions]
        self.settle_plans([settling.release_plan(stream, 0.0) for stream in streams])
        self.guarded(lambda: self.ownership.release({subscription: partitions}))

    def settle(self) -> None:
        """Part of an iteration: claim something in every partition, in one transaction."""
        self.claims += 1
        plans = [
            SettlePlan(stream.lease, stream.window.position, stream.writes.watermark, self.claims)
            for stream in self.streams()
        ]
        if plans:
            self.settle_plans(plans)

    def settle_plans(self, plans: list[SettlePlan]) -> None:
        results = self.guarded(lambda: settle(LOG, plans, self.name, {}, 0.0))
        self.ownership.lose([result.plan.lease for result in results if result.stale])

    def drop_lost(self) -> None:
        lost, self.lost[:] = list(self.lost), []
        self.ownership.lose(lost)

    def renew(self) -> None:
        """An iteration of its lease renewer."""
        self.guarded(self.keeper.run_once)

    def guarded(self, operation: Callable[[], Any]) -> Any:
        """Call an operation again through lost connections, as the loops do."""
        return retries.patiently(LOG, operation, give_up=lambda: False)


class LeaseMachine(RuleBasedStateMachine):
    """See the module."""

    stage: Any

    @initialize(isolation=st.sampled_from([READ_COMMITTED, READ_COMMITTED, REPEATABLE_READ]))
    def begin(self, isolation: str) -> None:
        self.topic, self.isolation = f"leases{next(_topics)}", isolation
        topics = {self.topic: {"partitions": PARTITIONS}}
        self.settings = override_settings(SQLQUEUE={"TOPICS": topics, "WAKE": False})
        self.settings.enable()
        register(LOG, GROUP, self.topic)
        self.actors: dict[str, Actor] = {actor.name: actor for actor in self.stage.actors}
        self.members = [self.new_member(seat) for seat in SEATS]
        for member in self.members:
            member.keeper.beat()
        self.now = self.read()

    def new_member(self, seat: int) -> Member:
        """It has a heartbeat once its lease renewer has run."""
        return Member(self.actors[CONTROLS[seat]], self.actors[KEEPERS[seat]], self.topic)

    def advance(self, actor: Actor, steps: int, operation: Callable[[], object] | None, patient: bool = True) -> None:
        """Let an actor take some steps; with `operation`, that is what it begins if it has nothing to do."""
        if actor.idle and operation is not None:
            actor.start(operation, patient, self.isolation)
            self.look()
        for _ in range(steps):
            if actor.idle:
                break
            actor.step()
            self.look()

    # -- what may happen ----------------------------------------------------------------------------------------------

    @rule(
        seat=st.sampled_from(SEATS),
        what=st.sampled_from(["balance", "balance", "settle"]),
        steps=st.integers(1, 12),
        patient=st.booleans(),
    )
    def control(self, seat: int, what: str, steps: int, patient: bool) -> None:
        member = self.members[seat]
        self.advance(member.control, steps, getattr(member, what), patient)

    @rule(seat=st.sampled_from(SEATS), full=st.booleans())
    def fill(self, seat: int, full: bool) -> None:
        """Other groups' handlers take every thread of a member, or let go of one."""
        self.members[seat].threads.taken = full

    @rule(seat=st.sampled_from(SEATS), steps=st.integers(1, 4), patient=st.booleans())
    def renew(self, seat: int, steps: int, patient: bool) -> None:
        self.renew_now(seat, steps, patient)

    def renew_now(self, seat: int, steps: int, patient: bool) -> None:
        member = self.members[seat]
        if member.keeping.idle:
            member.doomed = [s for s in member.streams() if self.now[s.ref.partition].token != s.token]
        self.advance(member.keeping, steps, member.renew, patient)
        if member.keeping.idle:
            unknown = [s.ref for s in member.doomed if s in member.streams() and s.lease not in member.lost]
            promise(not unknown, f"{member.name} has renewed, and does not know that it has lost {unknown}")

    @rule(
        what=st.sampled_from(
            ["expire", "expire", "expire and fall silent", "crash", "crash and free", "cut", "lose the reply", "reset"]
        ),
        seat=st.sampled_from(SEATS),
        name=st.sampled_from(ACTORS),
        partition=st.integers(0, PARTITIONS - 1),
        steps=st.integers(1, 20),
    )
    def disturb(self, what: str, seat: int, name: str, partition: int, steps: int) -> None:
        """Time passes, a process or a connection ends, or a person takes a partition from its owner."""
        actor, member = self.actors[name], self.members[seat]
        if what == "cut":
            actor.cut()
            self.look()
        elif what == "lose the reply":  # of its next commit
            actor.loses_reply = True
        elif what == "reset":
            self.advance(self.actors[WORLD], steps, partial(move, LOG, GROUP, self.topic, 0, partition))
        else:
            if what.startswith("crash"):
                self.end_member(seat)
            if what == "crash and free":  # by its supervisor
                self.advance(self.actors[WORLD], 3, partial(release.free, LOG, member.name))
                return
            for text in (EXPIRE,) if what == "expire" else (EXPIRE, FALL_SILENT):
                self.advance(self.actors[WORLD], 3, partial(LOG.execute, text, (self.topic, member.name)))

    def end_member(self, seat: int) -> None:
        member = self.members[seat]
        member.control.crash()
        member.keeping.crash()
        self.look()
        self.members[seat] = self.new_member(seat)

    # -- what must not ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Hold what everybody sees now against what was seen before the last step."""
        self.check_errors()
        movers = {actor for actor in self.stage.actors if actor.wrote}
        if movers:
            for actor in movers:
                actor.wrote = False
            before, self.now = self.now, self.read()
            for partition, (old, new) in enumerate(zip(before, self.now)):
                self.compare(partition, old, new, movers)
        self.check_beliefs()

    def read(self) -> list[Lease]:
        text = """
            SELECT holder, fencing_token, (holder <> '' AND valid_until > {now}) FROM sqlqueue_partition_lease
            WHERE topic = %s ORDER BY "partition"
        """
        rows = Offset.objects.filter(topic=self.topic)
        offsets = {
            partition: values
            for partition, *values in rows.values_list(
                "partition", "fencing_token", "position", "offset_acked", "claimed_to"
            )
        }
        found = LOG.execute(text, (self.topic,)).fetchall()
        return [
            Lease(holder, token, bool(holds), tuple(offsets[number]) if number in offsets else None)
            for number, (holder, token, holds) in enumerate(found)
        ]

    def check_errors(self) -> None:
        for actor in self.stage.actors:
            error, actor.error = (actor.error, None) if actor.idle else (None, actor.error)
            if error is not None:
                known = isinstance(error, Error) and retries.classify(error) is not retries.ErrorKind.OTHER
                promise(known and actor.name == WORLD, f"{actor.name} has failed: {error!r}")

    def compare(self, partition: int, old: Lease, new: Lease, movers: set[Actor]) -> None:
        promise(new.token >= old.token, f"the token of {partition} has fallen from {old.token} to {new.token}")
        changed = new.holder not in ("", old.holder)
        promise(not changed or new.token > old.token, f"{new.holder} has {partition} with the token of {old.holder}")
        stolen = changed and old.holds
        promise(not stolen, f"{new.holder} has taken {partition} from {old.holder}, whose lease holds")
        if new.offset is None:
            promise(old.offset is None, f"the offset row of {partition} is gone")
            return
        promise(
            new.offset[0] == new.token, f"partition {partition}: the lease's token is {new.token}, not {new.offset}"
        )
        if old.offset is not None and new.offset[0] == old.offset[0] and new.offset != old.offset:
            allowed = {member.control for member in self.members if (partition, new.token) in member.had}
            promise(allowed & movers, f"{sorted(a.name for a in movers)} have settled {partition}, which is not theirs")

    def check_beliefs(self) -> None:
        """Two may believe to own a partition, but not with the same token; and not after a renewal has told one."""
        tokens = []
        for member in self.members:
            believed = [(stream.ref.partition, stream.token) for stream in member.streams()]
            member.had.update(believed)
            tokens += believed
        promise(len(tokens) == len(set(tokens)), f"two own a partition with the same token: {sorted(tokens)}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "now"):
            return
        try:
            self.end_faults()
        finally:
            for actor in self.stage.actors:
                actor.crash()
            for model in (SubscriberHeartbeat, PartitionLease, Offset, ConsumerGroup):
                model.objects.filter(topic=self.topic).delete()
            Topic.objects.filter(name=self.topic).delete()
            self.settings.disable()

    def end_faults(self) -> None:
        """The faults stop: each owner finds out what it has lost, and everything is shared out."""
        for actor in self.stage.actors:
            actor.loses_reply = False
        while busy := [actor for actor in self.stage.actors if not actor.idle]:
            for actor in busy:
                self.advance(actor, 1, None)
        ghosts = SubscriberHeartbeat.objects.filter(topic=self.topic)
        ghosts.exclude(subscriber__in=[member.name for member in self.members]).delete()
        leases = PartitionLease.objects.filter(topic=self.topic)
        leases.exclude(holder__in=["", *(member.name for member in self.members)]).update(valid_until=DatabaseNow())
        for seat in SEATS:
            self.renew_now(seat, 100, True)
        for free in range(len(SEATS) + 1):
            self.check_full(free)
        alive = {member.name: len(member.streams()) for member in self.members}
        held = [lease.holder for lease in self.now if lease.holds]
        promise(len(held) == PARTITIONS, f"some of the partitions have no owner: {self.now} {alive}")
        promise(sorted(alive.values()) == [1, 1, 2], f"the partitions are not shared out: {alive}")
        for member in self.members:
            promise(held.count(member.name) == alive[member.name], f"{member.name} does not know what it has: {alive}")

    def check_full(self, free: int) -> None:
        """Leave no thread to all members but so many: they hold nothing. If none has any, one of them keeps all."""
        for member in self.members:
            member.threads.taken = member.name not in {each.name for each in self.members[:free]}
        self.share_out(3)
        holders = {lease.holder for lease in self.now}
        promise(all(lease.holds for lease in self.now), f"full ones have left partitions to no other one: {self.now}")
        able = {member.name for member in self.members if not member.threads.taken}
        promise(holders == able or (not able and len(holders) == 1), f"{holders} have the partitions, not {able}")
        before = self.now
        self.share_out(1)
        promise(self.now == before, f"partitions go to and fro: {before} {self.now}")

    def share_out(self, times: int) -> None:
        for _ in range(times):
            for member in self.members:
                self.advance(member.control, 500, member.balance)


def test_a_partition_has_one_owner_at_a_time_and_finally_one() -> None:
    explore(LeaseMachine, ACTORS, examples=16, steps=STEPS)


# -- that it can fail --------------------------------------------------------------------------------------------------


def test_it_finds_leases_that_are_taken_without_a_greater_token() -> None:
    same = (
        "SET holder = %s, fencing_token = fencing_token + 1,",
        "SET holder = %s, fencing_token = fencing_token + 0,",
    )
    assert "token" in finds(LeaseMachine, ACTORS, STEPS, Rewriting(same))


@pytest.mark.parametrize("greedy", [False, True])
def test_leases_that_are_taken_before_their_time_show(greedy: bool) -> None:
    """Others take them after they were chosen and before they are locked: drawn so seldom that it is told."""
    free = "OR valid_until <= "
    rewrite = Rewriting(*[(free, "OR valid_until > '2000-01-01' " + free)] if greedy else [])
    with stage(*ACTORS, rewrite=rewrite) as LeaseMachine.stage:
        machine = LeaseMachine()
        machine.begin(isolation=READ_COMMITTED)
        slow, quick, _ = machine.members
        SubscriberHeartbeat.objects.filter(topic=machine.topic).exclude(subscriber=slow.name).delete()
        machine.advance(slow.control, 0, slow.balance)
        done = ""
        while "sqlqueue_partition_lease" not in done:  # it believes to be alone, and chooses everything
            done = slow.control.at
            machine.advance(slow.control, 1, None)
        for member in machine.members:
            member.keeper.beat()
        machine.advance(quick.control, 500, quick.balance)
        assert quick.streams()
        if greedy:
            with pytest.raises(Broken, match="whose lease holds"):
                machine.advance(slow.control, 500, None)
            machine.end_faults = lambda: None
        else:
            machine.advance(slow.control, 500, None)
            assert len(slow.streams()) == PARTITIONS - len(quick.streams())
        machine.teardown()


@pytest.mark.parametrize("careless", [False, True])
def test_of_two_that_withdraw_at_the_same_time_one_stays(careless: bool) -> None:
    another = "subscriber <> %s"
    rewrite = Rewriting(*[(another, f"({another} OR 1 = 1)")] if careless else [])
    with stage(*ACTORS, rewrite=rewrite) as LeaseMachine.stage:
        machine = LeaseMachine()
        machine.begin(isolation=READ_COMMITTED)
        two = machine.members[:2]
        names = [member.name for member in two]
        SubscriberHeartbeat.objects.filter(topic=machine.topic).exclude(subscriber__in=names).delete()
        for member in two:
            machine.advance(member.control, 500, member.balance)
        for member in two:
            member.threads.taken = True
        for _ in range(2):
            for member in two:
                machine.advance(member.control, 0, member.withdraw)
            machine.stage.finish(*(member.control for member in two))
        withdrawn = [member.name for member in two if member.ownership.withdrawn]
        rows = SubscriberHeartbeat.objects.filter(topic=machine.topic)
        assert len(withdrawn) == (2 if careless else 1)
        assert set(rows.values_list("subscriber", flat=True)) == set(names).difference(withdrawn)
        machine.end_faults = lambda: None
        machine.teardown()
