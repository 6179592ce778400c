"""More than one statement, one sweep or one thread's memory takes."""

import threading
from typing import Any

import pytest
from django.db import connections

from sqlqueue import Batch, Delivery, NewMessage
from sqlqueue.contrib.batches import collect, ends, members
from sqlqueue.contrib.batches.models import BITS, BatchPart
from sqlqueue.contrib.batches.models import Batch as BatchRow
from sqlqueue.log import withdrawing
from sqlqueue.operations.move import move
from tests.consuming import QUICK, Consuming
from tests.contrib.batches.following import counted, figures, register
from tests.logs import LOG
from tests.processes import wait_until


def test_more_members_than_one_statement_takes(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(members, "AT_ONCE", 3)
    register(consuming, "sync", lambda delivery: None)
    filled = []
    for _ in range(5):
        with Batch() as batch:
            batch.publish_many("t", range(10))
        filled.append(batch)
    consuming.drain()
    assert {counted(batch.id) for batch in filled} == {(10, 0)}


def test_more_members_than_a_part_holds(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    register(consuming, "sync", lambda delivery: None)
    consuming.drain()
    with Batch() as batch:
        batch.publish_many("t", range(2 * BITS))
        batch.publish("t", 1)
    assert sorted(row.members.bit_count() for row in BatchPart.objects.all()) == [1, BITS, BITS]
    consuming.drain()
    assert figures(batch.id) == (2 * BITS + 1, 2 * BITS + 1, 0)


def test_more_batches_than_one_sweep_and_one_read_take(
    consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "AT_ONCE", 7)
    monkeypatch.setattr(ends, "check_quietly", lambda log, ids: None)
    filled = []
    for _ in range(20):
        with Batch(on_finish=("called", 1)) as batch:
            pass
        filled.append(batch.id)
    assert ends.sweep(LOG)
    assert not ends.sweep(LOG)
    assert set(BatchRow.objects.values_list("id", "over")) == {(id, True) for id in filled}


def test_threads_of_a_handler_add_members_beside_each_other(consuming: Consuming) -> None:
    def add(batch: Batch) -> None:
        for n in range(3):
            batch.publish("u", n)
        connections.close_all()

    def handle(delivery: Delivery) -> None:
        threads = [threading.Thread(target=add, args=[Batch.of(delivery)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    register(consuming, "sync", handle)
    with Batch() as batch:
        batch.publish("t", 1)
    consuming.drain()
    assert len(set(BatchPart.objects.filter(topic="u").values_list("part", flat=True))) == 9
    assert figures(batch.id)[0] == 10


def test_a_group_is_moved_over_more_members_than_one_page_holds(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(withdrawing, "AT_ONCE", 4)
    monkeypatch.setattr(members, "AT_ONCE", 3)
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
        monkeypatch.setattr(collect, "AT_ONCE", 2)
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
        assert collect.collect(LOG) == 0
        settings.SQLQUEUE_BATCHES = {"RETENTION": 0}
        assert collect.collect(LOG) == 6
        assert list(BatchRow.objects.values_list("id", flat=True)) == [running.id]
        assert {row.batch for row in BatchPart.objects.all()} == {running.id}

    def test_so_many_at_once(self, consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(collect, "AT_ONCE", 2)
        monkeypatch.setattr(collect, "MOST_AT_ONCE", 4)
        settings.SQLQUEUE_BATCHES = {"RETENTION": 0}
        for _ in range(5):
            with Batch():
                pass
        assert collect.collect(LOG) == 4
        assert collect.collect(LOG) == 1


def test_the_task_sweeps_by_itself(consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "check_quietly", lambda log, ids: None)
    with Batch(on_finish=("called", 1)) as batch:
        pass
    assert figures(batch.id) == (0, 0, 0)
    host = consuming.start()
    wait_until(lambda: called == [1])
    host.stop()
