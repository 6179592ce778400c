"""What a batch's end publishes, and when."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import InterfaceError, connection, connections, transaction

from sqlqueue import (
    Batch,
    ConfigurationError,
    Delivery,
    InvalidMessage,
    Reject,
    acknowledge,
    cancel,
    cancel_all,
    cancel_batch,
    get_batch,
    publish,
    replay,
)
from sqlqueue.contrib.batches import ends
from sqlqueue.contrib.batches.ends import standings
from sqlqueue.contrib.batches.models import Batch as BatchRow
from sqlqueue.contrib.batches.models import BatchPart
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.log import settle as settles
from sqlqueue.log.groups import register as register_group
from sqlqueue.log.groups import remove
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations.drop import drop
from sqlqueue.operations.edit_scheduled import edit, withdraw
from sqlqueue.operations.messages import delete
from sqlqueue.operations.move import move
from sqlqueue.operations.reschedule import republish
from sqlqueue.operations.topics import purge
from tests.consuming import QUICK, Consuming
from tests.contrib.batches.following import CALLED, counted, figures, register, standing
from tests.logs import LOG
from tests.processes import wait_until

FINISH: Any = {"on_finish": (CALLED, "finish")}
ALL: Any = {**FINISH, "on_success": (CALLED, "success"), "on_failure": (CALLED, "failure")}


def check(batch: Batch) -> None:
    ends.check(LOG, [batch.id])


class TestTheBlock:
    def test_a_batch_without_members_is_finished_at_once(self, consuming: Consuming, called: list[Any]) -> None:
        with Batch(**ALL) as batch:
            pass
        assert standing(batch.id).state == "succeeded"
        consuming.drain()
        assert sorted(called) == ["finish", "success"]

    def test_in_a_transaction_it_is_there_with_that_or_not_at_all(
        self, consuming: Consuming, called: list[Any]
    ) -> None:
        register(consuming, "sync", lambda delivery: None)
        with transaction.atomic():
            with Batch(**FINISH) as undone:
                undone.publish("t", 1)
            transaction.set_rollback(True)
        assert get_batch(undone.id) is None
        with transaction.atomic(), Batch(**FINISH) as batch:
            batch.publish("t", 1)
        consuming.drain()
        assert called == ["finish"]
        assert figures(batch.id) == (1, 1, 0)

    def test_an_exception_in_a_broken_transaction_is_the_one_that_is_seen(self, consuming: Consuming) -> None:
        def fill() -> None:
            with transaction.atomic(), Batch(**FINISH):
                transaction.set_rollback(True)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fill()
        assert not BatchRow.objects.exists()

    def test_it_takes_members_in_its_block_only(self, consuming: Consuming) -> None:
        batch = Batch()
        with pytest.raises(ConfigurationError, match="in its `with` block"):
            batch.publish("t", 1)
        with batch:
            batch.publish("t", 1)
        with pytest.raises(ConfigurationError, match="is sealed"):
            batch.publish("t", 1)
        with pytest.raises(ConfigurationError, match="one `with` block"):
            batch.__enter__()

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"on_finish": "imports"}, r"on_finish must be \(topic, payload\)"),
            ({"on_finish": ("imports",)}, r"on_finish must be \(topic, payload\)"),
            ({"on_success": ("imports", {1, 2})}, "not JSON"),
            ({"on_failure": ("imports_dlq", 1)}, "dead"),
            ({"on_failure": ("imports", 1, "k" * 256)}, "key"),
            ({"deadline": -1}, "deadline must lie between"),
            ({"deadline": "soon"}, "deadline must be a number"),
            ({"then": "next"}, "then must be a list of steps"),
            ({"then": [("a", 1), []]}, "step 2 of then has 0 messages"),
            ({"then": [[("a", 1)]] * 101}, "at most 100"),
            ({"then": [[("a", 1)] * 1001]}, "1 to 1000"),
            ({"name": "n" * 256}, "name of the batch"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_is_written(
        self, consuming: Consuming, options: dict[str, Any], said: str
    ) -> None:
        def fill() -> None:
            with Batch(**options):
                pass

        with pytest.raises((InvalidMessage, ConfigurationError), match=said):
            fill()
        assert not BatchRow.objects.exists()

    def test_what_a_batch_cannot_count_is_refused(self, consuming: Consuming) -> None:
        with Batch() as batch:
            with pytest.raises(InvalidMessage, match="on_conflict='replace' is not for"):
                batch.publish("t", 1, id="a", on_conflict="replace")
            with pytest.raises(InvalidMessage, match="begins with 'sqlqueue-'"):
                batch.publish("t", 1, headers={"sqlqueue-batch": "x"})
            with pytest.raises(TypeError, match="no option 'colour'"):
                batch.publish("t", 1, colour="red")
        assert figures(batch.id) == (0, 0, 0)


class TestCallbacks:
    def test_each_is_published_once_however_often_it_is_checked(self, consuming: Consuming, called: list[Any]) -> None:
        register(consuming, "sync", lambda delivery: None)
        with Batch(**ALL) as batch:
            batch.publish("t", 1)
        consuming.drain()
        for _ in range(3):
            check(batch)
            ends.sweep(LOG)
        consuming.drain()
        assert sorted(called) == ["finish", "success"]

    def test_a_callback_has_its_key_and_names_its_batch_by_its_id(self, consuming: Consuming) -> None:
        with Batch(on_finish=(CALLED, {"file": 7}, "a")) as batch:
            pass
        message = Message.objects.get(topic=CALLED)
        assert (message.payload, message.partition_key) == ({"file": 7}, "a")
        assert message.message_id == f"batch:{batch.id}:finish"

    def test_the_deadline_publishes_on_failure(self, consuming: Consuming, called: list[Any]) -> None:
        gate = consuming.gate()
        register(consuming, "sync", lambda delivery: gate.wait(60))
        with Batch(deadline=timedelta(seconds=0.01), **ALL) as batch:
            batch.publish("t", 1)
        host = consuming.start()
        wait_until(lambda: called == ["failure"])
        assert standing(batch.id).failed_at is not None
        gate.set()
        wait_until(lambda: sorted(called) == ["failure", "finish", "success"])
        host.stop()

    def test_no_deadline_matters_once_it_is_finished(self, consuming: Consuming, called: list[Any]) -> None:
        register(consuming, "sync", lambda delivery: None)
        with Batch(deadline=60, **ALL) as batch:
            batch.publish("t", 1)
        consuming.drain()
        BatchRow.objects.update(deadline_at="2020-01-01T00:00Z")
        check(batch)
        consuming.drain()
        assert sorted(called) == ["finish", "success"]

    def test_a_callback_that_cannot_be_published_holds_up_no_other(
        self, consuming: Consuming, called: list[Any], settings: Any
    ) -> None:
        with transaction.atomic():
            with Batch(on_finish=("other", 1)) as refused:
                pass
            with Batch(**FINISH) as batch:
                pass
            BatchRow.objects.filter(id=refused.id).update(
                callbacks={"finish": {"topic": "other_dlq", "payload": 1, "key": ""}}
            )
        consuming.drain()
        ends.sweep(LOG)
        assert standing(batch.id).finished_at is not None
        assert standing(refused.id).finished_at is None
        consuming.drain()
        assert called == ["finish"]

    def test_a_cancelled_batch_calls_nothing(self, consuming: Consuming, called: list[Any]) -> None:
        register(consuming, "sync", lambda delivery: None)
        with Batch(**ALL) as batch:
            batch.publish("t", 1)
        assert cancel_batch(batch.id)
        assert not cancel_batch(batch.id)
        assert not cancel_batch("unknown")
        consuming.drain()
        assert called == []
        assert standing(batch.id).state == "cancelled"


class TestMoreMembers:
    def test_a_member_adds_others(self, consuming: Consuming, called: list[Any]) -> None:
        def handle(delivery: Delivery) -> None:
            if delivery.payload > 0:
                Batch.of(delivery).publish("t", delivery.payload - 1)
                Batch.of(delivery).publish_many("u", [1, 2])

        for kind in ("sync",):
            register(consuming, kind, handle)
        consuming.consumer("u", lambda delivery: None)
        with Batch(**FINISH) as batch:
            batch.publish("t", 5)
        consuming.drain()
        assert figures(batch.id) == (16, 16, 0)
        assert called == ["finish"]

    def test_not_after_its_handler_has_returned(self, consuming: Consuming) -> None:
        kept: list[Batch] = []
        register(consuming, "sync", lambda delivery: kept.append(Batch.of(delivery)))  # type: ignore[arg-type]
        with Batch() as batch:
            batch.publish("t", 1)
        consuming.drain()
        with pytest.raises(Exception, match="lease"):
            kept[0].publish("t", 2)
        assert figures(batch.id)[0] == 1

    def test_a_batch_waits_for_those_inside_it(self, consuming: Consuming, called: list[Any]) -> None:
        gate = consuming.gate()

        def handle(delivery: Delivery) -> None:
            with Batch(on_finish=(CALLED, "inner"), parent=Batch.of(delivery)) as inner:
                inner.publish("u", 1)

        register(consuming, "sync", handle)
        consuming.consumer("u", lambda delivery: gate.wait(60))
        with Batch(on_finish=(CALLED, "outer")) as outer, Batch(on_finish=(CALLED, "empty"), parent=outer):
            outer.publish("t", 1)
        host = consuming.start()
        wait_until(lambda: figures(outer.id) == (1, 1, 0))
        check(outer)
        assert standing(outer.id).state == "running"
        gate.set()
        wait_until(lambda: sorted(called) == ["empty", "inner", "outer"])
        host.stop()

    def test_a_cancelled_batch_inside_holds_up_nothing(self, consuming: Consuming, called: list[Any]) -> None:
        with Batch(on_finish=(CALLED, "outer")) as outer, Batch(parent=outer) as inner:
            inner.publish("without-a-group", 1)
        consuming.drain()
        assert called == []
        assert inner.cancel()
        consuming.drain()
        assert called == ["outer"]

    def test_scheduled_members_are_members(self, consuming: Consuming, called: list[Any]) -> None:
        register(consuming, "sync", lambda delivery: None)
        with Batch(**FINISH) as batch:
            batch.publish("t", 1, delay=0.05)
        host = consuming.start()
        wait_until(lambda: called == ["finish"])
        host.stop()
        assert figures(batch.id) == (1, 1, 0)

    def test_what_leaves_the_schedule_is_settled(self, consuming: Consuming, called: list[Any]) -> None:
        register(consuming, "sync", lambda delivery: None)
        with Batch(**FINISH) as batch:
            for id in "abcde":
                batch.publish("t", 1, id=id, key="k", delay=3600)
            batch.publish("t", 1, id="x", key="x", delay=3600)
        assert cancel("t", id="a", key="k")
        assert figures(batch.id) == (6, 1, 0)
        assert publish("t", 2, id="b", key="k", delay=3600, on_conflict="replace").status == "updated"
        assert publish("t", 2, id="c", key="k", on_conflict="replace").status == "updated"
        assert figures(batch.id) == (6, 3, 0)
        assert cancel_all("t", key="k") == 3
        assert figures(batch.id) == (6, 5, 0)
        (number,) = ScheduledMessage.objects.values_list("pk", flat=True)
        edit(LOG, number, headers={"a": 1})
        assert called == []
        assert withdraw(LOG, [number]).changed == 1
        assert figures(batch.id) == (6, 6, 0)
        check(batch)
        consuming.drain()
        assert called == ["finish"]


def register_elsewhere(group: str, topic: str) -> None:
    """Register a group at the log's end, beside this thread's transaction if the database lets another one write."""
    if connection.vendor == "sqlite":
        register_group(LOG, group, topic, "latest")
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(register_group, LOG, group, topic, "latest").result()
        pool.submit(connections.close_all).result()


class TestGroups:
    def test_a_topic_without_a_group_keeps_it_unfinished_until_one_is_registered(
        self, consuming: Consuming, called: list[Any]
    ) -> None:
        with Batch(**FINISH) as batch:
            batch.publish("t", 1)
        consuming.drain()
        ends.sweep(LOG)
        assert (called, figures(batch.id)) == ([], (1, 0, 0))
        register(consuming, "sync", lambda delivery: None)
        consuming.drain()
        assert called == ["finish"]
        assert BatchPart.objects.get().consumer_group == "default"

    def test_a_group_that_is_registered_later_is_not_waited_for(self, consuming: Consuming, called: list[Any]) -> None:
        gate = consuming.gate()
        register(consuming, "sync", lambda delivery: None)
        consuming.drain()
        with Batch(**FINISH) as batch:
            batch.publish("t", 1)
        consuming.consumer("t", lambda delivery: gate.wait(60), group="later")
        host = consuming.start()
        wait_until(lambda: called == ["finish"])
        gate.set()
        host.stop()
        assert figures(batch.id) == (1, 1, 0)

    @pytest.mark.parametrize("where", ["in its block", "before a handler adds one"])
    def test_the_only_group_settles_what_is_published_after_its_registration(
        self, where: str, consuming: Consuming, called: list[Any]
    ) -> None:
        publish("u", "before")
        consuming.consumer("t", lambda delivery: Batch.of(delivery).publish("u", 2))
        with Batch(**FINISH) as batch:
            if where == "in its block":
                register_elsewhere("late", "u")
            batch.publish("u" if where == "in its block" else "t", 1)
        register_group(LOG, "late", "u", "latest")
        consuming.consumer("u", lambda delivery: None, group="late")
        consuming.drain()
        assert called == ["finish"]
        assert standing(batch.id).state == "succeeded"

    def test_a_group_that_is_removed_is_not_waited_for(self, consuming: Consuming, called: list[Any]) -> None:
        register(consuming, "sync", lambda delivery: None)
        consuming.consumer("t", lambda delivery: None, group="away")
        consuming.drain()
        with Batch(**FINISH) as batch:
            batch.publish("t", 1)
        consuming.drain("default")
        assert figures(batch.id) == (2, 1, 0)
        remove(LOG, "away", "t")
        ends.sweep(LOG)
        consuming.drain("default")
        assert called == ["finish"]


class TestOperators:
    def dead(self, consuming: Consuming, batch: Batch, well: list[int]) -> None:
        def handle(delivery: Delivery) -> None:
            if delivery.payload not in well:
                raise Reject("no")

        register(consuming, "sync", handle)
        with batch:
            batch.publish_many("t", [1, 2, 3])
        consuming.drain()

    def test_dead_members_count_as_failed_until_they_are_replayed(
        self, consuming: Consuming, called: list[Any]
    ) -> None:
        well = [1]
        batch = Batch(**ALL)
        self.dead(consuming, batch, well)
        assert figures(batch.id) == (3, 1, 2)
        assert sorted(called) == ["failure", "finish"]
        well.append(2)
        assert replay("t") == 2
        assert figures(batch.id) == (3, 1, 0)
        consuming.drain()
        assert figures(batch.id) == (3, 2, 1)
        assert sorted(called) == ["failure", "finish"]
        well.append(3)
        assert replay("t") == 1
        consuming.drain()
        assert figures(batch.id) == (3, 3, 0)
        assert sorted(called) == ["failure", "finish", "success"]

    def test_a_republished_member_is_the_same_again(self, consuming: Consuming) -> None:
        register(consuming, "sync", lambda delivery: None)
        with Batch() as batch:
            offset = batch.publish("t", 1).offset
            batch.publish("without-a-group", 1)
        assert offset is not None
        consuming.drain()
        republish("t", "default", [offset])
        assert figures(batch.id) == (2, 0, 0)
        consuming.drain()
        assert figures(batch.id) == (2, 1, 0)

    def test_what_is_rewound_is_counted_anew(self, consuming: Consuming, settings: Any, called: list[Any]) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": 2}
        register(consuming, "sync", lambda delivery: None)
        with Batch(**FINISH) as batch:
            offsets = [batch.publish("t", n, key=str(n)).offset or 0 for n in range(10)]
            batch.publish("without-a-group", 1)
        consuming.drain()
        assert figures(batch.id) == (11, 10, 0)
        for partition in (None, 0, 1):
            move(LOG, "default", "t", offsets[3], partition)
            assert figures(batch.id)[1] < 10
            consuming.drain()
            assert figures(batch.id) == (11, 10, 0)
        move(LOG, "default", "t", 0)
        assert figures(batch.id) == (11, 0, 0)
        consuming.drain()
        assert figures(batch.id) == (11, 10, 0)
        assert called == []

    def test_what_is_skipped_is_settled(self, consuming: Consuming, called: list[Any]) -> None:
        register(consuming, "sync", lambda delivery: None)
        consuming.drain()
        with Batch(**FINISH) as batch:
            offsets = [batch.publish("t", n, key=str(n)).offset or 0 for n in range(10)]
        move(LOG, "default", "t", offsets[5])
        assert figures(batch.id) == (10, 6, 0)
        consuming.drain()
        assert figures(batch.id) == (10, 10, 0)
        assert called == ["finish"]

    def test_what_is_purged_is_settled(self, consuming: Consuming, called: list[Any]) -> None:
        seen: list[int] = []

        def handle(delivery: Delivery) -> None:
            seen.append(delivery.payload)
            if delivery.payload == 3:
                raise ZeroDivisionError

        register(consuming, "sync", handle, backoff=3600, jitter=0)
        with Batch(**FINISH) as batch:
            batch.publish_many("t", range(10))
            batch.publish("t", 10, delay=3600, id="later")
        consuming.drain()
        assert figures(batch.id) == (11, 9, 0)
        purge(LOG, "t", unsettled=True)
        assert figures(batch.id) == (11, 10, 0)
        assert cancel("t", id="later")
        consuming.drain()
        ends.sweep(LOG)
        consuming.drain()
        assert called == ["finish"]
        assert counted(batch.id) == (11, 0)

    def test_what_is_acknowledged_or_deleted_is_settled(self, consuming: Consuming, called: list[Any]) -> None:
        def handle(delivery: Delivery) -> None:
            raise ZeroDivisionError

        register(consuming, "sync", handle, backoff=3600, jitter=0)
        with Batch(**FINISH) as batch:
            offsets = [batch.publish("t", n, key=str(n)).offset or 0 for n in range(2)]
        consuming.drain()
        assert acknowledge("t", "default", offsets=offsets[:1]) == 1
        assert figures(batch.id) == (2, 1, 0)
        assert delete(LOG, "t", offsets[1:], also_unsettled=True).deleted == 1
        assert figures(batch.id) == (2, 2, 0)
        consuming.drain()
        assert called == ["finish"]

    def test_what_is_dropped_is_settled(self, consuming: Consuming, called: list[Any]) -> None:
        with Batch(**FINISH) as batch:
            batch.publish("t", 1)
            batch.publish("t", 2, delay=3600)
        drop(LOG, "t", unsettled=True)
        consuming.drain()
        assert called == ["finish"]
        assert figures(batch.id) == (2, 2, 0)


def test_two_checks_of_the_same_standing_end_it_once(consuming: Consuming, called: list[Any]) -> None:
    """As two owners read it that have settled the last two members."""
    register(consuming, "sync", lambda delivery: None)
    with transaction.atomic():
        with Batch(**ALL) as batch:
            pass
        (standing_then,) = standings(LOG, [batch.id])
    BatchRow.objects.filter(id=batch.id).update(finished_at=None, succeeded_at=None, over=False)
    Message.objects.all().delete()
    assert ends._end(LOG, standing_then)
    assert not ends._end(LOG, standing_then)
    consuming.drain()
    assert sorted(called) == ["finish", "success"]


def test_a_settle_whose_reply_is_lost_counts_nothing_twice(
    consuming: Consuming, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has committed, and is run again."""
    register(consuming, "sync", lambda delivery: None)
    lost: list[int] = []
    run = retries.run

    def lose(log: Log, operation: Any, *args: Any) -> Any:
        done = run(log, operation, *args)
        if any(plan.effects for plan in args[1]) and len(lost) < 3:
            lost.append(1)
            raise InterfaceError("connection already closed")
        return done

    monkeypatch.setattr(settles, "retries", SimpleNamespace(run=lose, run_statement=retries.run_statement))
    with Batch(**FINISH) as batch:
        batch.publish_many("t", range(20))
    consuming.drain()
    assert len(lost) == 3
    assert counted(batch.id) == (20, 0)
    assert called == ["finish"]
