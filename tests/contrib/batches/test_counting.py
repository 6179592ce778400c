"""Members are counted in the settle that settles them for good, whatever kind of handler they have."""

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue import Batch, Delivery, NewMessage, Reject, Retry, get_batch, publish, publish_many
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.models import DeliveryState, Message
from tests.consuming import QUICK, Consuming
from tests.contrib.batches.following import CALLED, counted, figures, register, standing
from tests.processes import wait_until

KINDS = pytest.mark.parametrize("kind", ["sync", "atomic", "async", "batch", "atomic batch"])


@KINDS
def test_every_member_is_counted_once(consuming: Consuming, called: list[Any], kind: str) -> None:
    register(consuming, kind, lambda delivery: None)
    with Batch(on_finish=(CALLED, "finish"), on_success=(CALLED, "success"), on_failure=(CALLED, "failure")) as batch:
        for n in range(20):
            batch.publish("t", n, key=str(n % 7))
        batch.publish_many("t", [NewMessage(n, key=str(n)) for n in range(10)])
    publish_many("t", [NewMessage(n, key=str(n)) for n in range(30)])
    assert figures(batch.id)[0] == 30
    consuming.drain()
    assert figures(batch.id) == (30, 30, 0)
    assert counted(batch.id) == (30, 0)
    assert standing(batch.id).state == "succeeded"
    assert sorted(called) == ["finish", "success"]


@KINDS
def test_what_fails_is_counted_once_it_is_settled_for_good(consuming: Consuming, called: list[Any], kind: str) -> None:
    def handle(delivery: Delivery) -> None:
        if delivery.payload % 5 == 0:
            raise Retry("no", delay=0)
        if delivery.payload % 3 == 0 and delivery.attempt < 3:
            raise Retry("again", delay=0)

    register(consuming, kind, handle, max_attempts=4)
    with Batch(on_finish=(CALLED, "finish"), on_success=(CALLED, "success"), on_failure=(CALLED, "failure")) as batch:
        batch.publish_many("t", [NewMessage(n, key=str(n % 4)) for n in range(20)])
    consuming.drain()
    assert figures(batch.id) == (20, 16, 4)
    assert counted(batch.id) == (16, 4)
    assert standing(batch.id).state == "finished"
    assert sorted(called) == ["failure", "finish"]


@KINDS
def test_a_successor_goes_on_where_its_predecessor_had_acked_out_of_order(
    consuming: Consuming, called: list[Any], settings: Any, kind: str
) -> None:
    """The first message waits for a minute with its row; the others have acked rows above the position, or none."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    gate, seen = threading.Event(), []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload == 0 and not gate.is_set():
            raise Retry("later", delay=0.3)
        if delivery.payload == 3:
            raise Reject("no")

    register(consuming, kind, handle, max_attempts=None, ordering="none")
    with Batch(on_finish=(CALLED, "finish")) as batch:
        batch.publish_many("t", list(range(8)))
    for _ in range(2):
        host = consuming.start()
        wait_until(lambda: set(seen) >= set(range(8)))
        host.stop()
        assert called == []
    gate.set()
    host = consuming.start()
    wait_until(lambda: called == ["finish"])
    host.stop()
    assert figures(batch.id) == (8, 7, 1)
    assert counted(batch.id) == (7, 1)
    assert not DeliveryState.objects.filter(topic="t").exists()


def test_two_groups_settle_each_member_each(consuming: Consuming, called: list[Any]) -> None:
    gate = consuming.gate()
    consuming.consumer("t", lambda delivery: None, group="quick")
    consuming.consumer("t", lambda delivery: gate.wait(60), group="slow")
    consuming.drain()
    with Batch(on_finish=(CALLED, "finish")) as batch:
        batch.publish_many("t", [1, 2, 3])
        batch.publish("t", 4, group="quick")
    host = consuming.start()
    wait_until(lambda: figures(batch.id) == (7, 4, 0))
    assert called == []
    gate.set()
    wait_until(lambda: called == ["finish"])
    host.stop()
    assert figures(batch.id) == (7, 7, 0)


def test_expired_members_count_as_failed(consuming: Consuming, called: list[Any]) -> None:
    register(consuming, "sync", lambda delivery: None)
    with Batch(on_finish=(CALLED, "finish"), on_failure=(CALLED, "failure")) as batch:
        expired = batch.publish("t", 1, expires=3600).offset
        batch.publish("t", 2, expires=3600)
    Message.objects.filter(offset=expired).update(expires_at="2020-01-01T00:00Z")
    consuming.drain()
    assert figures(batch.id) == (2, 1, 1)
    assert counted(batch.id) == (1, 1)
    assert sorted(called) == ["failure", "finish"]


def test_an_id_that_is_taken_adds_no_member(consuming: Consuming, called: list[Any]) -> None:
    register(consuming, "sync", lambda delivery: None)
    publish("t", 0, id="a")
    publish("t", 0, id="b", delay=3600)
    with Batch(on_finish=(CALLED, "finish")) as batch:
        assert batch.publish("t", 1, id="a").status == "ignored"
        assert batch.publish("t", 1, id="b").status == "ignored"
        assert batch.publish("t", 1, id="c").status == "created"
        many = batch.publish_many("t", [NewMessage(1, id=id) for id in "abcdd"])
        assert (many.created, many.ignored) == (1, 4)
        streamed = batch.publish_many("t", (NewMessage(1, id=id) for id in "abcde"))
        assert (streamed.created, streamed.ignored) == (1, 4)
    assert figures(batch.id)[0] == 3
    consuming.drain()
    assert figures(batch.id) == (3, 3, 0)
    assert called == ["finish"]


def undone(batch: Batch) -> None:
    with transaction.atomic():
        batch.publish("t", 2)
        batch.publish("elsewhere", 2)
        transaction.set_rollback(True)


def test_what_is_rolled_back_is_no_member(consuming: Consuming, called: list[Any]) -> None:
    register(consuming, "sync", lambda delivery: None)
    with Batch(on_finish=(CALLED, "finish")) as batch:
        batch.publish("t", 0)
        with transaction.atomic():
            batch.publish("t", 1)
            undone(batch)
            batch.publish("t", 3)
        undone(batch)
        batch.publish("t", 5)
    assert figures(batch.id)[0] == 4
    consuming.drain()
    assert called == ["finish"]


def test_members_carry_their_batch_and_callers_do_not_see_the_header(consuming: Consuming) -> None:
    found: list[Any] = []
    consuming.consumer(
        "t", lambda delivery: found.append(((batch := Batch.of(delivery)) and batch.id, delivery.headers))
    )
    with Batch() as batch:
        batch.publish("t", 1, headers={"a": 1})
    publish("t", 2)
    consuming.drain()
    assert sorted(found, key=str) == sorted([(batch.id, {"a": 1}), (None, {})], key=str)


def statements(subscriber: Subscriber, count: int) -> list[str]:
    """Return the statements of a subscriber's control thread until it has settled so many deliveries."""
    seen: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql.replace('"', "").replace("`", ""))
        return execute(sql, params, many, context)

    subscriber.start()
    with connection.execute_wrapper(note):
        wait_until(lambda: subscriber.run_once() is not None and subscriber.settled == count)
    subscriber.stop(0.0)
    subscriber.close()
    return seen


def test_a_message_without_a_batch_costs_no_statement(consuming: Consuming) -> None:
    register(consuming, "sync", lambda delivery: None)
    publish_many("t", [NewMessage(n, key=str(n), headers={"a": 1}) for n in range(20)])
    assert not [sql for sql in statements(consuming.subscriber(background_tasks=False), 20) if "batch" in sql]


def test_members_of_many_partitions_are_settled_with_one_statement(consuming: Consuming) -> None:
    register(consuming, "sync", lambda delivery: None)
    consuming.drain()
    with Batch() as batch:
        batch.publish_many("t", [NewMessage(n, key=str(n)) for n in range(40)])
    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.settler.tell_effects = lambda written: None
    seen = statements(subscriber, 40)
    assert counted(batch.id) == (40, 0)
    written = [sql for sql in seen if "UPDATE sqlqueue_batch_part" in sql]
    settled = [sql for sql in seen if "sqlqueue_offset" in sql and sql.split()[0] == "UPDATE"]
    assert 1 <= len(written) <= len(settled)


@pytest.mark.django_db
def test_an_unknown_batch_is_none() -> None:
    assert get_batch("unknown") is None


@pytest.mark.parametrize(("ordering", "count", "step"), [("key", 30, 3), ("none", 30, 3), ("key", 120, 40)])
def test_members_that_a_filter_leaves_out_are_counted_as_acked(
    consuming: Consuming, called: list[Any], ordering: str, count: int, step: int
) -> None:
    """Where it leaves out nearly all, they are not even read whole."""
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload["n"])
        if delivery.attempt == 1:
            raise Retry("once", delay=0)

    register(consuming, "sync", handle, where={"payload.wanted": True}, ordering=ordering)
    with Batch(on_finish=(CALLED, "finish")) as batch:
        batch.publish_many("t", [NewMessage({"n": n, "wanted": n % step == 0}, key=str(n % 2)) for n in range(count)])
    consuming.drain()
    assert sorted(set(seen)) == list(range(0, count, step))
    assert counted(batch.id) == (count, 0)
    assert called == ["finish"]
