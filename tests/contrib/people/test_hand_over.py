"""HandOver, and topics that people work on: a message becomes one work item, and is settled, in one transaction."""

import threading
from typing import Any

import pytest
from django.db import connection, connections, transaction

from sqlqueue import HandOver, InvalidMessage, get_status, publish, publish_many, subscribe
from sqlqueue.consumers.engine import settler
from sqlqueue.contrib.people import effect, work_on
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.core.new_message import NewMessage
from sqlqueue.log.groups import revoke
from sqlqueue.log.publish import publish_message
from sqlqueue.models import DeliveryState, Message, Result
from sqlqueue.operations.move import move
from sqlqueue.testing import drain
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming, states, watermark
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.processlist import end_this_threads_connection

ONE_PARTITION = {**QUICK, "PARTITIONS": 1}


def async_of(handle: Any) -> Any:
    async def handle_async(delivery: Any) -> Any:
        return handle(delivery)

    return handle_async


KINDS = pytest.mark.parametrize("kind", ["sync", "atomic", "async"])


def register(consuming: Consuming, kind: str, handle: Any, **options: Any) -> None:
    consuming.consumer("t", async_of(handle) if kind == "async" else handle, atomic=kind == "atomic", **options)


def ask(delivery: Any) -> None:
    if delivery.payload["amount"] > 500:
        raise HandOver("amount over 500", form={"amount": 500})


@KINDS
class TestHandedOver:
    def test_the_message_is_copied_and_acked(self, consuming: Consuming, kind: str) -> None:
        register(consuming, kind, ask)
        publish("t", {"amount": 700, "name": "Zoë"}, key="ann", id="r-1", headers={"lang": "de"})
        publish("t", {"amount": 20}, key="ann", id="r-2")
        consuming.drain()
        (item,) = WorkItem.objects.all()
        assert (item.topic, item.partition_key, item.message_id, item.consumer_group) == ("t", "ann", "r-1", "default")
        assert (item.payload, item.headers, item.body) == ({"amount": 700, "name": "Zoë"}, {"lang": "de"}, None)
        assert (item.reason, item.form, item.attempts) == ("amount over 500", {"amount": 500}, 1)
        assert (item.state, item.assignee, item.version, item.due_at) == ("open", "", 0, None)
        message = Message.objects.get(message_id="r-1")
        assert (item.message_offset, item.published_at) == (message.offset, message.created_at)
        status = get_status("t", id="r-1", key="ann")
        assert status is not None
        assert status.groups["default"].state == "acked"

    def test_it_holds_no_watermark(self, consuming: Consuming, settings: Any, kind: str) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        register(consuming, kind, ask)
        offsets = [publish("t", {"amount": 501 + number}).offset for number in range(20)]
        consuming.drain()
        assert WorkItem.objects.count() == 20
        assert watermark("t") == offsets[-1]
        assert not DeliveryState.objects.exists()

    def test_it_is_no_result_and_no_reply(self, consuming: Consuming, kind: str) -> None:
        """A caller would take None for the reply."""
        register(consuming, kind, ask, keep_results=100)
        publish_message("t", NewMessage({"amount": 501}), reply_kept=100)
        consuming.drain()
        assert WorkItem.objects.count() == 1
        assert not Result.objects.exists()

    def test_a_form_that_is_no_json_is_the_handlers_failure(self, consuming: Consuming, kind: str) -> None:
        def handle(delivery: Any) -> None:
            raise HandOver("no", form={"at": object()})

        register(consuming, kind, handle, max_attempts=1)
        publish("t", 1, id="a")
        consuming.drain()
        assert not WorkItem.objects.exists()
        (dead,) = Message.objects.dead_letters()
        assert "HandOver: form is not JSON" in dead.last_error

    def test_a_handler_that_lost_its_lease_hands_nothing_over(
        self, consuming: Consuming, settings: Any, kind: str
    ) -> None:
        if kind == "async" or (connection.vendor == "sqlite" and kind == "atomic"):
            pytest.skip("its gate would stop the loop; its transaction is the only one that writes")
        settings.SQLQUEUE = ONE_PARTITION
        started, go = threading.Event(), consuming.gate()

        def handle(delivery: Any) -> None:
            started.set()
            assert go.wait(60)
            raise HandOver("of the former owner")

        register(consuming, kind, handle)
        publish("t", 1, id="a")
        host = consuming.start()
        assert started.wait(60)
        with transaction.atomic():
            revoke(LOG, "default", "t")
        host.subscriber.ownership.balance = lambda *_: False  # it takes nothing again
        go.set()
        wait_until(lambda: not len(host.subscriber.in_flight))
        host.stop()
        assert not WorkItem.objects.exists()

    def test_after_a_reset_an_open_item_stays_the_only_one_and_a_done_one_is_followed_by_another(
        self, consuming: Consuming, kind: str
    ) -> None:
        register(consuming, kind, ask)
        publish("t", {"amount": 501}, key="open")
        publish("t", {"amount": 502}, key="done")
        consuming.drain()
        WorkItem.objects.filter(partition_key="done").update(state="done")
        move(LOG, "default", "t", 0)
        consuming.drain()
        found = WorkItem.objects.order_by("id").values_list("partition_key", "state")
        assert sorted(found) == [("done", "done"), ("done", "open"), ("open", "open")]


def test_what_an_atomic_handler_did_is_committed_with_its_item(consuming: Consuming) -> None:
    def handle(delivery: Any) -> None:
        Effect.objects.create(name="seen", value=str(delivery.payload))
        if delivery.payload == 2:
            raise HandOver("two")

    consuming.consumer("t", handle, atomic=True)
    publish_many("t", [1, 2])
    consuming.drain()
    assert sorted(Effect.objects.values_list("value", flat=True)) == ["1", "2"]
    assert WorkItem.objects.get().payload == 2


def test_an_item_that_cannot_be_written_leaves_nothing_of_its_atomic_handler(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = effect.write

    def failing(*given: Any) -> None:
        plain(*given)
        raise ValueError("not this time")

    def handle(delivery: Any) -> None:
        Effect.objects.create(name="seen", value="1")
        raise HandOver("one")

    monkeypatch.setattr(effect, "write", failing)
    consuming.consumer("t", handle, atomic=True, max_attempts=1)
    publish("t", 1)
    consuming.drain()
    assert (Effect.objects.count(), WorkItem.objects.count()) == (0, 0)
    assert Message.objects.dead_letters().count() == 1


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_batch_is_delivered_one_by_one_to_find_the_message(
    consuming: Consuming, settings: Any, atomic: bool, is_async: bool
) -> None:
    if atomic and is_async:
        pytest.skip("refused")
    settings.SQLQUEUE = ONE_PARTITION
    handled: list[int] = []

    def handle(deliveries: list[Any]) -> None:
        for delivery in deliveries:
            if delivery.payload == 3:
                raise HandOver("three")
        handled.extend(delivery.payload for delivery in deliveries)

    consuming.consumer("t", async_of(handle) if is_async else handle, batch=True, atomic=atomic, max_attempts=1)
    publish_many("t", range(6))
    consuming.drain()
    assert sorted(handled) == [0, 1, 2, 4, 5]
    assert WorkItem.objects.get().payload == 3
    assert not Message.objects.dead_letters().exists()


def test_a_settle_that_is_run_again_writes_no_second_item(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to its first commit is lost; SQLite has none to lose, and settles twice."""
    plain, lost = settler.settle, []

    def settle(*given: Any) -> Any:
        done = plain(*given)
        if WorkItem.objects.exists() and not lost:
            lost.append(1)
            if connection.vendor == "sqlite":
                done = plain(*given)
                lost.append(2)
                return done
            end_this_threads_connection()
            connection.cursor().execute("SELECT 1")
        return done

    monkeypatch.setattr(settler, "settle", settle)
    consuming.consumer("t", ask)
    publish("t", {"amount": 501})
    consuming.drain()
    assert lost == ([1, 2] if connection.vendor == "sqlite" else [1])
    assert WorkItem.objects.count() == 1


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_an_atomic_hand_over_whose_reply_is_lost_is_there_once(consuming: Consuming) -> None:
    calls: list[int] = []

    def handle(delivery: Any) -> None:
        calls.append(delivery.attempt)
        mine, plain = connections["default"], connections["default"].commit

        def commit() -> None:
            del mine.commit
            plain()
            end_this_threads_connection()
            mine.cursor().execute("SELECT 1")

        mine.commit = commit
        raise HandOver("once")

    consuming.consumer("t", handle, atomic=True)
    publish("t", 1, id="a")
    consuming.drain()
    assert calls == [1]
    assert WorkItem.objects.count() == 1


def test_the_ack_is_stored_with_the_item_while_an_earlier_message_holds_the_position(
    consuming: Consuming, settings: Any
) -> None:
    """Acks that wait in memory for the position would be lost with the process, after the item was written."""
    settings.SQLQUEUE = {**ONE_PARTITION, "FLUSH_INTERVAL": 3600}
    go = consuming.gate()

    def handle(delivery: Any) -> None:
        if delivery.payload == 1:
            assert go.wait(60)
        else:
            raise HandOver("two")

    consuming.consumer("t", handle)
    publish("t", 1, key="a")
    offset = publish("t", 2, key="b").offset
    consuming.start()
    wait_until(lambda: WorkItem.objects.exists())
    assert (offset, 1, True) in states("t")


def test_a_pull_loop_hands_over_too(consuming: Consuming) -> None:
    publish("t", 1, id="a")
    with subscribe("t", group="pull") as deliveries:
        delivery = next(iter(deliveries))
        delivery.fail(HandOver("look", form={"x": 1}))
        delivery.fail(HandOver("look", form={"x": 1}))
    item = WorkItem.objects.get()
    assert (item.consumer_group, item.reason, item.form) == ("pull", "look", {"x": 1})


def test_more_items_than_one_statement_takes_are_all_written(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    monkeypatch.setattr(effect, "CHUNK", 3)
    consuming.consumer("t", ask)
    publish_many("t", [{"amount": 501 + number} for number in range(50)])
    consuming.drain()
    assert WorkItem.objects.count() == 50


class TestEveryMessage:
    def test_every_message_becomes_an_item_and_other_groups_get_it_too(
        self, consuming: Consuming, settings: Any
    ) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        work_on("refunds", every_message=True)
        seen: list[int] = []
        consuming.consumer("refunds", lambda delivery: seen.append(delivery.payload))
        publish_many("refunds", range(30))
        publish("refunds", b"%PDF", content_type="application/pdf")
        consuming.drain("people")
        made = WorkItem.objects.order_by("message_offset")
        assert [item.payload for item in made] == [*range(30), None]
        assert {item.consumer_group for item in made} == {"people"}
        assert bytes(made[30].body) == b"%PDF"
        assert not seen
        assert watermark("refunds", "people") == Message.objects.latest("offset").offset

    def test_drain_of_a_projects_test_does_the_same(self, consuming: Consuming, settings: Any) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        work_on("refunds", every_message=True)
        publish("refunds", {"amount": 1})
        assert drain(topics=["refunds"]) == 1
        assert WorkItem.objects.count() == 1

    def test_the_time_to_work_within_is_counted_from_the_hand_over(self, consuming: Consuming, settings: Any) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        work_on("refunds", every_message=True, within=3600)
        publish("refunds", 1)
        consuming.drain()
        item = WorkItem.objects.get()
        assert abs((item.due_at - item.handed_over_at).total_seconds() - 3600) < 1


@pytest.mark.once
@pytest.mark.parametrize("given", [{"reason": 7}, {"form": ["a"]}, {"form": "a"}], ids=repr)
def test_what_is_no_reason_or_form_is_refused(given: Any) -> None:
    with pytest.raises(InvalidMessage, match="HandOver"):
        HandOver(**given)


def test_nothing_more_is_written_where_nothing_is_handed_over(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    consuming.consumer("t", lambda delivery: None)
    seen: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    publish_many("t", range(50))
    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.start()
    with connection.execute_wrapper(note):
        wait_until(lambda: bool(subscriber.run_once() or True) and subscriber.settled == 50)
    subscriber.stop(0.0)
    subscriber.close()
    assert not [sql for sql in seen if "work_item" in sql]
