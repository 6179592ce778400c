"""What only looks reads the replica, and says so; what decides or changes something never does."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.db.backends.signals import connection_created
from django.test import Client, override_settings
from django.urls import reverse
from pytest_django import Settings

from sqlqueue import Delivery, publish
from sqlqueue.admin.pages import CHANGED, OWN_CHANGE_SEEN
from sqlqueue.checks import TAG
from sqlqueue.conf import settings as queue_settings
from sqlqueue.database.log import Log, reading_log
from sqlqueue.database.router import Router
from sqlqueue.exceptions import HorizonUnknown
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup, Message, Offset
from sqlqueue.stats.processes import replicated_horizon
from sqlqueue.stats.search import Tail
from sqlqueue.stats.survey import survey
from tests.admin.operating import operation
from tests.consuming import QUICK, Consuming
from tests.factories import TopicFactory
from tests.logs import LOG
from tests.management.running import run
from tests.processes import wait_until
from tests.replica.replicas import REPLICA, asked
from tests.transactions import OpenTransaction

CatchUp = Callable[[], None]
LISTS = ("overview", "message", "consumergroup", "topic", "periodicschedule", "scheduledmessage", "request")
LISTS += ("partitionlease", "receipt", "subscriberheartbeat")
READ_ONLY = (
    ("queuestatus",),
    ("queuestatus", "--json"),
    ("queueschedules", "list"),
    ("queuedlq", "list"),
)
ON_THE_PRIMARY = (
    ("queuetail", "t", "--from", "earliest", "--no-follow"),
    ("queuedoctor",),
    ("queuegroup", "rewind", "t", "--group", "g", "--from", "earliest", "--dry-run"),
    ("queuepurge", "t", "--before", "1h", "--dry-run"),
    ("queuerequests", "list"),
)


def test_what_only_looks_reads_the_replica(catch_up: CatchUp, admin_client: Client) -> None:
    register(LOG, "g", "t")
    publish("t", "published first")
    catch_up()
    publish("t", "published later")
    urls = [reverse(f"admin:sqlqueue_{name}_changelist") for name in LISTS]
    urls += [reverse(f"admin:sqlqueue_{name}_changelist") for name in ("batches_batch", "people_workitem")]
    urls += [reverse("admin:sqlqueue_deadletter_changelist"), reverse("admin:sqlqueue_message_changelist") + "?topic=t"]
    for url in urls:
        with asked() as counts:
            page = admin_client.get(url)
        assert page.status_code == 200, url
        assert counts.replica > 0, url
        assert counts.primary == 0, url
        assert "Read from the replica replica" in page.content.decode(), url
    assert "published first" in page.content.decode()
    assert "published later" not in page.content.decode()
    for command in READ_ONLY:
        with asked() as counts:
            said = run(*command)
        assert said.code == 0, (command, said)
        assert counts.replica > 0, command
        assert counts.primary == 0, command
        assert "Read from the replica 'replica'" in said.err, command
    assert survey(Log.of(REPLICA)).highest_offset < survey(LOG).highest_offset


def test_pages_that_decide_read_the_primary(catch_up: CatchUp, admin_client: Client) -> None:
    """And so do the lists of a user who has just changed something, until that is surely old."""
    register(LOG, "g", "t")
    offset = publish("t", "first").offset
    group = ConsumerGroup.objects.get()
    urls = [
        reverse("admin:sqlqueue_message_change", args=[offset]),
        reverse("admin:sqlqueue_topic_change", args=["t"]),
        operation("topic", "purge", "t"),
        reverse("admin:sqlqueue_consumergroup_change", args=[group.pk]),
        operation("consumergroup", "move", group.pk),
        operation("consumergroup", "remove", group.pk),
        operation("consumergroup", "reschedule", group.pk),
        reverse("admin:sqlqueue_people_mywork_changelist"),
    ]
    for url in urls:
        with asked() as counts:
            page = admin_client.get(url)
        assert page.status_code == 200, url
        assert counts.replica == 0, url
        assert counts.primary > 0, url
        assert "Read from the replica" not in page.content.decode(), url
    catch_up()  # the replica has the group, which is not paused

    groups = reverse("admin:sqlqueue_consumergroup_changelist")
    with asked() as counts:
        admin_client.post(operation("consumergroup", "pause", group.pk))
        page = admin_client.get(groups)
    assert counts.replica == 0
    assert 'class="sqlqueue-state">paused' in page.content.decode()
    session = admin_client.session
    session[CHANGED] -= OWN_CHANGE_SEEN
    session.save()
    with asked() as counts:
        page = admin_client.get(groups)
    assert counts.primary == 0
    assert 'class="sqlqueue-state">paused' not in page.content.decode()


def test_what_moves_or_changes_something_never_asks_the_replica(
    catch_up: CatchUp, consuming: Consuming, settings: Settings
) -> None:
    """A whole consumer, publishers and the commands that decide, in whatever thread: none opens a connection to it."""
    opened = set()

    def note(connection: object, **_: object) -> None:
        opened.add(connection.alias)  # type: ignore[attr-defined]

    settings.SQLQUEUE = {**QUICK, "READ_ALIAS": REPLICA}
    connections[REPLICA].close()
    connection_created.connect(note)
    try:
        seen: list[object] = []

        def handler(delivery: Delivery) -> None:
            seen.append(delivery.payload)

        consuming.consumer("t", handler, group="g")
        publish("t", 1)
        publish("t", 2, delay=0.01)
        host = consuming.start()
        wait_until(lambda: sorted(seen) == [1, 2], message="not all was delivered")  # type: ignore[type-var]
        host.stop()
        for command in ON_THE_PRIMARY:
            said = run(*command)
            assert said.code == 0, (command, said)
    finally:
        connection_created.disconnect(note)
    assert opened <= {"default"}


@pytest.mark.database("postgresql")
def test_an_engine_that_read_the_replica_would_lose_messages(catch_up: CatchUp) -> None:
    """The primary's gate is not replicated: seen from the replica nothing is ever held back, so that a reader passes
    the offset of a transaction that commits later, and never comes back to it."""
    topic = TopicFactory(name="t", partitions=1)
    with OpenTransaction() as slow:
        late = slow.do(lambda: publish("t", "late").offset)
        early = publish("t", "early").offset
        assert late < early
        catch_up()
        on_replica, on_primary = Tail(Log.of(REPLICA), topic, 0), Tail(LOG, topic, 0)
        assert [message.payload for message in on_replica.read()] == ["early"]
        assert on_primary.read() == []  # held back: what is open has a lower offset
        with pytest.raises(HorizonUnknown, match="start a process, or read the primary"):
            replicated_horizon(Log.of(REPLICA))
        slow.commit()
    catch_up()
    assert [message.payload for message in on_primary.read()] == ["late", "early"]
    assert on_replica.read() == []  # lost to it, though the replica has it by now:
    assert Message.objects.using(REPLICA).filter(offset=late).exists()
    # A group's watermark that was moved by such a reader is above it, and collection deletes what is below.
    assert on_replica.after >= late
    assert not Offset.objects.exists()


@pytest.mark.database("postgresql")
def test_what_a_heartbeat_tells_is_complete_on_the_replica(
    catch_up: CatchUp, consuming: Consuming, settings: Settings
) -> None:
    """Batch reads go up to there: whatever is still under way on the primary has a higher offset."""
    settings.SQLQUEUE = {**QUICK, "READ_ALIAS": REPLICA, "HEARTBEAT_INTERVAL": 0.2}
    consuming.consumer("t", lambda delivery: None, group="g")
    host = consuming.start()
    first = publish("t", "first").offset

    def known() -> bool:
        catch_up()
        try:
            return replicated_horizon(Log.of(REPLICA)) >= first
        except HorizonUnknown:
            return False

    wait_until(known, message="no heartbeat tells the horizon", timeout=60)
    with OpenTransaction() as slow:
        late = slow.do(lambda: publish("t", "late").offset)
        publish("t", "early")
        catch_up()
        assert replicated_horizon(Log.of(REPLICA)) < late
    host.stop()


@pytest.mark.once
def test_a_replica_without_tables_says_what_is_wrong(catch_up: CatchUp) -> None:
    file = connections[REPLICA].settings_dict["NAME"].removeprefix("file:").removesuffix("?mode=ro")
    Path(file).unlink()
    with closing(sqlite3.connect(file)) as empty:
        empty.execute("PRAGMA journal_mode = wal")
        empty.execute("CREATE TABLE elsewhere (name TEXT)")
    said = run("queuestatus")
    assert said.code == 1
    assert re.search("the replica 'replica' .READ_ALIAS. does not have the queue's tables", said.err)
    [error] = [one for one in run_checks(tags=[TAG], databases=[REPLICA]) if one.id == "sqlqueue.E032"]
    assert "does not have the queue's tables" in error.msg


@pytest.mark.once
def test_another_kind_of_database_is_no_replica(catch_up: CatchUp) -> None:
    connections[REPLICA].close()
    connections.settings["other"] = {**connections.settings[REPLICA], "ENGINE": "django.db.backends.mysql"}
    try:
        with override_settings(SQLQUEUE={"READ_ALIAS": "other"}):
            [error] = [one for one in run_checks(tags=[TAG], databases=[]) if one.id == "sqlqueue.E032"]
    finally:
        del connections["other"], connections.settings["other"]
    assert "another kind of database" in error.msg


@pytest.mark.once
def test_the_router_writes_and_migrates_nothing_there(catch_up: CatchUp) -> None:
    router = Router()
    assert router.db_for_write(Message) == router.db_for_read(Message) == "default"
    assert router.allow_migrate(REPLICA, "sqlqueue") is False
    assert run_checks(tags=[TAG], databases=[REPLICA]) == run_checks(tags=[TAG], databases=[])


@pytest.mark.once
def test_the_same_alias_as_the_queues_own_is_no_replica(settings: Settings) -> None:
    settings.SQLQUEUE = {"READ_ALIAS": "default"}
    assert reading_log(LOG) is LOG
    assert not queue_settings.is_replica("default")
