"""A server that lets nothing be written is refused, with what it says of itself as the reason."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from django.core.checks import run_checks
from django.db import Error, connection, connections
from pytest_django import DjangoDbBlocker, Settings

from sqlqueue import publish
from sqlqueue.checks import TAG
from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.server_checks import findings
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.monitoring.gauges import StatsCollector
from sqlqueue.stats.cached import recent_survey
from tests.consumer_processes import GROUP, Consumers
from tests.logs import LOG
from tests.management.running import run
from tests.processes import database_url, wait_until
from tests.progress import wait_until_settled
from tests.servers.private import PrivateServer

pytestmark = pytest.mark.django_db(transaction=True)

ALIAS, USER = "unprivileged", "unprivileged"
SAYS = {"mysql": "read-only option", "postgresql": "read-only transaction", "sqlite": "readonly database"}


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@contextmanager
def read_only_server() -> Iterator[dict[str, object]]:
    """Let the server refuse writes; yield how the alias differs from the default one: no superuser, who may write all
    the same."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        yield {"NAME": f"file:{name}?mode=ro"}
        return
    if connection.vendor == "mysql":
        execute(f"CREATE USER {USER}@'%' IDENTIFIED BY ''", f"GRANT ALL ON `{name}`.* TO {USER}@'%'")
    refuse_writes(True)
    try:
        yield {"USER": USER, "PASSWORD": ""} if connection.vendor == "mysql" else {}
    finally:
        refuse_writes(False)
        if connection.vendor == "mysql":
            execute(f"DROP USER {USER}@'%'")


def refuse_writes(refuse: bool) -> None:
    """Let the server refuse writes of present and later sessions, this one's excepted, or take them again."""
    if connection.vendor == "mysql":
        execute(f"SET GLOBAL read_only = {refuse:d}")
        return
    value = "on" if refuse else "off"
    execute("SET default_transaction_read_only = off", f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    execute("SELECT pg_reload_conf()")

    def reloaded() -> bool:
        with closing(connection.copy()) as another, another.cursor() as cursor:
            cursor.execute("SHOW default_transaction_read_only")
            return bool(cursor.fetchone()[0] == value)

    wait_until(reloaded)


def url_of(differing: dict[str, object]) -> str:
    """Return the DATABASE_URL of a process that uses the alias."""
    user = connection.settings_dict["USER"]
    return database_url().replace(f"{user}@", f"{differing.get('USER', user)}@")


def database_up() -> float:
    recent_survey.forget()
    [up] = [family for family in StatsCollector().collect() if family.name == "sqlqueue_database_up"]
    return float(up.samples[0].value)


@pytest.fixture
def read_only(request: pytest.FixtureRequest, settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The queue's alias is one that may not write."""
    if connection.vendor != "sqlite":
        server: PrivateServer = request.getfixturevalue("database_server")
        assert server.pid
    with read_only_server() as differing:
        connections.settings[ALIAS] = {**connection.settings_dict, **differing}
        settings.SQLQUEUE = {"DATABASE": ALIAS, "WAKE": False}
        settings.DATABASE_ROUTERS = ["sqlqueue.database.router.Router"]
        try:
            with django_db_blocker.unblock():
                yield
        finally:
            connections[ALIAS].close()
            del connections[ALIAS], connections.settings[ALIAS]


@pytest.mark.session
def test_it_is_refused_with_the_reason(read_only: None) -> None:
    """By the system check, by consumers at their start, by a command, and when something is published."""
    reason = SAYS[connection.vendor]
    [message] = [one for one in run_checks(tags=[TAG], databases=[ALIAS]) if one.id == "sqlqueue.E016"]
    assert reason in message.msg
    assert "SQLQUEUE['DATABASE']" in message.hint
    assert message.is_serious()

    said = run("runconsumers", "--check")
    assert said.code == 1
    assert "cannot be written to" in said.err
    assert reason in said.err

    said = run("queuepublish", "t", "1")
    assert said.code == 4
    assert "cannot write" in said.err
    assert reason in said.err
    assert database_up() == 0

    for options in ({}, {"delay": 60}):
        with pytest.raises(Error, match=reason) as raised:
            publish("t", 1, **options)
        assert classify(raised.value) is ErrorKind.GONE
    assert not Message.objects.using("default").exists()
    assert not ScheduledMessage.objects.using("default").exists()


def test_one_that_can_be_written_to_is_not() -> None:
    assert [one for one in run_checks(tags=[TAG], databases=["default"]) if one.id == "sqlqueue.E016"] == []


@pytest.mark.of_time
@pytest.mark.database("sqlite")
def test_one_that_is_locked_is_not_waited_for_and_not_called_so() -> None:
    with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert list(findings(LOG)) == []
        assert time.monotonic() - began < connection.settings_dict["OPTIONS"]["timeout"] / 2
    with connection.cursor() as cursor:
        assert cursor.execute("PRAGMA busy_timeout").fetchone() == (20_000,)


@pytest.mark.session
@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("processes", [0, 1])
def test_a_process_that_starts_waits_until_it_can_write_and_one_that_runs_goes_on_then(
    consumers: Consumers, database_server: PrivateServer, processes: int
) -> None:
    consumers.publish("steady", "a")
    with read_only_server() as differing:
        url = url_of(differing)
        command = consumers.start("steady", processes=processes, url=url)
        command.wait_for_line(f"event=database_takes_no_writes .*{SAYS[connection.vendor]}.*retry_in=2", timeout=60)
        assert "Traceback" not in command.output
        refuse_writes(False)
        wait_until_settled("steady", GROUP)
        refuse_writes(True)
        wait_until(lambda: SAYS[connection.vendor] in command.output.rpartition("subscriber_started")[2])
        refuse_writes(False)
        consumers.publish("steady", "b")
        wait_until_settled("steady", GROUP)
        assert consumers.noted("end") == {("a", 1): 1, ("b", 1): 1}
        assert "process_died" not in command.output
        assert "Traceback" not in command.output
        command.terminate()
        assert command.wait() == 0
