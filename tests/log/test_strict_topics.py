"""A name that nothing declares makes no topic: it is refused where it enters, and consumed by nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections, transaction

from sqlqueue import ConfigurationError, publish, publish_many, publish_on_commit, subscribe, testing
from sqlqueue.checks.configuration import check_declared
from sqlqueue.conf import settings as queue_settings
from sqlqueue.database.log import Log
from sqlqueue.log import topics
from sqlqueue.log.publish import check
from sqlqueue.log.schedule import move_due
from sqlqueue.log.topics import topic_info
from sqlqueue.models import ConsumerGroup, Message, ScheduledMessage, Topic
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.management.running import run
from tests.processes import wait_until
from tests.servers.session import isolate
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

ENTRANCES: dict[str, Callable[[str], object]] = {
    "publish": lambda topic: publish(topic, 1),
    "publish_many": lambda topic: publish_many(topic, [1]),
    "publish_many of none": lambda topic: publish_many(topic, []),
    "publish_on_commit": lambda topic: publish_on_commit(topic, 1),
    "schedule": lambda topic: publish(topic, 1, delay=60),
    "for a group": lambda topic: publish(topic, 1, group="g"),
    "check": lambda topic: check(topic, [1]),
}
UNDECLARED = r"topic 'ordres' is not declared\. Did you mean 'orders'\?"


@pytest.fixture
def declared(settings: Any) -> Any:
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {}}}
    return settings


@pytest.mark.parametrize(
    ("given", "strict"),
    [
        ({}, False),
        ({"TOPICS": {}}, False),
        ({"TOPICS": {"t": {}}}, True),
        ({"TOPICS": {"t": {}}, "STRICT_TOPICS": False}, False),
        ({"STRICT_TOPICS": True}, True),
    ],
)
def test_it_is_on_as_soon_as_a_topic_is_named(given: dict[str, object], strict: bool, settings: Any) -> None:
    settings.SQLQUEUE = given
    assert queue_settings.STRICT_TOPICS is strict


class TestEntering:
    @pytest.mark.parametrize("entrance", ENTRANCES)
    def test_an_undeclared_topic_is_refused(self, entrance: str, declared: Any) -> None:
        with transaction.atomic(), pytest.raises(ConfigurationError, match=UNDECLARED):
            ENTRANCES[entrance]("ordres")
        assert not Topic.objects.exists()
        assert not ScheduledMessage.objects.exists()

    @pytest.mark.parametrize("entrance", ENTRANCES)
    def test_one_that_is_there_already_is_declared(self, entrance: str, settings: Any) -> None:
        publish("former", 1)
        settings.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {}}}
        ENTRANCES[entrance]("former")
        with pytest.raises(ConfigurationError, match="Did you mean 'former'"):
            ENTRANCES[entrance]("formre")

    def test_a_command_says_it_in_a_line(self, declared: Any) -> None:
        for more in ((), ("--dry-run",), ("--delay", "5")):
            said = run("queuepublish", "ordres", "1", *more)
            assert (said.code, "Did you mean 'orders'?" in said.err) == (1, True)
        assert run("queuepublish", "orders", "1").code == 0

    def test_a_loop_that_pulls_from_one_is_refused(self, declared: Any) -> None:
        with pytest.raises(ConfigurationError, match=UNDECLARED), subscribe("ordres", timeout=0):
            pass
        assert not ConsumerGroup.objects.exists()
        publish("orders", 1)
        for topic in ("orders", "orders_dlq"):
            with subscribe(topic, timeout=0) as deliveries:
                list(deliveries)

    def test_what_plain_sql_schedules_is_refused_when_it_is_due(self, declared: Any) -> None:
        for topic in ("ordres", "orders"):
            ScheduledMessage.objects.create(topic=topic, payload=1)
        while move_due(LOG):
            pass
        refused = ScheduledMessage.objects.get()
        assert (refused.topic, refused.refused) == ("ordres", True)
        assert "Did you mean 'orders'?" in refused.refusal
        assert Message.objects.get().topic == "orders"

    def test_a_known_topic_costs_no_statement(self, declared: Any, django_assert_num_queries: Any) -> None:
        publish("orders", 1)
        with django_assert_num_queries(1):
            publish("orders", 1)


class TestDeadLetters:
    @pytest.mark.parametrize("entrance", ENTRANCES)
    @pytest.mark.parametrize("named", [{}, {"orders": {}}], ids=["not strict", "strict"])
    def test_publishing_them_by_hand_is_refused(self, entrance: str, named: Any, settings: Any) -> None:
        settings.SQLQUEUE = {**QUICK, "TOPICS": named}
        with pytest.raises(ConfigurationError, match="'orders_dlq' is for the dead letters of 'orders'"):
            ENTRANCES[entrance]("orders_dlq")
        assert not Topic.objects.exists()

    def test_plain_sql_is_refused_too(self) -> None:
        ScheduledMessage.objects.create(topic="orders_dlq", payload=1)
        move_due(LOG)
        assert "is for the dead letters" in ScheduledMessage.objects.get().refusal
        assert not Topic.objects.exists()

    def test_messages_that_die_become_some(self, declared: Any, consuming: Consuming) -> None:
        declared.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {}}}

        @consuming.consumer("orders", max_attempts=1)
        def fail(delivery: Any) -> None:
            raise ValueError

        publish("orders", 1)
        testing.drain()
        assert Message.objects.get(topic="orders_dlq").payload == 1


class TestConsumers:
    def test_one_makes_no_topic_is_told_of_and_holds_up_no_other(
        self, declared: Any, consuming: Consuming, caplog: pytest.LogCaptureFixture
    ) -> None:
        declared.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {}}}
        seen: list[int] = []
        for start in ("earliest", "latest"):
            consuming.consumer("ordrs", lambda delivery: None, group=start, start=start)
        consuming.consumer("orders", lambda delivery: seen.append(delivery.payload))
        publish("orders", 1)
        consuming.drain()
        assert seen == [1]
        assert not Topic.objects.filter(name="ordrs").exists()
        assert not ConsumerGroup.objects.filter(topic="ordrs").exists()
        told = [record.message for record in caplog.records if "topic_undeclared" in record.message]
        assert len(told) == 2
        assert "group=earliest topic=ordrs" in told[0]
        assert "Did you mean 'orders'?" in told[0]
        [first, second] = check_declared(["default"])
        assert (first.id, second.id) == ("sqlqueue.W031", "sqlqueue.W031")
        assert "Did you mean 'orders'?" in first.msg
        assert check_declared(None) == []

    @pytest.mark.parametrize("start", ["earliest", "latest"])
    def test_it_begins_when_the_topic_is_there(self, start: str, declared: Any, consuming: Consuming) -> None:
        declared.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {}}}
        seen: list[int] = []
        consuming.consumer("invoices", lambda delivery: seen.append(delivery.payload), start=start)
        host = consuming.start()
        wait_until(lambda: host.subscriber.idle)
        declared.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {}, "invoices": {}}}  # as a newer deployment has it
        publish("invoices", 1)
        declared.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {}}}
        wait_until(lambda: seen == [1])
        host.stop()

    def test_inside_a_test_case_too(self, declared: Any, consuming: Consuming) -> None:
        declared.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {}}}
        consuming.consumer("ordrs", lambda delivery: None)
        assert testing.drain() == 0


def test_the_tables_declare_what_was_there_before_the_topics_were_named(settings: Any) -> None:
    topic_info(LOG, "former")
    settings.SQLQUEUE = {"TOPICS": {"orders": {}}}
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO sqlqueue_scheduled_message (topic, payload) VALUES ('former', '1')")
    assert move_due(LOG) == 1
    assert Message.objects.get().topic == "former"


# Topics come into being with their first use, whatever transaction that happens in.


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_transaction_with_an_older_snapshot_can_publish_to_a_new_topic() -> None:
    try:
        isolate("repeatable read")
        with transaction.atomic():
            assert Topic.objects.count() == 0  # the snapshot
            publish("new", 1)
    finally:
        connections.close_all()
    assert Topic.objects.get().name == "new"


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_transaction_with_an_older_snapshot_knows_what_is_declared_since(settings: object) -> None:
    settings.SQLQUEUE = {"TOPICS": {"orders": {}}}
    try:
        isolate("repeatable read")
        with transaction.atomic(), OpenTransaction() as other:
            assert Topic.objects.count() == 0  # the snapshot
            other.do(lambda: topics.insert(LOG, "new", 3))
            other.commit()
            publish("new", 1)
            with pytest.raises(ConfigurationError, match="not declared"):
                publish("newer", 1)
    finally:
        connections.close_all()
    assert Topic.objects.get().partitions == 3


def test_a_dead_letter_topic_has_the_partitions_of_its_topic(settings: object) -> None:
    settings.SQLQUEUE = {"TOPICS": {"t": {"partitions": 5}}, "PARTITIONS": 3}
    assert topics.dead_letters(LOG, "t").partitions == 5
    assert topics.topic_info(LOG, "t_dlq").partitions == 5


def test_a_known_dead_letter_topic_costs_no_statement(django_assert_num_queries) -> None:
    topics.dead_letters(LOG, "t")
    with django_assert_num_queries(0):
        topics.dead_letters(LOG, "t")


def test_a_topic_that_is_dropped_while_it_is_looked_up_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the INSERT, which finds its row, and the read of what is stored."""
    aside, dropped = topics.aside, []

    @contextmanager
    def dropping(log: Log) -> Iterator[Callable[[str, Any], Any]]:
        with aside(log) as run:

            def then(text: str, values: Any) -> Any:
                cursor = run(text, values)
                if text.startswith("INSERT") and not dropped:
                    dropped.append(Topic.objects.all().delete())
                return cursor

            yield then

    monkeypatch.setattr(topics, "aside", dropping)
    assert topics.insert(LOG, "t", 3).partitions == 3
    assert dropped
    assert Topic.objects.get().partitions == 3
