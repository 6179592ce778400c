"""Collection removes what every registered group has acked past and retention has released, and nothing else."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from sqlqueue import NewMessage, Postpone, Reject, Retry, publish, publish_many
from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.core.keys import partition_of
from sqlqueue.database.gate import COLLECTOR
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.log import collect as collecting
from sqlqueue.log import retention
from sqlqueue.log.collect import collect, report_absent
from sqlqueue.log.groups import lock_topic, register, remove
from sqlqueue.models import Message, Offset, Progress, PublishGate, Receipt, Result, Topic
from sqlqueue.signals import group_away, messages_collected, results_collected
from tests.consuming import QUICK, Consuming
from tests.factories import ResultFactory, now
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

NOW = {**QUICK, "RETENTION": 0}


@pytest.fixture(autouse=True)
def no_collector_task(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the test collect, unless it says otherwise."""
    if "collector_task" not in request.node.name:
        monkeypatch.setattr(CollectorTask, "run_once", lambda self: False)


def run_collection() -> int:
    """Collect with a horizon that is known, as the collector does."""
    horizon = Horizon(LOG)
    horizon.wait()
    return collect(LOG, horizon).messages


def age(seconds: float) -> None:
    """Let everything in the log be so much older."""
    Message.objects.update(created_at=F("created_at") - timedelta(seconds=seconds))


def log(topic: str = "t") -> list[object]:
    return [message.payload for message in Message.objects.filter(topic=topic).order_by("offset")]


class TestWhatEveryGroupHasAcked:
    def test_is_removed(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = NOW
        for group in ("one", "two"):
            consuming.consumer("t", lambda delivery: None, group=group)
        publish_many("t", [NewMessage(n, key=str(n)) for n in range(50)])
        consuming.drain()
        assert run_collection() == 50
        assert log() == []

    def test_is_kept_while_a_registered_group_that_is_away_has_not(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = NOW
        heard: list[tuple[str, str]] = []

        def hear(*, group: str, topic: str, **_: object) -> None:
            heard.append((group, topic))

        consuming.consumer("t", lambda delivery: None, group="here")
        register(LOG, "away", "t")
        publish_many("t", [NewMessage(n, key=str(n)) for n in range(10)])
        consuming.drain()
        assert run_collection() == 0
        assert len(log()) == 10
        # It has no offsets yet: it never came.
        group_away.connect(hear)
        try:
            report_absent(LOG)
            assert heard == [("away", "t")]
            consuming.consumer("t", lambda delivery: None, group="away")
            consuming.drain("away")
            heard.clear()
            report_absent(LOG)
        finally:
            group_away.disconnect(hear)
        assert heard == []
        assert run_collection() == 10

    def test_is_removed_once_the_group_that_holds_it_back_is_removed(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = NOW
        consuming.consumer("t", lambda delivery: None)
        register(LOG, "away", "t")
        publish("t", 1)
        consuming.drain()
        assert run_collection() == 0
        remove(LOG, "away", "t")
        assert run_collection() == 1

    @pytest.mark.parametrize("error", [Retry(delay=60), Postpone(delay=60)], ids=["retried", "postponed"])
    def test_is_kept_from_the_first_that_waits(self, consuming: Consuming, settings, error: Exception) -> None:
        settings.SQLQUEUE = {**NOW, "PARTITIONS": 1}

        @consuming.consumer("t")
        def third_waits(delivery) -> None:
            if delivery.payload == 3:
                raise error

        for number in range(1, 6):
            publish("t", number, key=str(number))
        consuming.drain()
        assert run_collection() == 2
        assert log() == [3, 4, 5]

    def test_a_dead_letter_holds_back_nothing_and_is_never_collected_itself(
        self, consuming: Consuming, settings
    ) -> None:
        settings.SQLQUEUE = NOW

        @consuming.consumer("t")
        def reject(delivery) -> None:
            raise Reject("no")

        publish("t", 1)
        consuming.drain()
        age(10**8)
        assert run_collection() == 1
        assert (log(), log("t_dlq")) == ([], [1])

    def test_a_message_for_one_group_is_collected_when_that_group_has_it(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = NOW
        for group in ("one", "two"):
            consuming.consumer("t", lambda delivery: None, group=group)
        offset = publish("t", 1, group="one").offset
        host = consuming.start("two")  # a drain need not wait until it has passed what concerns another group
        wait_until(lambda: Offset.objects.filter(consumer_group="two", position__gte=offset).exists())
        host.subscriber.stop()
        host.join()
        register(LOG, "one", "t")
        assert run_collection() == 0
        consuming.drain("one")
        assert run_collection() == 1


class TestRetention:
    def test_what_is_younger_is_kept(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "TOPICS": {"t": {"retention": timedelta(hours=1)}}}
        consuming.consumer("t", lambda delivery: None)
        publish("t", "old")
        age(3700)
        publish("t", "young")
        consuming.drain()
        assert run_collection() == 1
        assert log() == ["young"]

    def test_without_one_it_is_kept_for_ever(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "RETENTION": None}
        consuming.consumer("t", lambda delivery: None)
        publish("t", 1)
        consuming.drain()
        age(10**8)
        assert run_collection() == 0

    def test_it_can_be_changed_while_running(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        publish("t", 1)
        consuming.drain()
        assert run_collection() == 0
        Topic.objects.update(retention=0)
        assert run_collection() == 1

    def test_a_topic_without_groups_is_kept_as_long_as_retention_says(self, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "RETENTION": 3600}
        publish_many("t", ["old", "older"])
        age(3700)
        publish("t", "young")
        assert run_collection() == 2
        assert log() == ["young"]

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_without_groups_nothing_above_the_horizon_is_removed(self, settings) -> None:
        settings.SQLQUEUE = {**NOW, "PARTITIONS": 1}
        publish("t", 1)
        horizon = Horizon(LOG)
        horizon.wait()
        publish("t", 2)
        assert collect(LOG, horizon).messages == 1
        assert log() == [2]


class TestBounds:
    def test_a_collection_stops_at_its_bound_and_says_that_there_is_more(self, monkeypatch, settings) -> None:
        settings.SQLQUEUE = {**NOW, "PARTITIONS": 1}
        monkeypatch.setattr(collecting, "BATCH", 10)
        publish_many("t", range(35))
        horizon = Horizon(LOG)
        horizon.wait()
        first = collect(LOG, horizon, batches=2)
        assert (first.messages, first.more) == (20, True)
        rest = collect(LOG, horizon, batches=100)
        assert (rest.messages, rest.more) == (15, False)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_while_another_collects_it_returns_at_once(self, settings) -> None:
        settings.SQLQUEUE = {**NOW, "PARTITIONS": 1}
        publish("t", 1)
        horizon = Horizon(LOG)
        horizon.wait()
        results: list[int] = []

        def other() -> None:
            mine = Horizon(LOG)
            mine.value = horizon.value
            results.append(collect(LOG, mine).messages)
            connections.close_all()

        with transaction.atomic():
            assert list(PublishGate.objects.select_for_update().filter(slot=COLLECTOR))
            lock_topic(LOG, "t")
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(30)  # sooner than a lock's own timeout
            assert results == [0]
        assert collect(LOG, horizon).messages == 1

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_a_message_that_somebody_has_locked_is_left_for_another_time(self, monkeypatch, settings) -> None:
        settings.SQLQUEUE = {**NOW, "PARTITIONS": 1}
        monkeypatch.setattr(collecting, "BATCH", 4)
        publish_many("t", range(10))
        third = Message.objects.get(payload=2).offset
        horizon = Horizon(LOG)
        horizon.wait()

        def collecting_elsewhere() -> int:
            try:
                return collect(LOG, horizon).messages
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool, OpenTransaction() as other:
            other.do(lambda: Message.objects.select_for_update().get(offset=third))
            assert pool.submit(collecting_elsewhere).result(30) == 9
        assert log() == [2]
        assert collect(LOG, horizon).messages == 1

    def test_of_uneven_partitions_what_lies_together_goes_together(self, monkeypatch, settings) -> None:
        """So that each page of a log is read once that is larger than the server's memory."""
        settings.SQLQUEUE = {**NOW, "PARTITIONS": 3}
        monkeypatch.setattr(collecting, "BATCH", 60)
        monkeypatch.setattr(collecting, "LEAST", 10)
        deleted: list[list[int]] = []
        delete = collecting.delete_all

        def note(log: Log, table: str, key: str, offsets: list[int]) -> None:
            deleted.append(sorted(offsets))
            delete(log, table, key, offsets)

        monkeypatch.setattr(collecting, "delete_all", note)
        keys = {partition_of(key, 3): key for key in "abcdefghij"}
        publish_many("t", [NewMessage(n, key=keys[0 if n % 10 else 1]) for n in range(600)])
        publish_many("t", [NewMessage(n, key=keys[n % 3]) for n in range(600)])
        assert run_collection() == 1200
        in_order = [offset for batch in deleted for offset in batch]
        assert in_order == sorted(in_order)
        assert len([batch for batch in deleted if batch]) <= 2 * 1200 // 60

    def test_what_is_kept_of_one_partition_holds_up_no_other_one(self, consuming, monkeypatch, settings) -> None:
        settings.SQLQUEUE = {**NOW, "PARTITIONS": 3}
        monkeypatch.setattr(collecting, "BATCH", 40)
        monkeypatch.setattr(collecting, "LEAST", 5)
        keys = {partition_of(key, 3): key for key in "abcdefghij"}
        slow = [0]

        @consuming.consumer("t")
        def wait(delivery) -> None:
            if delivery.key == keys[1] and slow:
                raise Postpone(delay=60)

        publish_many("t", [NewMessage(n, key=keys[n % 3]) for n in range(300)])
        consuming.drain()
        with CaptureQueriesContext(connections["default"]) as statements:
            assert run_collection() == 200
        assert {payload % 3 for payload in log()} == {1}
        batches = [each for each in statements if each["sql"].startswith("DELETE FROM") and "message" in each["sql"]]
        assert len(batches) <= 2 * 200 // 40

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_a_locked_message_holds_up_no_other_partition(self, monkeypatch, settings) -> None:
        settings.SQLQUEUE = {**NOW, "PARTITIONS": 3}
        monkeypatch.setattr(collecting, "BATCH", 12)
        monkeypatch.setattr(collecting, "LEAST", 4)
        publish_many("t", [NewMessage(n, key=str(n)) for n in range(100)])
        locked = list(Message.objects.filter(partition=0).order_by("offset").values_list("offset", flat=True)[:8])
        horizon = Horizon(LOG)
        horizon.wait()

        def collecting_elsewhere() -> int:
            try:
                return collect(LOG, horizon).messages
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as pool, OpenTransaction() as other:
            other.do(lambda: list(Message.objects.select_for_update().filter(offset__in=locked)))
            assert pool.submit(collecting_elsewhere).result(30) == 92
        assert collect(LOG, horizon).messages == 8

    def test_it_is_announced(self, settings) -> None:
        settings.SQLQUEUE = NOW
        heard: list[tuple[str, int]] = []

        def hear(*, topic: str, count: int, **_: object) -> None:
            heard.append((topic, count))

        publish_many("t", range(5))
        messages_collected.connect(hear)
        try:
            run_collection()
            run_collection()
        finally:
            messages_collected.disconnect(hear)
        assert heard == [("t", 5)]

    def test_the_collector_task_of_a_running_consumer_collects(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**NOW, "COLLECT_INTERVAL": 0.05}
        consuming.consumer("t", lambda delivery: None)
        publish_many("t", range(20))
        consuming.start()
        wait_until(lambda: not Message.objects.exists())


class TestReceipts:
    @pytest.mark.parametrize(
        ("history", "expected"),
        [
            ("none", []),
            ("failures", ["dead", "retried"]),
            ("all", ["acked", "acked", "dead", "postponed", "retried"]),
        ],
    )
    def test_they_are_written_as_the_topics_history_asks(
        self, consuming: Consuming, settings, history: str, expected: list[str]
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"history": history}}}
        postponed: list[int] = []

        @consuming.consumer("t")
        def handle(delivery) -> None:
            if delivery.payload == "retry" and delivery.attempt == 1:
                raise Retry("once", delay=0)
            if delivery.payload == "postpone" and not postponed:
                postponed.append(1)
                raise Postpone(delay=0)
            if delivery.payload == "reject":
                raise Reject("no")

        publish_many("t", ["retry", "postpone", "reject"])
        subscriber = consuming.drain()
        assert sorted(Receipt.objects.values_list("outcome", flat=True)) == expected
        if expected:
            receipt = Receipt.objects.get(outcome="retried")
            assert (receipt.consumer_group, receipt.topic, receipt.attempts) == ("default", "t", 1)
            assert receipt.worker == subscriber.name
            assert receipt.started_at <= receipt.finished_at

    def test_the_history_can_be_changed_while_running(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        host = consuming.start()
        Topic.objects.update(history="all")
        wait_until(lambda: host.subscriber.subscriptions[0].history == "all")
        publish("t", 1)
        wait_until(Receipt.objects.exists)

    def test_they_are_removed_when_they_are_old_enough(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "HISTORY": "all", "RECEIPT_RETENTION": 3600}
        consuming.consumer("t", lambda delivery: None)
        publish_many("t", range(5))
        consuming.drain()
        Receipt.objects.update(finished_at=F("finished_at") - timedelta(seconds=3700))
        publish("t", "young")
        consuming.drain()
        horizon = Horizon(LOG)
        horizon.probe(highest_offset(LOG))
        assert collect(LOG, horizon).receipts == 5
        assert Receipt.objects.count() == 1


class TestResults:
    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> None:
        monkeypatch.setattr(retention, "BATCH", 10)

    def test_those_whose_time_is_over_go_in_bounded_batches_and_are_counted(self, monkeypatch, settings) -> None:
        ResultFactory.insert(35, expires_at=now() - timedelta(seconds=1))
        young = {row.message_id for row in ResultFactory.insert(3)}
        heard: list[int] = []

        def hear(*, count: int, **_: object) -> None:
            heard.append(count)

        results_collected.connect(hear)
        try:
            assert collect(LOG, Horizon(LOG)).results == 35
            assert collect(LOG, Horizon(LOG)).results == 0
        finally:
            results_collected.disconnect(hear)
        assert heard == [35]
        assert set(Result.objects.values_list("message_id", flat=True)) == young

    def test_at_most_so_many_batches_at_once(self, monkeypatch) -> None:
        monkeypatch.setattr(retention, "MOST_BATCHES", 2)
        ResultFactory.insert(35, expires_at=now() - timedelta(seconds=1))
        assert collect(LOG, Horizon(LOG)).results == 20

    def test_one_that_is_stored_anew_meanwhile_stays(self, monkeypatch) -> None:
        ResultFactory.insert(3, expires_at=now() - timedelta(seconds=1))
        plain = retention.lock_free

        def settle_first(log: Log, values: object, table: str, key: str) -> list[int]:
            if table == "sqlqueue_result":
                Result.objects.filter(message_id=Result.objects.first().message_id).update(
                    expires_at=now() + timedelta(days=1)
                )
            return plain(log, values, table, key)

        monkeypatch.setattr(retention, "lock_free", settle_first)
        assert collect(LOG, Horizon(LOG)).results == 2
        assert Result.objects.count() == 1

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_one_that_a_settle_holds_is_left_and_waited_for_by_none(self) -> None:
        ResultFactory.insert(3, expires_at=now() - timedelta(seconds=1))
        held = Result.objects.first().id
        with OpenTransaction() as other:
            other.do(lambda: Result.objects.select_for_update().get(id=held))
            assert collect(LOG, Horizon(LOG)).results == 2
        assert collect(LOG, Horizon(LOG)).results == 1

    def test_progress_that_a_killed_process_left_goes_after_a_month(self) -> None:
        for offset, days in ((1, 31), (2, 29)):
            Progress.objects.create(
                topic="t",
                consumer_group="g",
                message_offset=offset,
                fencing_token=1,
                serial=1,
                done=1,
                updated_at=now() - timedelta(days=days),
            )
        collect(LOG, Horizon(LOG))
        assert list(Progress.objects.values_list("message_offset", flat=True)) == [2]
