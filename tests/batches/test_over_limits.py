"""More than one statement, one sweep or one thread's memory takes."""

import threading
from typing import Any

import pytest
from django.db import connections

from sqlqueue import Batch, Delivery, NewMessage
from sqlqueue.consumers.background import batches as task
from sqlqueue.log import batch_collect, batch_counts, batch_ends, batch_parts, batch_recounts
from sqlqueue.log.batch_standing import standings
from sqlqueue.models import Batch as BatchRow
from sqlqueue.models import BatchGroup, BatchPart, BatchProgress
from sqlqueue.operations.move import move
from tests.batches.following import counted, figures, register
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until


def test_members_of_more_batches_than_one_statement_takes(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(batch_counts, "CHUNK", 3)
    monkeypatch.setattr(batch_counts, "MOST_REMEMBERED", 5)
    register(consuming, "sync", lambda delivery: None)
    filled = []
    for _ in range(20):
        with Batch() as batch:
            batch.publish_many("t", [1, 2])
        filled.append(batch)
    consuming.drain()
    assert {counted(batch.id) for batch in filled} == {(2, 0)}


def test_more_batches_than_one_sweep_and_one_read_take(
    consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_ends, "SWEPT_AT_ONCE", 7)
    monkeypatch.setattr("sqlqueue.log.batch_standing.AT_ONCE", 3)
    monkeypatch.setattr("sqlqueue.log.batches.batch_ends.check_quietly", lambda alias, ids: None)
    filled = []
    for _ in range(20):
        with Batch(on_finish=("called", 1)) as batch:
            pass
        filled.append(batch.id)
    beyond, sweeps = batch_ends.sweep(LOG), 1
    while beyond:
        beyond, sweeps = batch_ends.sweep(LOG, beyond), sweeps + 1
    assert sweeps == 3
    assert {standing.batch.over for standing in standings(LOG, filled).values()} == {True}
    assert len(standings(LOG, filled)) == 20


def test_more_parts_than_a_thread_remembers(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_parts, "MOST_PARTS", 2)
    with Batch() as batch:
        for n in range(12):
            batch.publish(f"t{n % 4}", n)
    assert figures(batch.id)[0] == 12


def test_each_thread_counts_in_a_row_of_its_own(consuming: Consuming) -> None:
    def add(batch: Batch) -> None:
        for n in range(3):
            batch.publish("u", n)
        connections.close_all()

    def handle(delivery: Delivery) -> None:
        assert delivery.batch is not None
        threads = [threading.Thread(target=add, args=[delivery.batch]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    register(consuming, "sync", handle)
    with Batch() as batch:
        batch.publish("t", 1)
    consuming.drain()
    assert sorted(BatchPart.objects.filter(topic="u").values_list("added", flat=True)) == [3, 3, 3]
    assert figures(batch.id)[0] == 10


def test_a_group_is_moved_over_more_members_than_one_page_holds(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(batch_recounts, "AT_ONCE", 4)
    register(consuming, "sync", lambda delivery: None)
    with Batch() as batch:
        batch.publish_many("t", [NewMessage(n) for n in range(30)])
        batch.publish("unread", 1)
    consuming.drain()
    move(LOG, "default", "t", 0)
    assert figures(batch.id) == (31, 0, 0)
    consuming.drain()
    assert figures(batch.id) == (31, 30, 0)


class TestRetention:
    def test_ended_batches_are_deleted_with_their_counts(
        self, consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batch_collect, "AT_ONCE", 2)
        register(consuming, "sync", lambda delivery: None)
        for _ in range(5):
            with Batch() as batch:
                batch.publish("t", 1)
        with Batch() as cancelled:
            cancelled.publish("t", 1)
        cancelled.cancel()
        with Batch() as running:
            running.publish("unread", 1)
        consuming.drain()
        assert batch_collect.collect(LOG) == 0
        settings.SQLQUEUE = {**QUICK, "BATCH_RETENTION": 0}
        assert batch_collect.collect(LOG) == 6
        assert list(BatchRow.objects.values_list("id", flat=True)) == [running.id]
        assert {row.batch for row in BatchPart.objects.all()} == {running.id}
        assert not BatchGroup.objects.exists()
        assert not BatchProgress.objects.exists()

    def test_so_many_at_once(self, consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batch_collect, "AT_ONCE", 2)
        monkeypatch.setattr(batch_collect, "MOST_AT_ONCE", 4)
        settings.SQLQUEUE = {**QUICK, "BATCH_RETENTION": 0}
        for _ in range(5):
            with Batch():
                pass
        assert batch_collect.collect(LOG) == 4
        assert batch_collect.collect(LOG) == 1


def test_the_task_sweeps_by_itself(consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "INTERVAL", 0.05)
    monkeypatch.setattr("sqlqueue.log.batches.batch_ends.check_quietly", lambda alias, ids: None)
    with Batch(on_finish=("called", 1)) as batch:
        pass
    assert figures(batch.id) == (0, 0, 0)
    host = consuming.start()
    wait_until(lambda: called == [1])
    host.stop()
