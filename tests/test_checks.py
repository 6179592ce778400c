"""System checks: each id, when it is found, and that it is not found otherwise."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.core.checks import ERROR, WARNING, CheckMessage, run_checks
from django.db import DatabaseError, connection, connections
from django.test import override_settings
from django.utils import timezone

from sqlqueue import consumer, periodic, publish
from sqlqueue.checks import TAG
from sqlqueue.checks.configuration import MOST_LISTED
from sqlqueue.checks.databases import pool_problems
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.database import sequence, server_checks
from sqlqueue.database.server_checks import findings
from sqlqueue.log.topics import dead_letters, topic_info
from sqlqueue.models import Message, SubscriberHeartbeat
from tests.consuming import Consuming
from tests.logs import LOG
from tests.servers.session import isolate, isolation_option

MARIADB = pytest.mark.database("mariadb")


def found(server: bool = False) -> list[CheckMessage]:
    return run_checks(tags=[TAG], databases=["default"] if server else [])  # Django 6.1: None is all


def only(number: str, server: bool = False) -> CheckMessage:
    """Return the one message that there is, which has this number, says something and tells what to do."""
    messages = found(server)
    assert [message.id for message in messages] == [f"sqlqueue.{number}"]
    assert messages[0].hint or number == "E008"
    assert messages[0].level == (ERROR if number.startswith("E") else WARNING)
    return messages[0]


@pytest.fixture
def consuming() -> Iterator[Consuming]:
    """As the other tests have it, and without a database: nothing is consumed here."""
    consuming = Consuming()
    yield consuming
    consuming.end()


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """Another alias, which nothing is ever asked of."""
    connections.settings["elsewhere"] = connections.settings["default"] | {"NAME": "elsewhere"}
    yield
    del connections.settings["elsewhere"]


class Elsewhere:
    """A router that sends some models to another alias."""

    def __init__(self, *labels: str) -> None:
        self.labels = labels

    def db_for_write(self, model, **hints) -> str | None:
        return "elsewhere" if model._meta.app_label in self.labels else None


@pytest.mark.django_db
def test_a_project_that_is_well_has_none() -> None:
    assert found(server=True) == []


@pytest.mark.django_db
class TestSettings:
    def test_e001_an_unknown_option(self) -> None:
        with override_settings(SQLQUEUE={"PARTITION": 5}):
            assert "Did you mean 'PARTITIONS'?" in only("E001").msg

    def test_e001_a_lease_shorter_than_two_heartbeats(self) -> None:
        with override_settings(SQLQUEUE={"LEASE_DURATION": 15, "HEARTBEAT_INTERVAL": 10}):
            assert "twice HEARTBEAT_INTERVAL" in only("E001").msg

    def test_e001_each_problem_is_one(self) -> None:
        with override_settings(SQLQUEUE={"THREADS": 0, "PARTITIONS": 0}):
            assert [message.id for message in found(server=True)] == ["sqlqueue.E001", "sqlqueue.E001"]

    def test_e001_an_alias_that_there_is_not(self) -> None:
        with override_settings(SQLQUEUE={"DATABASE": "queue"}):
            assert "it has: default" in only("E001").msg

    def test_w013_polling_slower_than_leases_last(self) -> None:
        with override_settings(SQLQUEUE={"IDLE_POLL_INTERVAL": 31}):
            only("W013")


class TestConsumers:
    @pytest.fixture
    def module(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
        """Let one app have a `consumers` module that does as the test says."""

        def make(**options) -> None:
            def discover() -> None:
                consumer("t", **options)(lambda delivery: None)

            monkeypatch.setattr(registry, "discover", discover)

        return make

    def test_e010_a_handler_with_an_unknown_option(self, consuming: Consuming, module) -> None:
        module(orderng="key")
        assert "Did you mean 'ordering'?" in only("E010").msg

    def test_e010_a_handler_with_a_wrong_option(self, consuming: Consuming, module) -> None:
        module(max_attempts=0, visibility_timeout=-1)
        message = only("E010").msg
        assert "max_attempts" in message
        assert "visibility_timeout" in message

    def test_e010_a_module_that_cannot_be_imported(self, consuming: Consuming, monkeypatch) -> None:
        def discover() -> None:
            raise ImportError("No module named 'nothing'")

        monkeypatch.setattr(registry, "discover", discover)
        message = only("E010")
        assert "'consumers' module cannot be imported: ImportError" in message.msg
        assert __file__ in message.hint

    def test_e011_two_handlers_for_one_group_and_topic(self, consuming: Consuming) -> None:
        def one(delivery) -> None: ...

        def two(delivery) -> None: ...

        for handler in (one, two):
            consuming.consumer("t", handler, group="g")
        message = only("E011")
        assert ".one and " in message.msg
        assert ".two both" in message.msg
        assert "another group" in message.hint

    def test_e026_a_schedule_of_the_settings_and_one_of_the_code_have_a_name(self, consuming: Consuming) -> None:
        periodic("0 3 * * *", name="nightly")(lambda delivery: None)
        with override_settings(SQLQUEUE={"SCHEDULES": {"nightly": {"every": 60, "topic": "t"}}}):
            message = only("E026")
        assert "rename one" in message.msg

    def test_e001_a_schedule_that_never_fires(self) -> None:
        with override_settings(SQLQUEUE={"SCHEDULES": {"n": {"cron": "0 0 30 2 *", "topic": "t"}}}):
            assert "never fires" in only("E001").msg

    def test_the_same_handler_again_is_no_duplicate(self, consuming: Consuming) -> None:
        def one(delivery) -> None: ...

        for _ in range(2):
            consuming.consumer("t", one)
        for group in ("x", "y"):
            consuming.consumer("t", one, group=group)
        assert found() == []

    def test_w012_an_atomic_handler_that_may_run_for_hours(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None, atomic=True, visibility_timeout=7200)
        consuming.consumer("u", lambda delivery: None, visibility_timeout=7200)
        assert "7200" in only("W012").msg


@pytest.mark.usefixtures("elsewhere")
class TestAliases:
    def test_w020_business_models_on_another_alias(self) -> None:
        with override_settings(DATABASE_ROUTERS=[Elsewhere("app")]):
            message = only("W020")
        assert "app.Effect" in message.msg
        assert "'elsewhere'" in message.msg

    def test_e022_the_queues_models_on_another_alias(self) -> None:
        with override_settings(DATABASE_ROUTERS=[Elsewhere("sqlqueue")]):
            assert "sqlqueue.database.router.Router" in only("E022").hint

    def test_the_shipped_router_keeps_them_where_they_belong(self) -> None:
        routers = ["sqlqueue.database.router.Router", Elsewhere("sqlqueue")]
        with override_settings(DATABASE_ROUTERS=routers):
            assert found() == []

    def test_w021_times_without_zones(self) -> None:
        with override_settings(USE_TZ=False):
            only("W021")


@pytest.mark.django_db(transaction=True)
class TestServer:
    def test_it_is_asked_only_with_database(self, monkeypatch) -> None:
        monkeypatch.setattr(server_checks, "LEAST", dict.fromkeys(server_checks.LEAST, (99,)))
        assert found() == []
        assert found(server=True) != []

    @pytest.mark.database("sqlite")
    def test_e002_an_old_sqlite(self, monkeypatch) -> None:
        monkeypatch.setattr(connection.Database, "sqlite_version_info", (3, 34, 1))
        assert "SQLite 3.34.1 is too old" in only("E002", server=True).msg

    @pytest.mark.database("mariadb")
    def test_e002_an_old_mariadb(self, monkeypatch) -> None:
        monkeypatch.setattr(connections["default"], "mysql_version", (10, 5, 9))
        assert "MariaDB 10.5.9 is too old" in only("E002", server=True).msg

    @pytest.mark.database("mariadb", "mysql")
    def test_e002_an_old_mysql(self, monkeypatch) -> None:
        monkeypatch.setattr(connections["default"], "mysql_is_mariadb", False)
        monkeypatch.setattr(connections["default"], "mysql_version", (8, 0, 16))
        first = next(iter(findings(LOG)))
        assert first.id == "sqlqueue.E002"
        assert "MySQL 8.0.16 is too old" in first.msg

    @pytest.mark.database("postgresql")
    def test_e002_an_old_postgresql(self, monkeypatch) -> None:
        monkeypatch.setattr(connections["default"], "pg_version", 130_022)
        assert "PostgreSQL 13 is too old" in only("E002", server=True).msg

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    @pytest.mark.parametrize("level", ["READ UNCOMMITTED", "SERIALIZABLE"])
    def test_e003_an_isolation_level_that_was_never_proven(self, level: str) -> None:
        isolate(level)
        try:
            assert level in only("E003", server=True).msg.upper().replace("-", " ")
        finally:
            connection.close()

    @pytest.mark.database("postgresql")
    def test_e003_an_isolation_level_of_transactions_alone(self, monkeypatch) -> None:
        connection.close()
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", isolation_option("serializable"))
        try:
            assert "serializable" in only("E003", server=True).msg
        finally:
            connection.close()

    @pytest.mark.database("postgresql")
    def test_w009_snapshots_that_refuse_what_has_changed(self) -> None:
        isolate("repeatable read")
        try:
            only("W009", server=True)
        finally:
            connection.close()

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    @pytest.mark.parametrize(
        "level",
        ["READ COMMITTED", pytest.param("REPEATABLE READ", marks=pytest.mark.database("mariadb", "mysql"))],
    )
    def test_the_proven_isolation_levels_are_well(self, level: str) -> None:
        isolate(level)
        try:
            assert found(server=True) == []
        finally:
            connection.close()

    @pytest.mark.database("mariadb", "mysql")
    @pytest.mark.parametrize("mode", ["", "ANSI_QUOTES"])
    def test_e004_a_mode_that_cuts_what_is_too_long(self, mode: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = %s", [mode])
        try:
            only("E004", server=True)
        finally:
            connection.close()

    @pytest.mark.database("mariadb", "mysql")
    @pytest.mark.parametrize(
        "mode", ["ANSI", pytest.param("NO_TABLE_OPTIONS", marks=MARIADB), pytest.param("ORACLE", marks=MARIADB)]
    )
    def test_the_sequence_is_read_whatever_the_sql_mode_is(self, mode: str) -> None:
        publish("t", 1)
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = %s", [f"{mode},STRICT_TRANS_TABLES"])
        try:
            assert found(server=True) == []
            publish("t", 2)
            assert sequence.last_issued(LOG) == Message.objects.latest("offset").offset
        finally:
            connection.close()

    @pytest.mark.database("postgresql")
    @pytest.mark.parametrize(
        ("pool", "threads", "given"),
        [
            (True, 4, 4),
            ({}, 4, 0),
            ({"min_size": 2}, 4, 2),
            ({"min_size": 2, "max_size": 10}, 4, 10),
            ({"max_size": 15}, 4, 0),
            ({"max_size": 15}, 5, 15),
            (False, 100, 0),
        ],
    )
    def test_e049_a_connection_pool_in_which_threads_wait_for_each_other(
        self, monkeypatch, pool: object, threads: int, given: int
    ) -> None:
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", pool)
        with override_settings(SQLQUEUE={"THREADS": threads}):
            if not given:  # Django takes {} for no pool
                assert found() == []
                return
            message = only("E049")
            assert f"gives {given}, and a consumer process takes {2 * threads + 7}" in message.msg
            assert f"{{'max_size': {2 * threads + 7}}}" in message.hint

    @pytest.mark.database("postgresql")
    def test_e049_of_a_command_goes_by_its_own_threads(self, monkeypatch) -> None:
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", {"max_size": 11})
        assert not list(pool_problems(threads=2))
        assert [message.id for message in pool_problems(threads=3)] == ["sqlqueue.E049"]

    @pytest.mark.database("mariadb", "mysql")
    def test_e005_several_primaries(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION auto_increment_increment = 3")
        try:
            assert "is 3" in only("E005", server=True).msg
        finally:
            connection.close()

    @pytest.mark.database("postgresql")
    def test_e005_connections_that_cache_offsets_of_their_own(self) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute('ALTER TABLE sqlqueue_message ALTER COLUMN "offset" SET CACHE 20')
            assert "CACHE 20" in only("E005", server=True).msg
        finally:
            with connection.cursor() as cursor:
                cursor.execute('ALTER TABLE sqlqueue_message ALTER COLUMN "offset" SET CACHE 1')
        assert found(server=True) == []

    @pytest.mark.database("mariadb")
    def test_w017_changes_that_replicas_may_commit_out_of_order(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION gtid_domain_id = 7")
        try:
            assert "is 7" in only("W017", server=True).msg
        finally:
            connection.close()

    @pytest.mark.database("postgresql")
    def test_w019_a_replica_without_the_sequence(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("CREATE PUBLICATION of_the_queue FOR TABLE sqlqueue_message, sqlqueue_topic")
            try:
                assert "of_the_queue" in only("W019", server=True).msg
            finally:
                cursor.execute("DROP PUBLICATION of_the_queue")

    @pytest.mark.database("sqlite")
    @pytest.mark.parametrize("mode", ["DEFERRED", None])
    def test_w006_transactions_that_are_not_immediate(self, monkeypatch, mode: str | None) -> None:
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "transaction_mode", mode)
        only("W006", server=True)
        only("W006")
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "transaction_mode", "exclusive")
        assert found() == []

    @pytest.mark.database("sqlite")
    def test_w007_a_journal_that_makes_readers_wait(self, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
        connection.close()
        monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "another.sqlite3"))
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "init_command", "PRAGMA journal_mode = DELETE")
        try:
            assert "delete" in only("W007", server=True).msg
        finally:
            connection.close()

    @pytest.mark.once
    def test_w042_heartbeats_of_several_hosts_with_a_loopback_address(self) -> None:
        def beat(host: str, address: str, seconds: int = 60) -> None:
            expires = timezone.now() + timedelta(seconds=seconds)
            SubscriberHeartbeat.objects.create(
                subscriber=f"{host}-{address}",
                consumer_group="g",
                topic="t",
                host=host,
                address=address,
                expires_at=expires,
            )

        beat("one", "127.0.0.1:4000")
        beat("one", "127.0.0.1:4001")
        beat("gone", "127.0.0.1:4000", seconds=-60)
        beat("silent", "")
        assert found(server=True) == []
        beat("two", "10.0.0.2:4000")
        message = only("W042", server=True).msg
        assert "2 hosts" in message
        assert "one" in message
        assert "two" not in message
        SubscriberHeartbeat.objects.filter(host="one").update(address="10.0.0.1:4000")
        assert found(server=True) == []

    def test_e008_a_database_that_does_not_answer(self, monkeypatch) -> None:
        def refuse(alias: str):
            raise DatabaseError("no server answers")

        monkeypatch.setattr("sqlqueue.checks.databases.findings", refuse)
        assert "no server answers" in only("E008", server=True).msg


@pytest.mark.django_db
class TestTopics:
    def test_w030_partitions_and_priorities_that_cannot_be_changed(self, consuming: Consuming) -> None:
        with override_settings(SQLQUEUE={"TOPICS": {"t": {"partitions": 8, "priorities": 2}}}):
            topic_info(LOG, "t")
            dead_letters(LOG, "t")
            assert found(server=True) == []
        with override_settings(SQLQUEUE={"TOPICS": {"t": {"partitions": 16, "priorities": 2}}}):
            message = only("W030", server=True)
            assert "topic 't' has 8 partitions, and the settings say 16" in message.msg
            assert "Say 8 in SQLQUEUE['TOPICS']['t']['partitions'], or change the topic" in message.hint
            assert found() == []
        with override_settings(SQLQUEUE={"TOPICS": {"t": {"partitions": 8}}}):
            assert "topic 't' has 2 priorities, and the settings say 1" in only("W030", server=True).msg

    def test_w030_topics_whose_partitions_differ_from_those_of_new_ones(self, consuming: Consuming) -> None:
        for number in range(MOST_LISTED + 2):
            topic_info(LOG, f"t{number}")
        with override_settings(SQLQUEUE={"PARTITIONS": 16}):
            message = only("W030", server=True)
        assert "PARTITIONS is 16" in message.msg
        assert message.msg.endswith(f"'t{MOST_LISTED - 1}' 32 and 2 more")

    def test_w031_a_schedule_of_a_topic_that_nothing_declares(self, consuming: Consuming) -> None:
        options = {"TOPICS": {"orders": {}}, "SCHEDULES": {"sync": {"every": 60, "topic": "ordrs"}}}
        with override_settings(SQLQUEUE=options):
            message = only("W031", server=True)
        assert "schedule 'sync' publishes nothing: topic 'ordrs' is not declared" in message.msg

    def test_w031_a_consumer_of_a_topic_that_nothing_declares(self, consuming: Consuming) -> None:
        consuming.consumer("ordrs", lambda delivery: None)
        consuming.consumer("orders", lambda delivery: None)
        consuming.consumer("orders_dlq", lambda delivery: None)
        assert found(server=True) == []
        with override_settings(SQLQUEUE={"TOPICS": {"orders": {}}}):
            message = only("W031", server=True)
            assert "consumes nothing: topic 'ordrs' is not declared. Did you mean 'orders'?" in message.msg
            assert found() == []
        with override_settings(SQLQUEUE={"TOPICS": {"orders": {}}, "STRICT_TOPICS": False}):
            assert found(server=True) == []
        topic_info(LOG, "ordrs")
        with override_settings(SQLQUEUE={"TOPICS": {"orders": {}}}):
            assert found(server=True) == []
