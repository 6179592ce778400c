"""Several writable servers, and servers that make publishers wait, are recognized by what they say of themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client, override_settings
from pytest_django import DjangoDbBlocker

from sqlqueue.database import writer
from sqlqueue.database.log import Log
from sqlqueue.database.server_checks import findings
from sqlqueue.database.writer import GALERA, MULTI_PRIMARY, cluster_kind, identity
from sqlqueue.leases import heartbeat
from sqlqueue.management.commands.queuedoctor import _check_findings as check_findings
from sqlqueue.management.doctor import Diagnostics, examine
from sqlqueue.models import SubscriberHeartbeat
from sqlqueue.monitoring.responses import health, status
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.findings import ERROR, WARNING
from sqlqueue.stats.survey import survey
from sqlqueue.version import __version__
from tests.admin.test_overview import page, words
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.servers import galera
from tests.servers.galera import GaleraNode
from tests.servers.group_member import BEGIN, GroupMember
from tests.servers.mariadb import PrivateMariaDB
from tests.servers.private import PrivateServer

NODE = {"wsrep_on": "ON", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}
GROUP = {"group_replication_group_name": "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"}


@pytest.mark.django_db
@pytest.mark.database("mariadb", "mysql")
@pytest.mark.parametrize(
    ("variables", "members", "kind"),
    [
        ({}, False, ""),
        (NODE, False, GALERA),
        (NODE | {"wsrep_on": "OFF"}, False, ""),
        (NODE | {"wsrep_provider": "none"}, False, ""),
        (GROUP | {"group_replication_single_primary_mode": "ON"}, True, ""),
        (GROUP | {"group_replication_single_primary_mode": "OFF"}, True, MULTI_PRIMARY),
        (GROUP | {"group_replication_single_primary_mode": "OFF"}, False, ""),  # installed, and not started
    ],
)
def test_clusters_are_told_by_their_variables(
    variables: dict[str, str], members: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_variables", lambda log: variables)
    monkeypatch.setattr(writer, "_has_members", lambda log: members)
    assert cluster_kind(LOG) == kind


@pytest.mark.django_db(transaction=True)
def test_a_server_that_stands_alone_is_no_cluster_and_has_an_identity(database_name: str) -> None:
    assert cluster_kind(LOG) == ""
    assert bool(identity(LOG)) == (database_name != "sqlite")
    heartbeat.beat(LOG, "me", [("g", "t")], 30)
    beat = SubscriberHeartbeat.objects.get()
    assert (beat.version, beat.server) == (__version__, identity(LOG))
    before = identity(LOG)
    connections["default"].close()
    assert identity(LOG) == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.database("mariadb", "mysql")
def test_servers_on_hosts_with_long_names_have_different_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for uuid in (f"aaaaaaaa-aaaa-aaaa-aaaa-{number:012}" for number in range(2)):
        seen = {"hostname": "host" * writer.IDENTITY_LENGTH, "port": "65535", "server_uuid": uuid}
        monkeypatch.setattr(writer, "_variables", lambda log, seen=seen: seen)
        heartbeat.beat(LOG, uuid, [("g", "t")], 30)
        found.add(SubscriberHeartbeat.objects.get(subscriber=uuid).server)
    assert len(found) == 2


@pytest.fixture
def own_servers(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Let the test use databases on servers that it starts itself."""
    with django_db_blocker.unblock():
        yield


@contextmanager
def alias(name: str, server: PrivateServer) -> Iterator[str]:
    """Let Django have a database on a server, under a name of its own."""
    import MySQLdb  # only there when the suite runs on MySQL or MariaDB

    with MySQLdb.connect(host="127.0.0.1", port=server.port, user="root") as client:
        client.cursor().execute("CREATE DATABASE IF NOT EXISTS sqlqueue CHARACTER SET utf8mb4")
    config = dict(connections["default"].settings_dict)
    options = {key: value for key, value in config["OPTIONS"].items() if key != "unix_socket"}
    config.update(NAME="sqlqueue", HOST="127.0.0.1", PORT=server.port, USER="root", PASSWORD="", OPTIONS=options)
    connections.settings[name] = config
    try:
        yield name
    finally:
        connections[name].close()
        del connections[name]
        del connections.settings[name]


@pytest.mark.database("mysql")
def test_no_consumer_is_started_on_a_group_with_several_primaries(own_servers: None) -> None:
    with GroupMember() as member, alias("group", member) as name:
        assert list(findings(Log.of(name))) == []
        with connections[name].cursor() as cursor:
            for statement in BEGIN:
                cursor.execute(statement)
        assert cluster_kind(Log.of(name)) == MULTI_PRIMARY
        assert [found.id for found in findings(Log.of(name))] == ["sqlqueue.E043"]
        with override_settings(SQLQUEUE={"DATABASE": name}, DATABASE_ROUTERS=[]):
            with pytest.raises(CommandError, match=r"no consumer is started \(sqlqueue\.E043\)"):
                call_command("runconsumers", "--processes=0")
            told = [found.text for found in check_findings(Log.of(name)) if found.about == "check sqlqueue.E043"]
        assert len(told) == 1
        with connections[name].cursor() as cursor:
            cursor.execute("STOP GROUP_REPLICATION")
            cursor.execute("SET GLOBAL super_read_only = OFF")
        assert list(findings(Log.of(name))) == []


@pytest.mark.database("mariadb")
@pytest.mark.skipif(bool(galera.missing()), reason=galera.missing())
def test_a_galera_node_is_recognized(own_servers: None) -> None:
    with GaleraNode() as node, alias("galera", node) as name:
        assert cluster_kind(Log.of(name)) == GALERA
        assert [found.id for found in findings(Log.of(name))] == ["sqlqueue.W014"]
        with override_settings(SQLQUEUE={"DATABASE": name}, DATABASE_ROUTERS=[]):
            found = list(check_findings(Log.of(name)))
        told = [(each.level, each.text) for each in found if each.about == "check sqlqueue.W014"]
        text = "Galera: what is published through another node than the named one is forwarded to it"
        assert told == [(WARNING, text)]
        with PrivateMariaDB() as other, alias("other", other) as another:
            assert identity(Log.of(name)) != identity(Log.of(another))


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_consumers_that_write_to_two_servers_say_so_and_so_does_everything_else(
    consuming: Consuming, settings, admin_client: Client
) -> None:
    settings.SQLQUEUE = {**QUICK, "LEASE_DURATION": 0.5, "HEARTBEAT_INTERVAL": 0.1}
    consuming.consumer("t", lambda delivery: None, group="g")
    consuming.start()
    heartbeat.beat(LOG, "one of another node", [("g", "t")], 300)
    assert len(survey(LOG).servers) == 1
    recent_survey.forget()
    assert health(detailed=True).status == 200
    elsewhere = SubscriberHeartbeat.objects.filter(subscriber="one of another node")
    elsewhere.update(server="another:3306")
    facts = Diagnostics(LOG, [])
    assert facts.survey is not None
    assert set(facts.survey.servers) == {"another:3306", identity(LOG)}
    assert [finding.level for finding in examine(facts) if finding.about == "servers"] == [ERROR]
    recent_survey.forget()
    answer = health(detailed=True)
    assert answer.status == 503
    assert [(one["limit"], one["value"], one["allowed"]) for one in answer.body["passed"]] == [("servers", 2, 1)]
    assert "another:3306" in status().body["servers"]
    shown = words(page(admin_client))
    assert "Consumers write to 2 database servers: " in shown
    assert "another:3306" in shown
