"""delivery.progress: seen while the handler runs, never from a former owner, and gone with the settle."""

import threading
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from sqlqueue import InvalidMessage, LeaseLost, Retry, get_status, publish, publish_many, subscribe
from sqlqueue.consumers.engine import settler as writing
from sqlqueue.core.partition.ref import HeldLease, PartitionRef
from sqlqueue.core.settle_plan import Attempt
from sqlqueue.database.log import Log
from sqlqueue.log import results
from sqlqueue.log.groups import revoke
from sqlqueue.log.results import Reported
from sqlqueue.models import Message, Offset, Progress
from sqlqueue.stats.group_status import GroupStatus
from tests.consuming import QUICK, Consuming
from tests.factories import MessageValueFactory
from tests.logs import LOG
from tests.processes import wait_until

ONE_PARTITION = {**QUICK, "PARTITIONS": 1}
LONG = 60


def of(id: str = "a") -> GroupStatus:
    status = get_status("t", id=id)
    assert status is not None
    return status.groups["default"]


def shown(id: str = "a") -> tuple[float, float | None, str] | None:
    found = of(id).progress
    return None if found is None else (found.done, found.total, found.note)


class Steps:
    """A handler that reports what it is told, and ends when it is told."""

    def __init__(self, consuming: Consuming) -> None:
        self.delivery: Any = None
        self.started, self.go = threading.Event(), consuming.gate()

    def __call__(self, delivery: Any) -> None:
        self.delivery = delivery
        delivery.progress(1, 10, "first")
        self.started.set()
        assert self.go.wait(LONG)

    async def later(self, delivery: Any) -> None:
        self.delivery = delivery
        delivery.progress(1, 10, "first")
        self.started.set()
        assert await sync_to_async(self.go.wait, thread_sensitive=False)(LONG)


@pytest.fixture
def steps(consuming: Consuming, settings: object) -> Steps:
    settings.SQLQUEUE = ONE_PARTITION
    return Steps(consuming)


@pytest.mark.parametrize("kind", ["sync", "async", "atomic"])
def test_it_is_seen_while_the_handler_runs_and_gone_when_it_is_done(
    consuming: Consuming, steps: Steps, kind: str
) -> None:
    if kind == "atomic" and connection.vendor == "sqlite":
        pytest.skip("an atomic handler is the only writer there")
    consuming.consumer("t", steps.later if kind == "async" else steps, atomic=kind == "atomic")
    publish("t", 1, id="a")
    consuming.start()
    wait_until(lambda: shown() == (1, 10, "first"))
    steps.delivery.progress(2.5)
    wait_until(lambda: shown() == (2.5, None, ""))
    steps.go.set()
    wait_until(lambda: of().state == "acked")
    wait_until(lambda: not Progress.objects.exists())
    assert shown() is None


@pytest.mark.database("sqlite")
def test_an_atomic_handler_on_sqlite_holds_nothing_up(consuming: Consuming, steps: Steps) -> None:
    consuming.consumer("t", steps, atomic=True)
    publish("t", 1, id="a")
    host = consuming.start()
    assert steps.started.wait(LONG)
    iterations: list[int] = []
    plain = host.subscriber.settler.store_progress
    host.subscriber.settler.store_progress = lambda *given: (plain(*given), iterations.append(1))
    wait_until(lambda: len(iterations) > 3, timeout=10)  # it does not wait for the handler's transaction
    steps.go.set()
    wait_until(lambda: of().state == "acked")
    assert not Progress.objects.exists()


def test_it_is_written_at_most_once_a_second_for_all_deliveries(
    consuming: Consuming, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    monkeypatch.setattr(writing, "PROGRESS_EVERY", 0.3)
    written: list[tuple[float, int]] = []
    plain = results.store_progress

    def noting(log: Log, reported: Any) -> None:
        written.append((time.monotonic(), len(reported)))
        plain(log, reported)

    monkeypatch.setattr(writing, "store_progress", noting)
    both = threading.Barrier(2)
    steps = 400

    @consuming.consumer("t")
    def handle(delivery: Any) -> None:
        both.wait(LONG)
        for number in range(steps):
            delivery.progress(number + 1, steps)
            time.sleep(0.0025)

    publish_many("t", [1, 2])
    begun = time.monotonic()
    consuming.drain(threads=2)
    took = time.monotonic() - begun
    assert 2 <= len(written) <= took / 0.3 + 2
    assert max(count for _, count in written) == 2
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(written)]
    assert min(gaps) > 0.25
    assert not Progress.objects.exists()


def test_the_last_report_is_stored_though_nothing_follows_it(consuming: Consuming, steps: Steps) -> None:
    consuming.consumer("t", steps)
    publish("t", 1, id="a")
    consuming.start()
    wait_until(lambda: shown() == (1, 10, "first"))
    steps.delivery.progress(3, 10)
    steps.delivery.progress(4, 10)
    wait_until(lambda: shown() == (4, 10, ""), timeout=3)


def test_a_retry_begins_without_it(consuming: Consuming, settings: object) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    seen: list[object] = []
    reported, go = threading.Event(), consuming.gate()

    @consuming.consumer("t")
    def handle(delivery: Any) -> None:
        if delivery.attempt == 1:
            delivery.progress(9, 10)
            wait_until(lambda: Progress.objects.exists())
            raise Retry(delay=0)
        seen.append(shown())
        reported.set()
        assert go.wait(LONG)

    publish("t", 1, id="a")
    consuming.start()
    assert reported.wait(LONG)
    assert seen == [None]
    assert of().state == "in_flight"


class TestFenced:
    def test_after_a_takeover_the_former_owner_says_nothing(self, consuming: Consuming, steps: Steps) -> None:
        consuming.consumer("t", steps, visibility_timeout=3600)
        publish("t", 1, id="a")
        host = consuming.start()
        wait_until(lambda: shown() == (1, 10, "first"))
        with transaction.atomic():
            revoke(LOG, "default", "t")
        assert of().state == "in_flight"
        assert shown() is None  # by another owner's token
        former = steps.delivery._attempt
        wait_until(lambda: former.lease.lost)
        with pytest.raises(LeaseLost):
            steps.delivery.progress(2, 10)
        steps.go.set()
        host.stop()

    def test_a_stale_write_changes_nothing_that_the_new_owner_has_stored(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        message = Message.objects.get()
        ref = PartitionRef("default", "t", message.partition)
        value = MessageValueFactory(offset=message.offset)
        former, present = (Attempt(HeldLease(ref, 1, token), value, 1) for token in (7, 8))
        results.store_progress(LOG, [(present, Reported(5, 10, "the new owner"))])
        results.store_progress(LOG, [(former, Reported(9, 10, "the former"))])
        assert Progress.objects.get().note == "the new owner"
        again = Attempt(HeldLease(ref, 1, 8), value, 2)
        results.store_progress(LOG, [(again, Reported(1, 10, "again"))])
        results.store_progress(LOG, [(present, Reported(6, 10, "late"))])
        assert Progress.objects.get().note == "again"
        results.store_progress(LOG, [(again, Reported(2, 10, "on"))])
        row = Progress.objects.get()
        assert (row.note, row.done, row.fencing_token, row.serial) == ("on", 2, 8, again.serial)

    def test_a_row_of_another_token_is_not_shown(self, consuming: Consuming, steps: Steps) -> None:
        consuming.consumer("t", steps)
        publish("t", 1, id="a")
        consuming.start()
        wait_until(lambda: shown() == (1, 10, "first"))
        token = Offset.objects.get(topic="t", priority=0).fencing_token
        assert Progress.objects.get().fencing_token == token
        Progress.objects.update(fencing_token=token - 1)
        assert shown() is None


def test_a_pulled_delivery_reports_too(consuming: Consuming, settings: object) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    publish("t", 1, id="a")
    with subscribe("t", timeout=LONG, keep_results=timedelta(days=1)) as deliveries:
        delivery = next(iter(deliveries))
        delivery.progress(1, 2, "half")
        wait_until(lambda: shown() == (1, 2, "half"))
        delivery.ack(result={"ok": True})
        wait_until(lambda: of().state == "acked")
    assert of().result == {"ok": True}
    assert not Progress.objects.exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((-1,), "done must be a number from 0"),
        (("1",), "done must"),
        ((True,), "done must"),
        ((float("nan"),), "done must"),
        ((2**54,), "done must"),
        ((1, "2"), "total must"),
        ((1, -1), "total must"),
        ((1, 2, "x" * 256), "256 characters"),
        ((1, 2, None), "note must be a string"),
        ((1, 2, "\0"), "NUL"),
        ((1, 2, "\ud800"), "Unicode"),
    ],
    ids=repr,
)
@pytest.mark.once
def test_what_cannot_be_stored_is_refused_in_the_handler(consuming: Consuming, given: Any, why: str) -> None:
    errors: list[BaseException] = []

    @consuming.consumer("t")
    def handle(delivery: Any) -> None:
        with pytest.raises(InvalidMessage, match=why) as caught:
            delivery.progress(*given)
        errors.append(caught.value)

    publish("t", 1)
    consuming.drain()
    assert len(errors) == 1


def test_more_progress_than_one_statement_takes_is_stored_and_deleted(
    consuming: Consuming, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    monkeypatch.setattr(results, "CHUNK", 2)
    go = consuming.gate()

    @consuming.consumer("t")
    async def handle(delivery: Any) -> None:
        delivery.progress(delivery.payload)
        assert await sync_to_async(go.wait, thread_sensitive=False)(LONG)

    publish_many("t", range(7))
    host = consuming.start()
    wait_until(lambda: sorted(Progress.objects.values_list("done", flat=True)) == list(range(7)))
    go.set()
    wait_until(lambda: host.subscriber.settled == 7)
    assert not Progress.objects.exists()
