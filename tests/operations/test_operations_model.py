"""The invariants on the real operations and the real database: two subscribers of two groups, whatever happens when.

One thread, one connection; handlers run when the test says so. Late commits need more connections, and have tests of
their own; here the SQL of acquiring, settling, releasing, moving and collecting is put together in any order.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
from django.db import transaction
from django.db.models import F
from django.test import override_settings
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from sqlqueue import Postpone, Reject, Retry, publish_many
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.consumers.handlers.pools import Pool
from sqlqueue.consumers.handlers.runs import Report
from sqlqueue.core.settle_plan import Execution
from sqlqueue.leases import heartbeat, release
from sqlqueue.log.collect import collect
from sqlqueue.log.publish import NewMessage
from sqlqueue.models import BlockedRange, DeliveryState, Message, Offset, PartitionLease
from sqlqueue.operations.messages import delete, unsettled
from sqlqueue.operations.move import move
from sqlqueue.operations.topics import delete_purged, purge
from tests.logs import LOG

GROUPS = ("one", "two")
PARTITIONS = 2
LONG = 3600.0
SCRIPT = st.lists(st.sampled_from(["ok", "ok", "ok", "retry", "wait", "no"]), max_size=4)
_topics = itertools.count(1)


class ManualPool(Pool):
    """Keeps runs until they are told to run."""

    def __init__(self, report: Report, ended):
        self.report, self.ended = report, ended
        self.tasks: list[tuple[HandlerExecutor, Execution]] = []

    def submit(self, handling: HandlerExecutor, run: Execution, reserved: bool = False) -> None:
        self.tasks.append((handling, run))

    def work(self, which: int) -> bool:
        if not self.tasks:
            return False
        handling, run = self.tasks.pop(which % len(self.tasks))
        handling.run(run, self.report)
        self.ended(run)
        return True


class OperationsMachine(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        ordering=st.sampled_from(["key", "key", "partition", "none"]),
        atomic=st.booleans(),
        batch=st.booleans(),
        size=st.integers(2, 5),
    )
    def begin(self, ordering: str, atomic: bool, batch: bool, size: int) -> None:
        self.topic = f"model{next(_topics)}"
        self.settings = override_settings(
            SQLQUEUE={
                "TOPICS": {self.topic: {"partitions": PARTITIONS, "retention": 0.0}},
                "WAKE": False,
                "FLUSH_INTERVAL": 0.0,
                "LEASE_DURATION": LONG,  # no process renews them here
            }
        )
        self.settings.enable()
        self.ordering, self.batch, self.atomic = ordering, batch, atomic
        self.options = {"ordering": ordering, "atomic": atomic, "batch": batch, "batch_size": size, "max_attempts": 3}
        self.keys: dict[int, str] = {}  # by offset
        self.partitions: dict[int, int] = {}  # partitions by offset
        self.done: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.skipped: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.purged: dict[str, set[int]] = {group: set() for group in GROUPS}
        self.effects: dict[str, dict[int, int]] = {group: defaultdict(int) for group in GROUPS}
        self.exact = dict.fromkeys(GROUPS, True)  # nothing has happened that may charge what had not begun
        self.starts: dict[str, dict[int, int]] = {group: defaultdict(int) for group in GROUPS}
        self.script: list[str] = []
        self.pools: list[ManualPool] = []
        self.subscribers = [self.new_subscriber(0), self.new_subscriber(1)]

    def teardown(self) -> None:
        if not hasattr(self, "settings"):
            return
        try:
            self.drain()
        finally:
            for subscriber in self.subscribers:
                self.forget(subscriber)
            self.settings.disable()

    def new_subscriber(self, index: int) -> Subscriber:
        def make_pool(report, ended) -> ManualPool:
            pool = ManualPool(report, ended)
            self.pools[index : index + 1] = [pool]
            return pool

        consumers = []
        for group in GROUPS:
            made = build(self.topic, {"group": group, "backoff": 0.0, **self.options})
            consumers.append(replace(made, handler=self.handler(group)))
        subscriber = Subscriber(consumers, pool=make_pool, background_tasks=False)
        subscriber.start()
        return subscriber

    def forget(self, subscriber: Subscriber) -> None:
        """What a supervisor does for a dead process."""
        subscriber._ending.close()
        release.free(LOG, subscriber.name)
        heartbeat.leave(LOG, subscriber.name)

    # -- handlers -----------------------------------------------------------------------------------------------------

    def handler(self, group: str):
        def handle(given: object) -> None:
            deliveries = given if isinstance(given, list) else [given]
            for delivery in deliveries:
                self.begins(group, delivery, {each.offset for each in deliveries})
            said = self.script.pop(0) if self.script else "ok"
            if said != "ok":
                for delivery in deliveries:
                    self.failed(group, delivery, said)
                raise {"retry": Retry(delay=0), "wait": Postpone(delay=0), "no": Reject("no")}[said]
            for delivery in deliveries:
                if self.atomic:
                    transaction.on_commit(lambda delivery=delivery: self.committed(group, delivery))
                elif not self.stale(delivery):
                    self.done[group].add(delivery.offset)

        return handle

    def stale(self, delivery) -> bool:
        lease = delivery._attempt.lease
        return not Offset.objects.filter(id=lease.id, fencing_token=lease.token).exists()

    def begins(self, group: str, delivery, company: set[int]) -> None:
        offset = delivery.offset
        self.note_dead_letters()
        if self.stale(delivery):
            return
        assert offset not in self.purged[group], f"{offset} was deleted, and comes all the same"
        self.starts[group][offset] += 1
        assert offset not in self.done[group] or not self.settled(group, offset), (
            f"{offset} comes again after its settle"
        )
        assert delivery.attempt >= self.starts[group][offset]
        assert not self.exact[group] or delivery.attempt == self.starts[group][offset]
        for other, key in self.keys.items():
            if other >= offset or other in company or self.partitions[other] != self.partitions[offset]:
                continue
            same = {"key": key and key == self.keys[offset], "partition": True, "none": False}[self.ordering]
            if same and other not in self.skipped[group]:
                assert other in self.done[group], f"{offset} begins before {other} is done"

    def failed(self, group: str, delivery, said: str) -> None:
        if said == "wait" and not self.stale(delivery):
            self.starts[group][delivery.offset] -= 1
        elif not self.stale(delivery) and (said == "no" or delivery.attempt >= 3):
            self.done[group].add(delivery.offset)

    def committed(self, group: str, delivery) -> None:
        self.effects[group][delivery.offset] += 1
        assert self.effects[group][delivery.offset] == 1, f"the effects of {delivery.offset} were committed twice"
        self.done[group].add(delivery.offset)

    def settled(self, group: str, offset: int) -> bool:
        mine = {"consumer_group": group, "topic": self.topic, "partition": self.partitions[offset]}
        row = DeliveryState.objects.filter(**mine, message_offset=offset).first()
        if row is not None:
            return row.acked
        if self.waits_behind(group, offset):
            return False
        return Offset.objects.filter(**mine, position__gte=offset).exists()

    def waits_behind(self, group: str, offset: int) -> bool:
        """It lies in its key's range."""
        mine = {"consumer_group": group, "topic": self.topic, "partition": self.partitions[offset]}
        ranges = BlockedRange.objects.filter(**mine, partition_key=self.keys[offset])
        return ranges.filter(low__lt=offset, high__gte=offset).exists()

    # -- rules --------------------------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.sampled_from(["a", "a", "b", "c", ""]), min_size=1, max_size=6))
    def publish(self, keys: list[str]) -> None:
        known = set(self.keys)
        publish_many(self.topic, [NewMessage(1, key=key) for key in keys])
        for message in Message.objects.filter(topic=self.topic).exclude(offset__in=known):
            self.keys[message.offset], self.partitions[message.offset] = message.partition_key, message.partition

    @rule(index=st.integers(0, 1))
    def turn(self, index: int) -> None:
        subscriber = self.subscribers[index]
        subscriber._poll_at = 0.0
        subscriber.run_once()

    @rule(index=st.integers(0, 1), script=SCRIPT, runs=st.integers(1, 6))
    def work(self, index: int, script: list[str], runs: int) -> None:
        """Some iterations, and some handlers between them."""
        for _ in range(2):
            self.balance(index)
            self.script = list(script)
            for _ in range(runs):
                self.pools[index].work(0)
        self.script = []
        self.turn(index)

    @rule(index=st.integers(0, 1))
    def balance(self, index: int) -> None:
        self.subscribers[index]._balance_at = 0.0
        self.turn(index)

    @rule(
        index=st.integers(0, 1),
        which=st.integers(0, 5),
        script=SCRIPT,
    )
    def handle(self, index: int, which: int, script: list[str]) -> None:
        self.script = script
        self.pools[index].work(which)
        self.script = []

    @rule(index=st.integers(0, 1), chance=st.integers(0, 1))
    def crash(self, index: int, chance: int) -> None:
        if chance:
            return
        self.forget(self.subscribers[index])
        self.interrupted()
        self.subscribers[index] = self.new_subscriber(index)

    @rule(index=st.integers(0, 1))
    def lose_the_leases(self, index: int) -> None:
        """It goes on, and does not know that another process may take its partitions."""
        heartbeat.leave(LOG, self.subscribers[index].name)
        PartitionLease.objects.filter(holder=self.subscribers[index].name).update(holder="", valid_until=None)
        self.interrupted()
        self.balance(1 - index)

    @rule(index=st.integers(0, 1), chance=st.integers(0, 2))
    def end_gracefully(self, index: int, chance: int) -> None:
        if chance:
            return
        subscriber = self.subscribers[index]
        owned = {stream.id: stream.token for stream in subscriber.ownership.assigned_partitions()}
        subscriber.stop(timeout=0.0)
        subscriber.close()
        for row in Offset.objects.filter(id__in=owned):
            assert row.fencing_token != owned[row.id] or row.claimed_to == row.position
        self.subscribers[index] = self.new_subscriber(index)

    @rule(group=st.sampled_from(GROUPS), share=st.integers(0, 4), chance=st.integers(0, 2))
    def reset(self, group: str, share: int, chance: int) -> None:
        if chance:
            return
        offsets = sorted(self.keys)
        present = self.present()
        oldest = max([offset for offset in offsets if offset not in present], default=0)
        wanted = offsets[(len(offsets) - 1) * share // 4] if offsets else 0
        unacked = DeliveryState.objects.filter(topic=self.topic, consumer_group=group, acked=False)
        waiting = set(unacked.values_list("message_offset", flat=True))
        behind = {offset for offset in present if offset in self.keys and self.waits_behind(group, offset)}
        target = move(LOG, group, self.topic, max(wanted, oldest))
        kept = set(unacked.values_list("message_offset", flat=True))
        assert kept == {offset for offset in waiting if offset <= target}
        for offset in offsets:
            if offset > target and offset not in present:
                continue  # the horizon of a log that was collected empty is 0: nothing is there to replay
            if offset > target:
                self.done[group].discard(offset)
                self.skipped[group].discard(offset)
                self.effects[group].pop(offset, None)
                self.starts[group].pop(offset, None)
            elif offset not in self.done[group] and offset not in waiting and offset not in behind:
                self.skipped[group].add(offset)
        self.interrupted()

    @rule(share=st.integers(0, 4), unsettled=st.booleans(), chance=st.integers(0, 2))
    def purge(self, share: int, unsettled: bool, chance: int) -> None:
        """All up to an offset; what has been skipped is never delivered, what was not is."""
        if chance or not self.keys:
            return
        self.note_dead_letters()
        present = self.present()
        target = sorted(self.keys)[(len(self.keys) - 1) * share // 4]
        purged = purge(LOG, self.topic, through=target, unsettled=unsettled)
        assert purged.through <= target
        for group in purged.skipped:
            self.skipped[group] |= {offset for offset in present if offset <= purged.through} - self.done[group]
        if purged.skipped:
            self.interrupted()
        delete_purged(LOG, self.topic)
        for group in purged.skipped:
            self.purged[group] |= {offset for offset in self.skipped[group] if offset <= purged.through}
        self.nothing_is_gone_that_somebody_needs()

    @rule(which=st.lists(st.integers(0, 20), max_size=4), also=st.booleans())
    def delete(self, which: list[int], also: bool) -> None:
        """Some messages, wherever they stand."""
        self.note_dead_letters()
        present = sorted(self.present())
        chosen = sorted({present[number] for number in which if number < len(present)})
        waiting = {group: its.waiting for group, its in unsettled(LOG, self.topic, chosen).items()}
        rows = DeliveryState.objects.filter(topic=self.topic, message_offset__in=chosen)
        for group, offset in rows.values_list("consumer_group", "message_offset"):
            waiting.get(group, set()).discard(offset)  # its owner may have it in memory, and dispatch it once more
        deleted = delete(LOG, self.topic, chosen, also_unsettled=also)
        gone = set(chosen) - self.present()
        for group, unread in waiting.items():
            self.purged[group] |= unread & gone
        assert len(gone) == deleted.deleted
        assert sum(deleted) == len(chosen)
        if also:
            for group in GROUPS:
                for offset in chosen:
                    if offset in gone or self.settled(group, offset):  # acked for one group, in flight in the other
                        self.skipped[group] |= {offset} - self.done[group]
            self.interrupted()
        self.nothing_is_gone_that_somebody_needs()

    @rule()
    def collect(self) -> None:
        self.note_dead_letters()
        collect(LOG, self.subscribers[0].reader.log_end.horizon, batches=10)
        self.nothing_is_gone_that_somebody_needs()

    def nothing_is_gone_that_somebody_needs(self) -> None:
        present = self.present()
        for offset in self.keys:
            if offset not in present:
                for group in GROUPS:
                    assert offset in self.done[group] | self.skipped[group], (
                        f"{offset} is gone, {group} has yet to do it"
                    )

    def present(self) -> set[int]:
        """What has not been collected."""
        return set(Message.objects.filter(topic=self.topic).values_list("offset", flat=True))

    def interrupted(self) -> None:
        self.exact = dict.fromkeys(GROUPS, False)

    def note_dead_letters(self) -> None:
        """A suspect that was alone at its last attempt is dead-lettered without a handler."""
        dead_letters = Message.objects.filter(topic=self.topic + "_dlq").values_list("failed_group", "original_offset")
        for group, offset in dead_letters:
            if self.settled(group, offset):
                self.done[group].add(offset)

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def what_counts_as_done_was_handled(self) -> None:
        if not hasattr(self, "keys"):
            return
        self.note_dead_letters()
        for group in GROUPS:
            mine = {"consumer_group": group, "topic": self.topic}
            rows = {(r.partition, r.message_offset): r.acked for r in DeliveryState.objects.filter(**mine)}
            for offset_row in Offset.objects.filter(**mine):
                number, position = offset_row.partition, offset_row.position
                for offset in [o for o, partition in self.partitions.items() if partition == number]:
                    waits = (number, offset) not in rows and self.waits_behind(group, offset)
                    if rows.get((number, offset), offset <= position) and not waits:
                        assert offset in self.done[group] | self.skipped[group], f"{offset} was not handled by {group}"
                unacked = [o - 1 for (p, o), acked in rows.items() if p == number and not acked and o <= position]
                lows = BlockedRange.objects.filter(**mine, partition=number).values_list("low", flat=True)
                exact = min([position, *unacked, *lows])
                assert offset_row.offset_acked == exact or (self.atomic and offset_row.offset_acked < exact)
                assert offset_row.position <= offset_row.claimed_to

    # -- the end ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Faults stop: everything settles."""
        self.forget(self.subscribers[1])
        self.interrupted()
        self.pools[1].tasks.clear()
        self.subscribers[1]._ending.close()
        heartbeat.beat(LOG, self.subscribers[0].name, [(group, self.topic) for group in GROUPS], LONG)
        self.subscribers[
            0
        ]._lease_renewer.run_once()  # as a process's does: an owner with nothing to write hears of a move by it
        quiet = 0
        for _ in range(400):
            self.balance(0)
            while self.pools[0].work(0):
                quiet = 0
            quiet = quiet + 1 if self.is_settled() else 0
            if quiet > 3:
                break
        self.note_dead_letters()
        assert self.is_settled(), self.what_is_left()
        for group in GROUPS:
            missing = set(self.keys) - self.done[group] - self.skipped[group]
            assert not missing, f"{missing} never came to {group}"
        self.what_counts_as_done_was_handled()
        lagging = Offset.objects.filter(topic=self.topic).exclude(offset_acked=F("position"))
        assert not lagging.exists(), list(lagging.values())

    def what_is_left(self) -> str:
        subscriber = self.subscribers[0]
        streams = [
            (stream.ref, stream.in_flight, stream.queues.ready, list(stream.entries), vars(stream.window))
            for stream in subscriber.ownership.assigned_partitions()
        ]
        rows = list(DeliveryState.objects.filter(topic=self.topic).values_list())
        leases = list(PartitionLease.objects.filter(topic=self.topic).values_list())
        return f"{subscriber._shown()} {streams=} {rows=} {leases=} {subscriber.name=}"

    def is_settled(self) -> bool:
        subscriber = self.subscribers[0]
        left = (DeliveryState.objects, BlockedRange.objects)
        if not subscriber.idle or any(rows.filter(topic=self.topic).exists() for rows in left):
            return False
        return all(self.settled(group, offset) for group in GROUPS for offset in self.present())


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.django_db(transaction=True)
def test_every_order_of_the_operations_keeps_the_invariants() -> None:
    """Nothing lost, nothing settled by a stale token, order, attempts, watermarks and collection."""
    run_state_machine_as_test(
        OperationsMachine,
        settings=settings(
            max_examples=16, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
