"""get_status: what it says of a message in each state of the protocol."""

import threading
import time
from datetime import timedelta
from typing import Any

import factory
import pytest
from django.db import connection, transaction

from sqlqueue import (
    ConfigurationError,
    InvalidMessage,
    NewMessage,
    Postpone,
    Reject,
    Retry,
    discard,
    get_status,
    publish,
    publish_many,
    replay,
)
from sqlqueue.log import groups
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Message, Offset, Receipt
from sqlqueue.operations.move import move
from sqlqueue.operations.topics import purge
from sqlqueue.stats.group_status import STATES, GroupStatus
from sqlqueue.stats.message_status import MessageStatus
from tests.consuming import QUICK, Consuming
from tests.database.plans import TABLES, Recorder, an_index_if_there_is_one, full_scans
from tests.factories import (
    BlockedRangeFactory,
    DeliveryStateFactory,
    OffsetFactory,
    ReceiptFactory,
    ResultFactory,
    ScheduledMessageFactory,
    now,
)
from tests.logs import LOG
from tests.processes import wait_until

ONE_PARTITION = {**QUICK, "PARTITIONS": 1}
DAY = timedelta(days=1)


def asked(id: str, topic: str = "t", **options: Any) -> MessageStatus:
    status = get_status(topic, id=id, **options)
    assert status is not None
    return status


def of(id: str, group: str = "default") -> GroupStatus:
    return asked(id).groups[group]


def state(id: str, group: str = "default") -> tuple[str, int | None]:
    return of(id, group).state, of(id, group).attempts


class TestBeforeItsFirstAttempt:
    def test_what_nobody_published_is_unknown(self, consuming: Consuming) -> None:
        assert get_status("t", id="a") is None
        publish("t", 1, id="a", key="k")
        assert get_status("t", id="a") is None
        assert get_status("other", id="a", key="k") is None
        assert asked("a", key="k").offset == Message.objects.get().offset

    def test_a_scheduled_one(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        at = now() + DAY
        publish("t", 1, id="a", key="k", at=at)
        status = asked("a", key="k")
        assert (status.offset, status.due_at) == (None, at)
        assert status.published_at is not None
        assert status.groups["default"].state == "scheduled"
        assert status.groups["default"].next_attempt_at == at
        assert not status.finished

    def test_a_scheduled_one_for_one_group(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        publish("t", 1, id="a", delay=DAY, group="other")
        assert set(asked("a").groups) == {"other"}

    def test_a_scheduled_one_that_cannot_enter_the_log_says_why(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        ScheduledMessageFactory(message_id="a", refused=True, refusal="no such priority")
        assert (of("a").state, of("a").error) == ("scheduled", "no such priority")

    def test_one_in_the_log_counts_more_than_one_scheduled_under_its_id(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        publish("t", 1, id="a")
        ScheduledMessageFactory(message_id="a", due_at=now() + DAY)
        assert of("a").state == "waiting"

    def test_without_a_group_there_is_nothing_to_wait_for(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        assert asked("a").groups == {}
        assert not asked("a").finished

    def test_an_unread_one_waits(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        publish("t", 1, id="a")
        assert state("a") == ("waiting", 0)

    def test_a_message_for_one_group_is_not_the_others(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        publish("t", 1, id="a", group="other")
        assert {name: each.state for name, each in asked("a").groups.items()} == {"other": "waiting"}
        groups.register(LOG, "other", "t")
        assert set(asked("a").groups) == {"other"}
        publish("t", 1, id="b")
        assert set(asked("b").groups) == {"default", "other"}

    def test_a_group_that_began_later_does_not_get_it(self, consuming: Consuming) -> None:
        groups.register(LOG, "default", "t")
        publish("t", 1, id="a")
        groups.register(LOG, "late", "t", start="latest")
        publish("t", 1, id="b")
        assert set(asked("a").groups) == {"default"}
        assert set(asked("b").groups) == {"default", "late"}

    def test_unless_it_was_moved_back(self, consuming: Consuming, settings: object) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        publish("t", 1, id="a")
        groups.register(LOG, "late", "t", start="latest")
        consuming.consumer("t", lambda delivery: 1, group="late", keep_results=DAY)
        consuming.drain()
        assert asked("a").groups == {}
        move(LOG, "late", "t", 0)
        assert state("a", "late") == ("waiting", 0)
        consuming.drain()
        assert of("a", "late").result == 1

    def test_one_that_was_postponed_waits_for_its_time(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            raise Postpone(delay=3600)

        publish("t", 1, id="a")
        consuming.drain()
        assert state("a") == ("waiting", 0)
        assert timedelta(minutes=50) < of("a").next_attempt_at - now() < timedelta(minutes=61)

    def test_one_behind_a_failing_one_of_its_key_waits(self, consuming: Consuming, settings: object) -> None:
        settings.SQLQUEUE = ONE_PARTITION

        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            raise Retry(delay=3600)

        publish_many("t", [NewMessage(n, id=f"m{n}", key="k") for n in range(20)])
        host = consuming.start()
        wait_until(lambda: Offset.objects.filter(position=Message.objects.latest("offset").offset).exists())
        host.stop()
        assert BlockedRange.objects.exists()
        first, second = (asked(f"m{n}", key="k").groups["default"] for n in (0, 1))
        assert (first.state, first.attempts) == ("retrying", 1)
        assert (second.state, second.attempts, second.next_attempt_at) == ("waiting", 0, None)


class TestInFlight:
    @pytest.mark.parametrize("flushed", [False, True], ids=["claimed", "with a row"])
    def test_one_with_its_handler(self, consuming: Consuming, settings: object, flushed: bool) -> None:
        settings.SQLQUEUE = {**ONE_PARTITION, "FLUSH_INTERVAL": 0.01 if flushed else 60.0}
        started, go = threading.Event(), consuming.gate()

        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            if delivery.key == "k":
                started.set()
                assert go.wait(60)

        publish("t", 1, id="a", key="k")
        publish("t", 1, id="b", key="l")  # its ack waits behind the other
        consuming.start()
        assert started.wait(60)
        if flushed:
            wait_until(lambda: DeliveryState.objects.exists())
        status = asked("a", key="k").groups["default"]
        assert (status.state, status.attempts, status.next_attempt_at) == ("in_flight", 1, None)

    def test_a_second_attempt(self, consuming: Consuming) -> None:
        started, go = threading.Event(), consuming.gate()

        @consuming.consumer("t", backoff=0.7, jitter=0)
        def handle(delivery: Any) -> None:
            if delivery.attempt == 1:
                raise ValueError("at first")
            started.set()
            assert go.wait(60)

        publish("t", 1, id="a")
        consuming.start()
        wait_until(lambda: DeliveryState.objects.filter(in_flight=0).exists())
        assert state("a") == ("retrying", 1)
        assert of("a").error.endswith("ValueError: at first")
        assert of("a").next_attempt_at is not None
        assert started.wait(60)
        assert state("a") == ("in_flight", 2)


class TestSettled:
    def test_acked_without_a_receipt_knows_no_attempts(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        publish("t", 1, id="a")
        consuming.drain()
        assert state("a") == ("acked", None)
        assert asked("a").finished

    def test_with_a_receipt_it_does(self, consuming: Consuming, settings: object) -> None:
        settings.SQLQUEUE = {**QUICK, "HISTORY": "all"}

        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            if delivery.attempt == 1:
                raise Retry(delay=0)

        publish("t", 1, id="a")
        consuming.drain()
        assert state("a") == ("acked", 2)
        assert of("a").started_at <= of("a").finished_at

    def test_dead_until_the_dead_letter_is_discarded_and_after(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            raise Reject("no")

        publish("t", 1, id="a", key="k")
        consuming.drain()
        status = asked("a", key="k")
        (group,) = status.groups.values()
        assert (group.state, group.attempts, group.error) == ("dead", 1, "no")
        assert group.dead_letter == Message.objects.get(topic="t_dlq").offset
        assert status.finished
        assert discard("t") == 1
        assert asked("a", key="k").groups["default"].state == "dead"  # its receipt says so
        Receipt.objects.all().delete()
        assert asked("a", key="k").groups["default"].state == "acked"  # nothing tells them apart any more

    def test_dead_in_one_group_and_acked_in_another(self, consuming: Consuming) -> None:
        @consuming.consumer("t", group="bad")
        def handle(delivery: Any) -> None:
            raise Reject("no")

        consuming.consumer("t", lambda delivery: None)
        publish("t", 1, id="a")
        consuming.drain()
        assert {name: each.state for name, each in asked("a").groups.items()} == {"bad": "dead", "default": "acked"}

    def test_acked_out_of_order(self, consuming: Consuming, settings: object) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        go = consuming.gate()

        @consuming.consumer("t", atomic=connection.vendor != "sqlite")
        def handle(delivery: Any) -> None:
            if delivery.payload == "slow":
                assert go.wait(60)

        publish("t", "slow", id="a", key="k")
        publish("t", "fast", id="b", key="l")
        consuming.start()
        wait_until(lambda: asked("b", key="l").groups["default"].state == "acked")
        assert asked("a", key="k").groups["default"].state == "in_flight"

    def test_a_rewound_one_has_no_result_until_it_is_done_again(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: "done", keep_results=DAY)
        publish("t", 1, id="a")
        consuming.drain()
        assert of("a").result == "done"
        move(LOG, "default", "t", 0)
        assert (of("a").state, of("a").result) == ("waiting", None)
        consuming.drain()
        assert of("a").result == "done"

    def test_one_that_died_and_was_then_handled_well_is_acked(self, consuming: Consuming) -> None:
        bad = [True]

        @consuming.consumer("t", keep_results=DAY)
        def handle(delivery: Any) -> str:
            if bad:
                raise Reject("no")
            return "well"

        publish("t", 1, id="a")
        consuming.drain()
        assert of("a").state == "dead"
        bad.clear()
        move(LOG, "default", "t", 0)
        consuming.drain()
        assert (of("a").state, of("a").result) == ("acked", "well")


class TestCollected:
    def test_a_kept_result_outlives_its_message(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: {"n": delivery.payload}, keep_results=DAY)
        consuming.consumer("t", lambda delivery: None, group="other")
        offset = publish("t", 1, id="a").offset
        consuming.drain()
        before = asked("a").groups["default"]
        Message.objects.all().delete()
        status = asked("a")
        assert (status.offset, status.published_at, status.finished) == (offset, None, True)
        assert status.groups == {"default": before}

    def test_the_newest_of_several_is_meant(self, consuming: Consuming) -> None:
        ResultFactory(message_id="a", consumer_group="g", message_offset=5, result=5)
        ResultFactory(message_id="a", consumer_group="h", message_offset=9, result=9)
        assert {name: each.result for name, each in asked("a").groups.items()} == {"h": 9}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"id": ""}, "empty"),
        ({"id": "x" * 256}, "255"),
        ({"id": 7}, "string"),
        ({"id": "a", "key": None}, "string"),
        ({"topic": "\0", "id": "a"}, "NUL"),
    ],
    ids=repr,
)
@pytest.mark.django_db
def test_what_no_message_can_have_is_refused(bad: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidMessage, match=why):
        get_status(**{"topic": "t", **bad})


@pytest.mark.once
def test_every_state_has_its_word() -> None:
    words = {"relayed", "scheduled", "waiting", "limited", "in_flight"}
    words |= {"retrying", "acked", "dead", "expired", "replayed"}
    assert set(STATES) == words


def analyze() -> None:
    with connection.cursor() as cursor:
        if connection.vendor != "mysql":
            cursor.execute("ANALYZE")
            return
        for model in TABLES:
            cursor.execute(f"ANALYZE TABLE {model._meta.db_table}")
            cursor.fetchall()


def test_it_takes_few_statements_each_by_an_index(consuming: Consuming, settings: object) -> None:
    settings.SQLQUEUE = {**ONE_PARTITION, "HISTORY": "all"}

    def handle(delivery: Any) -> None:
        if delivery.group == "g0":
            raise Reject("no")

    for number in range(3):
        consuming.consumer("t", handle, group=f"g{number}", **({"keep_results": DAY} if number == 1 else {}))
    groups.register(LOG, "away", "t")
    publish_many("t", [NewMessage(n, id=f"m{n}", key="k") for n in range(300)])
    consuming.drain()
    ResultFactory.insert(500)
    for other in (OffsetFactory, DeliveryStateFactory, BlockedRangeFactory):
        other.insert(
            500, partition=factory.Iterator(range(1, 501)), **({"position": 1} if other is OffsetFactory else {})
        )
    analyze()
    recorder = Recorder()
    with connection.execute_wrapper(recorder):
        status = asked("m7", key="k")
    assert {name: each.state for name, each in status.groups.items()} == {
        "away": "waiting",
        "g0": "dead",
        "g1": "acked",
        "g2": "acked",
    }
    assert recorder.count <= 11
    small = ("sqlqueue_topic", "sqlqueue_consumer_group")
    with an_index_if_there_is_one():
        for sql, params in recorder.statements.values():
            assert not [scan for scan in full_scans(sql, params) if not any(table in scan for table in small)], sql


def test_what_is_acked_stays_so_while_the_position_passes_its_row(consuming: Consuming) -> None:
    """A handler's own transaction has acked it; the next settle moves the position over the row, and deletes that."""
    groups.register(LOG, "g", "t", start="earliest")
    message = Message.objects.get(offset=publish("t", 1, id="a").offset)
    of_it = {"topic": "t", "consumer_group": "g", "partition": message.partition}
    Offset.objects.filter(**of_it).delete()
    OffsetFactory(**of_it, priority=0, position=message.offset - 1, claimed_to=message.offset)
    DeliveryStateFactory(**of_it, priority=0, message_offset=message.offset, acked=True, in_flight=0, retry_count=1)
    assert asked("a").groups["g"].state == "acked"
    settles = []

    def settle_before_the_rows_are_read(execute: Any, sql: str, *arguments: Any) -> Any:
        if "sqlqueue_delivery_state" in sql and not settles:
            settles.append(True)
            with transaction.atomic():
                Offset.objects.filter(**of_it).update(position=message.offset)
                DeliveryState.objects.all().delete()
        return execute(sql, *arguments)

    with connection.execute_wrapper(settle_before_the_rows_are_read):
        assert asked("a").groups["g"].state == "acked"
    assert settles


def test_of_many_receipts_the_last_ones_count(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.stats.message_status.MOST_RECEIPTS", 2)
    consuming.consumer("t", lambda delivery: None)
    offset = publish("t", 1, id="a").offset
    consuming.drain()
    for attempts in (1, 2, 3):
        ReceiptFactory(message_offset=offset, consumer_group="default", attempts=attempts)
    assert state("a") == ("acked", 3)


def test_the_result_of_an_earlier_message_with_the_same_id_is_not_this_ones(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: "not kept")
    offset = publish("t", 1, id="a").offset
    assert offset is not None
    ResultFactory(message_id="a", consumer_group="default", message_offset=offset - 1, result="of the earlier one")
    consuming.drain()
    assert (of("a").state, of("a").result) == ("acked", None)


class TestExpired:
    def test_without_an_attempt(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        publish("t", 1, id="a", expires=0.001)
        time.sleep(0.01)
        consuming.drain()
        assert state("a") == ("expired", 0)
        assert of("a").finished
        assert of("a").dead_letter is not None
        assert of("a").error == "expired"

    def test_with_a_kept_result(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: 1, keep_results=DAY)
        publish("t", 1, id="a", expires=0.001)
        time.sleep(0.01)
        consuming.drain()
        assert state("a") == ("expired", 0)
        Message.objects.all().delete()
        assert state("a") == ("expired", 0)

    def test_between_two_attempts(self, consuming: Consuming) -> None:
        def handle(delivery: Any) -> None:
            Message.objects.update(expires_at=now() - DAY)
            raise Retry(delay=0)

        consuming.consumer("t", handle, keep_results=DAY)
        publish("t", 1, id="a", expires=DAY)
        consuming.drain()
        assert state("a") == ("expired", 1)

    @pytest.mark.parametrize("error", [Reject, Retry])
    def test_no_handler_can_say_so(self, consuming: Consuming, error: Any) -> None:
        def handle(delivery: Any) -> None:
            raise error("expired")

        consuming.consumer("t", handle, max_attempts=1)
        consuming.consumer("t", handle, group="kept", max_attempts=1, keep_results=DAY)
        publish("t", 1, id="a", expires=DAY)
        consuming.drain()
        assert (state("a"), state("a", "kept")) == (("dead", 1), ("dead", 1))
        assert of("a").error.endswith(": expired")


class TestAfterAMove:
    """What an operator has settled by moving a group counts as acked, and no group forgets what it has settled."""

    @pytest.mark.parametrize("partition", [None, 0])
    def test_what_was_settled_before_stays_settled(
        self, consuming: Consuming, settings: object, partition: int | None
    ) -> None:
        settings.SQLQUEUE = ONE_PARTITION
        consuming.consumer("t", lambda delivery: None)
        first = publish("t", 1, id="a")
        publish("t", 2, id="b")
        consuming.drain()
        move(LOG, "default", "t", first.offset, partition)
        assert (state("a"), asked("a").finished) == (("acked", None), True)
        assert state("b") == ("waiting", 0)
        consuming.drain()
        assert state("b") == ("acked", None)
        publish("t", 3, id="c")
        move(LOG, "default", "t", 10**18, partition)
        for id in "abc":
            assert (state(id), asked(id).finished) == (("acked", None), True)
            assert asked(id).wait(timeout=0).finished

    def test_what_a_group_that_never_ran_skips_or_purges_is_acked_too(self, consuming: Consuming) -> None:
        for group in "gh":
            groups.register(LOG, group, "t")
        publish("t", 1, id="a")
        move(LOG, "g", "t", 10**18)
        purge(LOG, "t", unsettled=True)
        publish("t", 1, id="b")
        assert {name: one.state for name, one in asked("a").groups.items()} == {"g": "acked", "h": "acked"}
        assert {name: one.state for name, one in asked("b").groups.items()} == {"g": "waiting", "h": "waiting"}

    def test_what_was_published_before_a_group_began_is_still_not_its_own(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        groups.register(LOG, "late", "t", start="latest")
        publish("t", 2, id="b")
        move(LOG, "late", "t", 10**18)
        assert asked("a").groups == {}
        assert set(asked("b").groups) == {"late"}

    def test_what_it_was_moved_back_to_is(self, consuming: Consuming) -> None:
        publish("t", 1, id="a")
        consuming.consumer("t", lambda delivery: None, group="late", start="latest")
        consuming.drain()
        assert asked("a").groups == {}
        move(LOG, "late", "t", 0)
        consuming.drain()
        assert state("a", "late") == ("acked", None)

    def test_of_a_partition_it_was_not_moved_back_in_nothing_is_told_as_acked(self, consuming: Consuming) -> None:
        publish_many("t", [NewMessage(1, id=key, key=key) for key in "abcdefgh"])
        groups.register(LOG, "late", "t", start="latest")
        start = ConsumerGroup.objects.get().start
        with pytest.raises(ConfigurationError, match=f"began at offset {start} of 't', in all partitions"):
            move(LOG, "late", "t", 0, Message.objects.get(message_id="a").partition)
        assert ConsumerGroup.objects.get().start == start
        assert all(asked(key, key=key).groups == {} for key in "abcdefgh")
        move(LOG, "late", "t", start, 0)


class TestReplayed:
    """A dead letter that was delivered again: the original's status leads to the copy, and ends with it."""

    @pytest.fixture
    def broken(self, consuming: Consuming) -> list[bool]:
        """Whether the handler rejects everything; message "a" has become a dead letter."""
        broken = [True]

        @consuming.consumer("t")
        def handle(delivery: Any) -> None:
            if broken:
                raise Reject("no")

        consuming.consumer("t", lambda delivery: None, group="other")
        publish("t", 1, id="a", key="k")
        consuming.drain()
        return broken

    @staticmethod
    def status() -> GroupStatus:
        return asked("a", key="k").groups["default"]

    @pytest.mark.parametrize("history", ["failures", "none"])
    def test_it_follows_the_copy(
        self, consuming: Consuming, settings: object, broken: list[bool], history: str
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"history": history}}}
        letter = Message.objects.dead_letters().get()
        assert (self.status().state, asked("a", key="k").finished) == ("dead", True)
        assert replay("t") == 1
        one = self.status()
        copied = f"replay:{letter.offset}", "k"
        assert (one.state, one.replayed_as, one.copy_state, one.attempts) == ("replayed", copied, "waiting", 1)
        assert not asked("a", key="k").finished
        assert asked("a", key="k").groups["other"].state == "acked"
        broken.clear()
        waits = threading.Timer(0.3, consuming.start)
        waits.start()
        done = asked("a", key="k").wait(timeout=60)
        waits.join()
        assert (done.groups["default"].state, done.groups["default"].copy_state) == ("replayed", "acked")
        assert asked(copied[0], key="k").groups["default"].state == "acked"

    def test_of_one_that_dies_again_and_is_replayed_again_the_last_copy_counts(
        self, consuming: Consuming, broken: list[bool]
    ) -> None:
        replay("t")
        first = self.status().replayed_as
        consuming.drain()
        assert (self.status().copy_state, asked("a", key="k").finished) == ("dead", True)
        replay("t")
        assert (self.status().replayed_as, self.status().copy_state) == (first, "waiting")
        broken.clear()
        consuming.drain()
        assert (self.status().copy_state, asked("a", key="k").finished) == ("acked", True)
        Message.objects.exclude(message_id="a").delete()  # collected
        assert (self.status().copy_state, asked("a", key="k").finished) == ("acked", True)

    def test_more_replays_than_are_followed_are_not_over(
        self, consuming: Consuming, broken: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sqlqueue.stats.message_status.MOST_FOLLOWED", 1)
        for _ in range(2):
            replay("t")
            consuming.drain()
        assert (self.status().copy_state, asked("a", key="k").finished) == ("waiting", False)

    def test_a_dead_letter_that_was_discarded_stays_dead(self, consuming: Consuming, broken: list[bool]) -> None:
        discard("t")
        assert (self.status().state, self.status().replayed_as) == ("dead", None)

    def test_a_kept_result_of_its_death_does_not_hide_the_replay(self, consuming: Consuming) -> None:
        def reject(delivery: Any) -> None:
            if not delivery.id.startswith("replay:"):
                raise Reject("no")

        consuming.consumer("t", reject, keep_results=DAY)
        offset = publish("t", 1, id="a").offset
        consuming.drain()
        assert (state("a"), of("a").error) == (("dead", 1), "no")
        replay("t")
        assert (of("a").state, of("a").error, asked("a").finished) == ("replayed", "no", False)
        Message.objects.filter(offset=offset).delete()
        consuming.drain()
        assert (of("a").copy_state, asked("a").finished) == ("acked", True)
