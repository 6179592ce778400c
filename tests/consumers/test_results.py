"""keep_results: what a handler returns is stored with its ack, and seen together with it."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from sqlqueue import ConfigurationError, LeaseLost, Reject, Retry, get_status, publish, publish_many
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers import atomic as atomic_executor
from sqlqueue.database.log import Log
from sqlqueue.log import settle as settles
from sqlqueue.log.groups import revoke
from sqlqueue.models import Message, Result
from sqlqueue.stats.group_status import GroupStatus
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until

ONE_PARTITION = {**QUICK, "PARTITIONS": 1}
DAY = timedelta(days=1)


def of(id: str, group: str = "default") -> GroupStatus:
    status = get_status("t", id=id)
    assert status is not None
    return status.groups[group]


def async_of(handle: Any) -> Any:
    async def handle_async(delivery: Any) -> Any:
        return handle(delivery)

    return handle_async


KINDS = pytest.mark.parametrize("kind", ["sync", "atomic", "async"])


def register(consuming: Consuming, kind: str, handle: Any, **options: Any) -> None:
    handle = async_of(handle) if kind == "async" else handle
    consuming.consumer("t", handle, atomic=kind == "atomic", **{"keep_results": DAY, **options})


@KINDS
class TestKept:
    @pytest.mark.parametrize("value", [{"url": "ä", "n": [1, 2.5, None, True]}, [], "", 0, False, "null"], ids=repr)
    def test_the_result_is_what_the_handler_returned(self, consuming: Consuming, kind: str, value: object) -> None:
        register(consuming, kind, lambda delivery: value)
        publish("t", 1, id="a", key="")
        consuming.drain()
        group = of("a")
        assert (group.state, group.attempts, group.result, group.error) == ("acked", 1, value, "")
        assert type(group.result) is type(value)

    def test_none_is_kept_as_none(self, consuming: Consuming, kind: str) -> None:
        register(consuming, kind, lambda delivery: None)
        publish("t", 1, id="a")
        consuming.drain()
        assert Result.objects.count() == 1
        assert (of("a").state, of("a").attempts, of("a").result) == ("acked", 1, None)

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ({1, 2}, "not JSON"),
            (object(), "not JSON"),
            (float("nan"), "not JSON"),
            ((1, 2), "use list"),
            ({1: 2}, "use str"),
            ("x" * 2_000, "MAX_PAYLOAD_BYTES"),
            ("\ud800", "Unicode"),
        ],
        ids=["a set", "an object", "nan", "a tuple", "a number as key", "too much", "half a character"],
    )
    def test_what_is_no_json_is_a_dead_letter_at_once(
        self, consuming: Consuming, settings: object, kind: str, value: object, why: str
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "MAX_PAYLOAD_BYTES": 1_000}
        calls: list[int] = []

        def handle(delivery: Any) -> object:
            calls.append(delivery.attempt)
            if kind != "async":
                Effect.objects.create(name="seen", value="1")
            return value

        register(consuming, kind, handle, retry_for=(OSError,))
        publish("t", 1, id="a")
        consuming.drain()
        assert calls == [1]
        group = of("a")
        assert (group.state, group.attempts, group.result) == ("dead", 1, None)
        assert why in group.error
        assert "keep_results" in group.error
        assert Message.objects.get(topic="t_dlq").last_error == group.error
        assert Effect.objects.count() == (1 if kind == "sync" else 0)  # an atomic handler's writes are rolled back

    def test_a_failed_attempt_leaves_no_result(self, consuming: Consuming, kind: str) -> None:
        def handle(delivery: Any) -> int:
            if delivery.attempt < 3:
                raise Retry("not yet", delay=0)
            return delivery.attempt

        register(consuming, kind, handle)
        publish("t", 1, id="a")
        consuming.drain()
        assert (of("a").attempts, of("a").result) == (3, 3)
        assert Result.objects.count() == 1

    def test_a_dead_one_keeps_its_error(self, consuming: Consuming, kind: str) -> None:
        def handle(delivery: Any) -> None:
            if delivery.payload == 1:
                raise Reject("no such thing")
            raise ValueError("wrong")

        register(consuming, kind, handle, max_attempts=1)
        publish("t", 1, id="a")
        publish("t", 2, id="b")
        consuming.drain()
        assert (of("a").state, of("a").error) == ("dead", "no such thing")
        assert of("b").error.startswith("Traceback")
        assert of("b").error.endswith("ValueError: wrong")
        Message.objects.all().delete()  # collected, and the dead letters discarded
        assert (of("a").state, of("a").error) == ("dead", "no such thing")

    def test_two_groups_have_a_result_each(self, consuming: Consuming, kind: str) -> None:
        register(consuming, kind, lambda delivery: "one")
        register(consuming, kind, lambda delivery: "two", group="other")
        publish("t", 1, id="a")
        consuming.drain()
        assert (of("a").result, of("a", "other").result) == ("one", "two")

    def test_it_is_forgotten_when_its_time_is_over(self, consuming: Consuming, kind: str) -> None:
        register(consuming, kind, lambda delivery: 7, keep_results=60)
        publish("t", 1, id="a")
        consuming.drain()
        assert of("a").result == 7
        Result.objects.update(expires_at=F("expires_at") - timedelta(seconds=61))
        assert (of("a").state, of("a").result) == ("acked", None)


def run_until_settled(subscriber: Subscriber, count: int) -> None:
    def settled() -> bool:
        subscriber.run_once()
        return subscriber.settled == count

    wait_until(settled)


@pytest.mark.database("mariadb")
def test_one_that_the_server_does_not_take_at_once_is_a_dead_letter(consuming: Consuming, settings: object) -> None:
    """Quotes take two bytes each; max_allowed_packet is 16 MiB there."""
    settings.SQLQUEUE = {**QUICK, "MAX_PAYLOAD_BYTES": 64 * 1024 * 1024}
    register(consuming, "sync", lambda delivery: '"' * (9 * 1024 * 1024 if delivery.payload else 3 * 1024 * 1024))
    publish("t", True, id="a")
    publish("t", False, id="b")
    consuming.drain()
    assert (of("a").state, "max_allowed_packet" in of("a").error) == ("dead", True)
    assert len(of("b").result) == 3 * 1024 * 1024


def test_without_keep_results_nothing_more_is_written(consuming: Consuming, settings: object) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    consuming.consumer("t", lambda delivery: {1, 2})  # it may return what it likes
    seen: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    publish_many("t", range(50))
    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.start()
    with connection.execute_wrapper(note):
        run_until_settled(subscriber, 50)
    subscriber.stop(0.0)
    subscriber.close()
    assert not [sql for sql in seen if "sqlqueue_result" in sql or "sqlqueue_progress" in sql]
    assert not [sql for sql in seen if sql.startswith("INSERT") and "sqlqueue_offset" not in sql]


def test_the_results_of_a_settle_take_one_statement(consuming: Consuming, settings: object) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    consuming.consumer("t", lambda delivery: delivery.payload, keep_results=DAY)
    publish_many("t", range(200))
    inserts: list[int] = []
    settled: list[int] = []
    plain = settles.settle

    def counting(log: Log, plans: Any, *rest: Any) -> Any:
        settled.append(sum(bool(plan.settled) for plan in plans))
        return plain(log, plans, *rest)

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("INSERT") and "sqlqueue_result" in sql:
            inserts.append(1)
        return execute(sql, params, many, context)

    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.start()
    with pytest.MonkeyPatch.context() as patch, connection.execute_wrapper(note):
        patch.setattr("sqlqueue.consumers.engine.settler.settle", counting)
        run_until_settled(subscriber, 200)
    subscriber.stop(0.0)
    subscriber.close()
    assert Result.objects.count() == 200
    assert sorted(Result.objects.values_list("result", flat=True)) == list(range(200))
    assert len(inserts) == sum(count > 0 for count in settled) < 100


@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
def test_a_handler_that_lost_its_lease_stores_no_result(consuming: Consuming, settings: object, atomic: bool) -> None:
    settings.SQLQUEUE = ONE_PARTITION
    started, go = threading.Event(), consuming.gate()

    def handle(delivery: Any) -> str:
        started.set()
        assert go.wait(60)
        return "of the former owner"

    consuming.consumer("t", handle, atomic=atomic, keep_results=DAY)
    publish("t", 1, id="a")
    host = consuming.start()
    assert started.wait(60)
    if connection.vendor == "sqlite" and atomic:
        pytest.skip("its transaction is the only one that writes")
    with transaction.atomic():
        revoke(LOG, "default", "t")
    host.subscriber.ownership.balance = lambda *_: False  # it takes nothing again
    go.set()
    wait_until(lambda: not len(host.subscriber.in_flight))
    host.stop()
    assert not Result.objects.exists()
    assert of("a").state != "acked"


def test_an_ack_that_fails_leaves_no_result(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is stored by the transaction of the ack, and goes with it."""
    consuming.consumer("t", lambda delivery: "kept", atomic=True, keep_results=DAY, max_attempts=1)
    plain = atomic_executor.write_own

    failed: list[int] = []

    def failing(*given: Any) -> None:
        plain(*given)
        failed.append(Result.objects.count())
        raise LeaseLost

    monkeypatch.setattr(atomic_executor, "write_own", failing)
    publish("t", 1, id="a")
    consuming.start()
    wait_until(lambda: failed)
    assert failed[0] == 1
    assert of("a").state != "acked"
    assert not Result.objects.exists()


def test_a_result_of_a_later_message_with_the_same_id_replaces_the_former(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: delivery.payload, keep_results=DAY)
    publish("t", 1, id="a")
    consuming.drain()
    Message.objects.all().delete()  # collected
    assert of("a").result == 1
    publish("t", 2, id="a")
    assert (of("a").state, of("a").result) == ("waiting", None)
    consuming.drain()
    assert of("a").result == 2
    assert Result.objects.count() == 1


@pytest.mark.once
@pytest.mark.parametrize("kept", [0, -1, True, "1 day", timedelta(days=4_000)], ids=repr)
def test_a_duration_that_makes_no_sense_is_refused(consuming: Consuming, kept: object) -> None:
    with pytest.raises(ConfigurationError, match="keep_results must be seconds"):
        consuming.consumer("t", lambda delivery: None, keep_results=kept)


@pytest.mark.once
def test_a_batch_handler_has_no_result_for_each_message(consuming: Consuming) -> None:
    with pytest.raises(ConfigurationError, match="leave batch out"):
        consuming.consumer("t", lambda deliveries: None, keep_results=DAY, batch=True)


def test_more_results_than_one_statement_takes_are_all_stored(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlqueue.log.results.CHUNK", 3)
    consuming.consumer("t", lambda delivery: delivery.payload, keep_results=DAY)
    publish_many("t", range(50))
    consuming.drain()
    assert sorted(Result.objects.values_list("result", flat=True)) == list(range(50))
