"""A handler's transaction that commits while its timeout is being decided has the last word: it happens once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from django.db import transaction

from sqlqueue import publish_many
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.core.outcomes import ACKED, DEAD, RETRIED, UNSTARTED, Outcome
from sqlqueue.core.partition import arrivals, changes, settling
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import ConsumerOptions
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log
from sqlqueue.exceptions import LeaseLost
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import groups
from sqlqueue.log import settle as settle_module
from sqlqueue.log.atomic import settle_execution
from sqlqueue.log.fetch import fetch
from sqlqueue.log.messages import Asked, load
from sqlqueue.log.settle import settle
from sqlqueue.models import DeliveryState, Message, Offset, Receipt
from tests.logs import LOG


class Owned:
    """A partition's stream, owned and read."""

    def __init__(self, **manners: object):
        groups.register(LOG, "g", "t")
        publish_many("t", range(4))
        horizon = highest_offset(LOG)
        (taken,) = acquire(LOG, "me", "g", "t", [0], priorities=1, lease_duration=3600, horizon=horizon)
        self.stream = AssignedPartition(
            taken.ref,
            ConsumerOptions(atomic=True, **manners),
            id=taken.id,
            token=taken.token,
            position=taken.position,
            watermark=taken.watermark,
            claimed=taken.claimed,
        )
        read = self.stream.next_read(horizon)
        (found,) = fetch(LOG, [(taken.ref, read)])
        self.stream.take_in(read, found, horizon)

    def turn(self, choose: bool = True, flush: float = 1_000.0) -> list[Execution]:
        runs = self.stream.choose(10) if choose else []
        plan = settling.plan(self.stream, 1.0, flush, runs)
        if plan is not None:
            (result,) = settle(LOG, [plan], "me", {"t": "all"}, 1.0)
            assert not result.stale
        return runs

    def commit(self, run: Execution, hands: list[Attempt] | None = None) -> None:
        with transaction.atomic():
            settle_execution(LOG, run, list(hands or run.attempts))


@pytest.fixture(autouse=True)
def topic(transactional_db: None, settings: object, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SQLQUEUE = {"TOPICS": {"t": {"partitions": 1}}, "WAKE": False}
    monkeypatch.setattr(settle_module, "CHUNK", 2)  # fewer than there are messages


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("outcome", [Outcome(RETRIED, 0.0, "late"), Outcome(DEAD, error="late")])
def test_what_has_committed_is_neither_delivered_again_nor_dead(batch: bool, outcome: Outcome) -> None:
    owned = Owned(batch=batch, ordering="none")
    runs = owned.turn()
    for run in runs:
        owned.commit(run)
    for run in runs:  # at that very moment
        for hand in run.attempts:
            assert changes.finish(owned.stream, hand, outcome, 1.0)
    owned.turn(choose=False)
    assert not DeliveryState.objects.filter(acked=False).exists()
    assert not Message.objects.filter(topic="t_dlq").exists()
    assert set(Receipt.objects.values_list("outcome", flat=True)) == {ACKED}
    offsets = owned.stream.due_rows(2.0, 10)
    ((found, _),) = load(LOG, [Asked(owned.stream.ref, offsets)]) if offsets else (({}, 0),)
    for offset in offsets:
        arrivals.load(owned.stream, offset, *found.get(offset, (None, None)), 2.0)
    assert owned.turn() == []
    assert owned.stream.settled_up
    assert Offset.objects.get().offset_acked == highest_offset(LOG)


def test_a_row_that_comes_after_a_batch_has_committed_is_not_written() -> None:
    owned = Owned(batch=True)
    (run,) = owned.turn()
    owned.commit(run)
    # The position was held back for long, so what is in flight would get rows.
    owned.stream.writes.waits_since = 0.0
    owned.turn(choose=False, flush=0.0)
    assert not DeliveryState.objects.exists()


@pytest.mark.parametrize("batch", [True, False])
def test_an_overrun_that_was_written_first_refuses_the_commit(batch: bool) -> None:
    owned = Owned(batch=batch, ordering="none")
    runs = owned.turn()
    for run in runs:
        for hand in run.attempts:
            changes.finish(owned.stream, hand, Outcome(RETRIED, 0.0, "late"), 1.0)
    owned.turn(choose=False)
    for run in runs:
        with pytest.raises(LeaseLost):
            owned.commit(run)
    assert DeliveryState.objects.filter(acked=False).count() == 4


def test_a_batch_of_which_one_has_overrun_does_not_move_the_position_past_it() -> None:
    owned = Owned(batch=True)
    (run,) = owned.turn()
    changes.finish(owned.stream, run.attempts[2], Outcome(RETRIED, 0.0, "late"), 1.0)  # the others were given more time
    owned.turn(choose=False)
    with pytest.raises(LeaseLost):
        owned.commit(run)
    assert Offset.objects.get().position == run.position
    assert DeliveryState.objects.get().message_offset == run.attempts[2].offset


@pytest.mark.parametrize("batch", [True, False])
def test_a_transaction_that_opens_after_the_lease_has_ended_begins_no_handler(
    batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite there is one writer: the next one may have to wait for longer than its lease lasts."""
    owned = Owned(batch=batch, ordering="none")
    begun: list[object] = []
    reported: list[Outcome] = []

    @contextmanager
    def slow(log: Log, **options: object) -> Iterator[None]:
        with atomic(log, **options):
            owned.stream.lease.deadline = 0.0
            yield

    atomic = Log.atomic
    monkeypatch.setattr(Log, "atomic", slow)
    options = build("t", {"group": "g", "atomic": True, "batch": batch, "ordering": "none"})
    handler = HandlerExecutor(LOG, replace(options, handler=begun.append))
    for run in owned.turn():
        owned.stream.lease.deadline = float("inf")
        handler.run(run, lambda hand, outcome: reported.append(outcome))
    assert begun == []
    assert reported == [UNSTARTED] * 4
