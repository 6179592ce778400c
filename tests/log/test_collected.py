"""keep_collected: what collection deletes from the log it writes to a table, in the same transaction."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from sqlqueue import Reject, Retry, publish, publish_many
from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.log import collect as collecting
from sqlqueue.log import groups, retention
from sqlqueue.log.collect import collect
from sqlqueue.models import CollectedMessage, Message
from sqlqueue.operations.move import move
from sqlqueue.operations.replay import discard
from sqlqueue.operations.topics import purge
from tests.consuming import QUICK, Consuming
from tests.factories import ReceiptFactory
from tests.logs import LOG

KEPT = {**QUICK, "RETENTION": 0, "TOPICS": {"t": {"keep_collected": timedelta(days=1)}, "u": {}}}


@pytest.fixture(autouse=True)
def keeping(consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the test collect."""
    settings.SQLQUEUE = KEPT
    monkeypatch.setattr(CollectorTask, "run_once", lambda self: False)


def run_collection() -> int:
    horizon = Horizon(LOG)
    horizon.wait()
    return collect(LOG, horizon).messages


def left() -> list[Any]:
    return [row.payload for row in Message.objects.order_by("offset")]


def test_what_is_collected_is_there_as_it_was_with_what_became_of_it(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**KEPT, "TOPICS": {"t": {"keep_collected": timedelta(days=1), "history": "all"}}}

    def handle(delivery: Any) -> None:
        if delivery.attempt == 1:
            raise Retry(delay=0)

    def reject(delivery: Any) -> None:
        raise Reject("no")

    consuming.consumer("t", handle)
    consuming.consumer("t", reject, group="rejecting")
    published = publish("t", {"n": ["ä", 1.5, None]}, key="k", id="a", headers={"h": 1})
    publish("t", 2, id="b", group="default")
    publish("t", b"bytes", id="c", group="default", content_type="text/plain")
    consuming.drain()
    rows = {row.message_id: row for row in Message.objects.filter(topic="t")}
    assert run_collection() == 3
    kept = {row.message_id: row for row in CollectedMessage.objects.all()}
    assert set(kept) == set(rows) == {"a", "b", "c"}
    for name, row in rows.items():
        for field in ("topic", "partition", "priority", "partition_key", "payload", "headers", "created_at", "due_at"):
            assert getattr(kept[name], field) == getattr(row, field), field
        assert kept[name].message_offset == row.offset
        assert (kept[name].body is None) == (row.body is None)
        assert kept[name].kept_until - kept[name].collected_at == timedelta(days=1)
    assert bytes(kept["c"].body or b"") == b"bytes"
    acked = {"default": {"outcome": "acked", "attempts": 2}}
    assert kept["a"].message_offset == published.offset
    assert kept["a"].outcomes == {**acked, "rejecting": {"outcome": "dead", "attempts": 1}}
    assert kept["b"].outcomes == acked


@pytest.mark.parametrize("discarded", [False, True])
def test_a_dead_letter_is_told_by_its_copy_or_by_its_receipt(
    consuming: Consuming, settings: Any, discarded: bool
) -> None:
    history = "failures" if discarded else "none"
    settings.SQLQUEUE = {**KEPT, "TOPICS": {"t": {"keep_collected": timedelta(days=1), "history": history}}}

    def reject(delivery: Any) -> None:
        raise Reject("no")

    consuming.consumer("t", reject)
    publish("t", 1)
    consuming.drain()
    if discarded:
        discard("t")
    run_collection()
    assert CollectedMessage.objects.get().outcomes == {"default": {"outcome": "dead", "attempts": 1}}


def test_they_are_moved_by_the_transaction_that_collects(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    consuming.consumer("t", lambda delivery: None)
    publish_many("t", [1, 2, 3])
    consuming.drain()
    delete = collecting.delete_all

    def failing(log: Log, table: str, *given: Any) -> None:
        delete(log, table, *given)
        raise RuntimeError

    monkeypatch.setattr(collecting, "delete_all", failing)
    with pytest.raises(RuntimeError):
        run_collection()
    monkeypatch.setattr(collecting, "delete_all", delete)
    assert (sorted(left()), CollectedMessage.objects.count()) == ([1, 2, 3], 0)
    assert run_collection() == 3
    assert (left(), CollectedMessage.objects.count()) == ([], 3)


def test_other_topics_and_what_is_not_collected_are_not_kept(consuming: Consuming) -> None:
    for topic in ("t", "u"):
        consuming.consumer(topic, lambda delivery: None)
    consuming.consumer("t", lambda delivery: None, group="away")
    groups.register(LOG, "away", "t")
    publish("t", 1)
    publish("u", 2)
    consuming.drain("default")
    collect(LOG, Horizon(LOG))
    run_collection()
    assert not CollectedMessage.objects.exists()
    consuming.drain("away")
    run_collection()
    assert [row.payload for row in CollectedMessage.objects.all()] == [1]


def test_what_an_operator_purges_is_not_kept(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**KEPT, "RETENTION": None}
    consuming.consumer("t", lambda delivery: None)
    publish_many("t", [1, 2])
    consuming.drain()
    purge(LOG, "t", through=highest_offset(LOG))
    run_collection()
    assert (left(), CollectedMessage.objects.count()) == ([], 0)


def test_they_are_deleted_when_their_time_is_over(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None)
    publish_many("t", range(5))
    consuming.drain()
    run_collection()
    run_collection()
    assert CollectedMessage.objects.count() == 5
    some = CollectedMessage.objects.order_by("pk")[:2].values_list("pk", flat=True)
    CollectedMessage.objects.filter(pk__in=list(some)).update(kept_until=F("collected_at") - timedelta(seconds=1))
    run_collection()
    assert CollectedMessage.objects.count() == 3


def test_more_than_one_statement_takes_are_kept_with_the_last_receipt_of_each(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    consuming.consumer("t", lambda delivery: None)
    publish_many("t", range(10))
    consuming.drain()
    for attempts in range(1, 4):
        for offset in Message.objects.values_list("offset", flat=True):
            place = {"topic": "t", "consumer_group": "default", "partition": 0, "message_offset": offset}
            ReceiptFactory(**place, outcome="acked", attempts=attempts)
    monkeypatch.setattr(retention, "CHUNK", 3)
    monkeypatch.setattr(retention, "MOST_RECEIPTS", 1)
    run_collection()
    assert sorted(row.payload for row in CollectedMessage.objects.all()) == list(range(10))
    assert {row.outcomes["default"]["attempts"] for row in CollectedMessage.objects.all()} == {3}


@pytest.mark.parametrize("way", ["rewind", "skip"])
def test_what_a_group_has_got_is_kept_although_it_was_moved(consuming: Consuming, way: str) -> None:
    consuming.consumer("t", lambda delivery: None)
    publish("t", 1)
    last = publish("t", 2)
    consuming.drain()
    move(LOG, "default", "t", 10**18 if way == "skip" else last.offset or 0)
    assert run_collection() == 2
    kept = CollectedMessage.objects.order_by("message_offset").values_list("outcomes", flat=True)
    assert list(kept) == [{"default": {"outcome": "acked"}}] * 2
