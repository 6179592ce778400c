"""PgBouncer in transaction mode: nothing of the queue's stays in a session, few of them do, and what it says is
understood."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.core.management import call_command
from django.db import Error, connection, connections, transaction

from sqlqueue import NewMessage, Reject, Retry, publish, publish_many, replay
from sqlqueue.database import retries
from sqlqueue.database.error_codes import ErrorKind
from sqlqueue.database.limits import is_pooled
from sqlqueue.database.server_checks import findings
from sqlqueue.log.collect import collect
from sqlqueue.models import Message, Topic
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.management.running import run
from tests.servers.pgbouncer import PrivatePgBouncer
from tests.servers.postgresql import PrivatePostgreSQL
from tests.transactions import OpenTransaction

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("postgresql")]

# What a session would keep: settings, locks, prepared statements, a schema for temporary tables.
SETTINGS = "SELECT name, setting FROM pg_settings WHERE source = 'session'"
KEPT = """
    SELECT (SELECT COUNT(*) FROM pg_locks WHERE pid = PG_BACKEND_PID() AND locktype = 'advisory'),
    (SELECT COUNT(*) FROM pg_prepared_statements), PG_MY_TEMP_SCHEMA()
"""
OF_POSTGRESQL = {"client_encoding", "TimeZone", "DateStyle", "IntervalStyle", "application_name"}  # PgBouncer sets them

Pooling = Callable[..., PrivatePgBouncer]


@pytest.fixture
def pooling(database_server: PrivatePostgreSQL) -> Iterator[Pooling]:
    """Put a pooler before the server, which `default` leads through until the test ends."""
    poolers: list[PrivatePgBouncer] = []
    settings = connection.settings_dict
    before = {name: settings.get(name) for name in ("HOST", "PORT", "DISABLE_SERVER_SIDE_CURSORS")}

    def put(sessions: int, *options: str) -> PrivatePgBouncer:
        pooler = PrivatePgBouncer(database_server, sessions=sessions, options=options)
        poolers.append(pooler)
        pooler.start()
        connections.close_all()
        settings.update(HOST="127.0.0.1", PORT=str(pooler.port), DISABLE_SERVER_SIDE_CURSORS=True)
        return pooler

    try:
        yield put
    finally:
        connections.close_all()
        settings.update(before)
        for pooler in poolers:
            pooler.close()


def fetch(text: str) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall()


@contextmanager
def option(name: str, value: object) -> Iterator[None]:
    """Give the alias another option."""
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options[name] = value
    try:
        yield
    finally:
        connection.close()
        del options[name]


class TestNothingStays:
    def test_in_the_sessions_that_everything_has_run_in(self, pooling: Pooling, settings, consuming: Consuming) -> None:
        settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 2, "history": "all"}, "own": {"unique_for": 60}}}
        pooling(2)
        run_everything(consuming)
        consuming.end_hosts()
        processes = set()
        with OpenTransaction() as one, OpenTransaction() as other:  # each in one of the two sessions
            for session in (one, other):
                processes.update(session.do(lambda: fetch("SELECT PG_BACKEND_PID()")))
                assert {name for name, _ in session.do(lambda: fetch(SETTINGS))} <= OF_POSTGRESQL
                assert session.do(lambda: fetch(KEPT)) == [(0, 0, 0)]
        assert len(processes) == 2


def run_everything(consuming: Consuming) -> None:
    """Publish, consume, operate: in transactions and without, on connections of their own beside them."""
    attempts: list[object] = []

    def handle(delivery) -> None:
        attempts.append(delivery.payload)
        if delivery.payload == "retry" and delivery.attempt == 1:
            raise Retry(delay=0)
        if delivery.payload == "dead" and attempts.count("dead") < 3:
            raise Reject("no")

    consuming.consumer("t", handle, group="each")
    consuming.consumer("t", handle, group="atomic", atomic=True)
    consuming.consumer("t", lambda deliveries: None, group="batch", batch=True)
    with transaction.atomic():
        publish("t", "a", key="k", id="1")  # a new topic, which is made beside the transaction
        assert publish("own", "b", key="k").created
        assert not publish("own", "b", key="k").created
    publish_many("t", [NewMessage("dead", id="x"), NewMessage("retry", key="k"), NewMessage("dead", id="x")])
    publish("t", "later", delay=0)
    consuming.drain()
    assert Message.objects.filter(topic="t_dlq").count() == 2
    assert replay("t") == 2
    call_command("queuetopic", "alter", "t", partitions=4, no_input=True, verbosity=0)
    publish_many("t", range(8))
    consuming.drain()
    assert run("queuedoctor").code == 0
    collect(LOG)


def publish_in_a_transaction(topic: str) -> None:
    with transaction.atomic():
        Effect.objects.create(name="first", value="1")
        publish(topic, 1)


class TestFewSessions:
    def test_are_enough_for_more_threads_than_there_are(self, pooling: Pooling, consuming: Consuming) -> None:
        """A thread with an atomic handler has one as long as that runs; the engine waits for the other."""
        pooling(2)

        @consuming.consumer("t", atomic=True)
        def handle(delivery) -> None:
            Effect.objects.create(name="seen", value=str(delivery.payload))

        publish_many("t", range(60))
        consuming.drain(threads=8)
        assert sorted(Effect.objects.values_list("value", flat=True)) == sorted(map(str, range(60)))
        assert not Message.objects.filter(topic="t_dlq").exists()

    def test_one_is_too_few_for_what_looks_beside_a_transaction_and_that_is_said(self, pooling: Pooling) -> None:
        pooling(1, "query_wait_timeout = 1")
        with pytest.raises(Error, match="query_wait_timeout"):
            publish_in_a_transaction("new")
        assert not Topic.objects.exists()
        assert not Effect.objects.exists()


class TestWhatItReallySays:
    """Its errors have the SQLSTATE of a violated protocol, or none."""

    def classified(self, text: str = "SELECT 1") -> ErrorKind:
        with pytest.raises(Error) as raised:
            fetch(text)
        connection.close()
        return retries.classify(raised.value)

    def test_of_a_transaction_that_found_no_free_session(self, pooling: Pooling) -> None:
        pooling(1, "query_wait_timeout = 1")
        with OpenTransaction() as other:
            other.do(lambda: fetch("SELECT 1"))
            assert self.classified() is ErrorKind.GONE
        assert fetch("SELECT 1") == [(1,)]

    def test_of_a_client_too_many(self, pooling: Pooling) -> None:
        pooling(1, "max_client_conn = 1")
        with OpenTransaction() as other:
            other.do(lambda: fetch("SELECT 1"))
            assert self.classified() is ErrorKind.GONE

    def test_of_a_statement_that_took_too_long(self, pooling: Pooling) -> None:
        pooling(2, "query_timeout = 1")
        with OpenTransaction() as other:
            other.do(lambda: fetch("SELECT 1 FROM PG_ADVISORY_XACT_LOCK(1)"))
            assert self.classified("SELECT 1 FROM PG_ADVISORY_XACT_LOCK(1)") is ErrorKind.GONE

    def test_of_its_own_end(self, pooling: Pooling) -> None:
        pooler = pooling(1)
        fetch("SELECT 1")
        pooler.kill()
        assert self.classified() is ErrorKind.GONE
        assert self.classified() is ErrorKind.GONE  # to connect anew fails as well
        pooler.start()
        assert fetch("SELECT 1") == [(1,)]


class TestChecks:
    @pytest.mark.session
    def test_none_is_seen_where_there_is_none(self) -> None:
        assert not is_pooled(LOG)
        with option("prepare_threshold", 5):
            assert not list(findings(LOG))

    def test_it_is_seen(self, pooling: Pooling) -> None:
        pooling(1)
        assert is_pooled(LOG)
        assert not list(findings(LOG))
        said = run("queuedoctor").out
        assert "ok       connections: " in said
        assert "which a pooler has to let in" in said

    @pytest.mark.parametrize(("name", "value"), [("prepare_threshold", 5), ("assume_role", "postgres")])
    def test_w044_an_option_of_a_session(self, pooling: Pooling, name: str, value: object) -> None:
        pooling(1)
        with option(name, value):
            [problem] = findings(LOG)
        assert problem.id == "sqlqueue.W044"
        assert name in problem.msg
        assert "Leave it out" in problem.hint

    def test_e008_a_startup_parameter_that_it_does_not_know(self, pooling: Pooling) -> None:
        pooling(1)
        with option("options", "-c search_path=public"):
            said = run("check", "--database=default")
        assert said.code == 1
        assert "sqlqueue.E008" in said.err
        assert "startup parameter" in said.err

    def test_w044_cursors_that_would_outlive_their_transactions(self, pooling: Pooling) -> None:
        pooling(1)
        connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = False
        [problem] = findings(LOG)
        assert problem.id == "sqlqueue.W044"
        assert "['DISABLE_SERVER_SIDE_CURSORS'] = True" in problem.hint

    def test_what_two_clients_prepare_in_one_session_has_the_same_name(self, pooling: Pooling) -> None:
        """What W044 warns of."""
        pooling(1)
        with option("prepare_threshold", 0), option("server_side_binding", True):
            fetch("SELECT 1")
            with pytest.raises(Error, match="prepared statement"), OpenTransaction() as other:
                other.do(lambda: fetch("SELECT 2"))
