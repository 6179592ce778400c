"""A user that may select, insert, update and delete, and nothing else, can publish, consume, operate and collect."""

from collections.abc import Iterator
from unittest.mock import ANY

import pytest
from django.db import DatabaseError, connection, connections, transaction
from pytest_django import DjangoDbBlocker, Settings

from sqlqueue import Delivery, NewMessage, Retry, publish, publish_many
from sqlqueue.checks.databases import check_offsets
from sqlqueue.database.log import Log
from sqlqueue.database.sequence import look
from sqlqueue.leases.acquire import acquire
from sqlqueue.log.collect import collect
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup, DeliveryState, Layout, Message, PartitionLease, Topic
from tests.consuming import QUICK, Consuming
from tests.management.running import run
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.database("mariadb", "mysql", "postgresql"),
    pytest.mark.session,  # a pooler knows one user
]

ALIAS, USER = "least", "sqlqueue_least"


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def least(transactional_db: None, settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The queue's alias is that of such a user."""
    name, differing = connection.settings_dict["NAME"], {"USER": USER, "PASSWORD": ""}
    rights = "SELECT, INSERT, UPDATE, DELETE"
    if connection.vendor == "postgresql":
        execute(
            f"CREATE ROLE {USER} LOGIN",
            f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO {USER}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {USER}",
        )
    else:
        execute(f"CREATE USER {USER}@'%' IDENTIFIED BY ''", f"GRANT {rights} ON `{name}`.* TO {USER}@'%'")
    connections.settings[ALIAS] = {**connection.settings_dict, **differing}
    settings.SQLQUEUE = {**QUICK, "DATABASE": ALIAS}
    settings.DATABASE_ROUTERS = ["sqlqueue.database.router.Router"]
    try:
        with django_db_blocker.unblock():
            yield
    finally:
        connections[ALIAS].close()
        del connections[ALIAS], connections.settings[ALIAS]
        if connection.vendor == "postgresql":
            execute(f"DROP OWNED BY {USER}", f"DROP ROLE {USER}")
        else:
            execute(f"DROP USER {USER}@'%'")


@pytest.fixture
def consuming(least: None) -> Iterator[Consuming]:
    consuming = Consuming()
    yield consuming
    consuming.end()
    connections[ALIAS].close()


def test_it_suffices(consuming: Consuming) -> None:
    seen: list[object] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload == "again" and delivery.attempt == 1:
            raise Retry(delay=0)
        if delivery.payload == "bad":
            raise ValueError(delivery.payload)

    consuming.consumer("t", handle, max_attempts=2, backoff=0)
    consuming.consumer("t", handle, group="atomic", atomic=True, max_attempts=2, backoff=0)
    publish("t", "one", id="one")
    publish("t", "one", id="one")
    publish_many("t", [NewMessage(word, key=word) for word in ("again", "bad", "many")])
    publish("t", "late", delay=0.2)
    with transaction.atomic(using=ALIAS):
        publish("t", "in a transaction")
    consuming.start()
    wanted = sorted(2 * ["one", "again", "again", "bad", "bad", "many", "late", "in a transaction"])
    wait_until(lambda: sorted(map(str, seen)) == wanted)
    consuming.end_hosts()
    assert not DeliveryState.objects.using(ALIAS).filter(topic="t").exists()
    assert run("queuegroup", "rewind", "t", "--from", "earliest", "--all-groups", "--no-input") == (0, ANY, "")
    seen.clear()
    consuming.drain()
    assert seen.count("many") == 2
    assert run("queuedlq", "discard", "t", "--no-input")[0] == run("queuestatus")[0] == 0
    Topic.objects.using(ALIAS).filter(name="t").update(retention=0.0)
    collect(Log.of(ALIAS))
    assert not Message.objects.using(ALIAS).filter(topic="t").exists()
    with pytest.raises(DatabaseError, match=r"denied|must be owner"), connections[ALIAS].cursor() as cursor:
        cursor.execute("DROP TABLE sqlqueue_receipt")


def test_a_recovery_that_takes_more_changes_nothing_and_names_what_to_grant(least: None) -> None:
    publish("t", 0)
    register(Log.of(ALIAS), "g", "t")
    acquire(Log.of(ALIAS), "gone", "g", "t", [0], priorities=1, lease_duration=3600, horizon=0)
    tokens = PartitionLease.objects.using(ALIAS).order_by("id").values_list("fencing_token", flat=True)
    assert run("queuerecover", "--no-input")[0] == 0, "the sequence does not lag: rows are all that there is to change"
    before = list(tokens.all())
    start = look(Log.of(ALIAS)).last_issued + 1_000
    ConsumerGroup.objects.using(ALIAS).update(start=start)
    code, _, said = run("queuerecover", "--no-input")
    assert (code, list(tokens.all())) == (1, before)
    grant = said.partition("let the owner run ")[2]
    assert grant.startswith("GRANT "), said
    execute(grant)
    assert run("queuerecover", "--no-input")[0] == 0
    assert list(tokens.all()) != before
    assert (publish("t", 1).offset or 0) > start


@pytest.mark.database("postgresql")
def test_a_recovery_by_a_user_of_tables_alone_changes_nothing_and_names_what_to_grant(least: None) -> None:
    execute(f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM {USER}")
    assert publish("t", 0).offset
    register(Log.of(ALIAS), "g", "t")
    acquire(Log.of(ALIAS), "gone", "g", "t", [0], priorities=1, lease_duration=3600, horizon=0)
    code, _, said = run("queuerecover", "--no-input")
    assert (code, PartitionLease.objects.using(ALIAS).get(partition=0).holder) == (1, "gone"), said
    assert check_offsets([ALIAS]) == []
    execute(said.partition("let the owner run ")[2])
    assert run("queuerecover", "--no-input")[0] == 0
    assert PartitionLease.objects.using(ALIAS).get(partition=0).holder == ""


@pytest.mark.database("postgresql")
def test_a_recovery_of_layouts_alone_changes_nothing_and_names_what_to_grant(least: None) -> None:
    Layout.objects.create(topic="t", generation=1, epoch=1, phase=Layout.STEADY, partitions=4, base=4)
    code, _, said = run("queuerecover", "--no-input")
    assert code == 1
    assert f"GRANT UPDATE ON SEQUENCE sqlqueue_generation TO {USER}" in said
