"""A database that can be read and takes no writes: commits hang, or are refused. Doctor, status and metrics say so."""

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest
from django.db import connection
from pytest_django import Settings

from sqlqueue import publish
from sqlqueue.database import write_probe
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.leases import heartbeat
from sqlqueue.log.groups import register
from sqlqueue.models import SubscriberHeartbeat
from sqlqueue.monitoring.responses import excesses
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import AWAY, LATE_HEARTBEATS, NO_CONSUMERS, UNWRITABLE, Finding
from sqlqueue.stats.survey import survey
from tests.faults.test_read_only import SAYS, database_up, read_only_server, url_of
from tests.logs import LOG
from tests.management.running import run
from tests.processes import ManageCommands, wait_until
from tests.servers.private import PrivateServer

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def commits_hang() -> Iterator[None]:
    """Let every commit wait, as on a full disk, while reads go on."""
    with closing(connection.copy()) as another, another.cursor() as cursor:
        if another.vendor == "mysql":
            begin, end = ["FLUSH TABLES WITH READ LOCK"], "UNLOCK TABLES"
            if connection.mysql_is_mariadb:  # type: ignore[attr-defined]
                begin, end = ["BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT"], "BACKUP STAGE END"
            for statement in begin:
                cursor.execute(statement)
            try:
                yield
            finally:
                cursor.execute(end)
        else:
            cursor.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            cursor.execute("SELECT pg_reload_conf()")
            time.sleep(0.5)
            try:
                yield
            finally:
                cursor.execute("ALTER SYSTEM RESET synchronous_standby_names")
                cursor.execute("SELECT pg_reload_conf()")


def told() -> list[Finding]:
    return [one for one in findings(survey(LOG)) if one.kind == UNWRITABLE]


def probes() -> int:
    return sum(thread.name == "sqlqueue-write-probe" for thread in threading.enumerate())


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_commits_that_hang_are_told_with_their_age_by_everything_that_operators_ask(
    database_server: PrivateServer,
) -> None:
    publish("orders", 1)
    assert (told(), database_up()) == ([], 1)
    with commits_hang():
        [finding] = told()
        assert "2 s" in finding.text, finding
        assert (database_up(), probes()) == (0, 1)
        assert [one.limit for one in excesses(survey(LOG))] == ["failing_writes"]
        status = run("queuestatus")
        assert "takes no writes" in status.out + status.err
        doctor = run("queuedoctor", "--json")
        assert doctor.code == 1
        assert [one["level"] for one in json.loads(doctor.out)["findings"] if one["about"] == "writes"] == ["error"]
        time.sleep(1)
        assert probes() == 1, "a thread was started for each question"
        assert "2 s" not in told()[0].text, "its age does not grow"
    wait_until(lambda: not told())
    assert database_up() == 1


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_processes_that_cannot_write_their_heartbeats_are_not_told_to_be_missing(
    database_server: PrivateServer,
) -> None:
    heartbeat.beat(LOG, "ship-1", [("ship", "orders")], 30)
    register(LOG, "ship", "orders")
    publish("orders", 1)
    SubscriberHeartbeat.objects.update(expires_at=DatabaseNow())
    missing = {NO_CONSUMERS, AWAY}
    assert missing <= {one.kind for one in findings(survey(LOG))}
    with commits_hang():
        assert not missing & {one.kind for one in findings(survey(LOG))}


@pytest.mark.database("sqlite")
def test_a_lock_that_another_process_holds_is_no_finding() -> None:
    with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert told() == []
        assert time.monotonic() - began < write_probe.TIMEOUT


@pytest.mark.session
@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_server_that_is_read_only_is_told_with_its_reason(
    database_server: PrivateServer, manage: ManageCommands
) -> None:
    with read_only_server() as differing:
        command = manage("queuedoctor", env={"DATABASE_URL": url_of(differing)})
        assert command.wait() == 1
    assert re.search(f"writes: The database takes no writes: .*{SAYS[connection.vendor]}", command.output)


def test_a_heartbeat_that_is_late_is_told_before_its_process_counts_as_dead(settings: Settings) -> None:
    def late() -> list[str]:
        return [one.text for one in findings(survey(LOG)) if one.kind == LATE_HEARTBEATS]

    settings.SQLQUEUE = {"HEARTBEAT_INTERVAL": 10, "LEASE_DURATION": 30}
    for name in ("slow", "slower", "slowest", "too many"):
        heartbeat.beat(LOG, name, [("ship", "orders")], 30)
    assert late() == []
    SubscriberHeartbeat.objects.update(beat_at=DatabaseNow() - timedelta(seconds=25))
    assert SubscriberHeartbeat.objects.alive().exists()
    [text] = late()
    assert "25 s" in text
    assert "slow, slower, slowest, …" in text
