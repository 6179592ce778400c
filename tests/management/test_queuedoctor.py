"""`manage.py queuedoctor`, on real servers that are really ill."""

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from sqlqueue import Delivery, Retry, publish
from sqlqueue.core.partition.writes import MOST_AHEAD
from sqlqueue.database.sequence import look
from sqlqueue.log.groups import register
from sqlqueue.log.schedule import move_due
from sqlqueue.management import doctor
from sqlqueue.models import ConsumerGroup, Message, Offset, PublishGate, ScheduledMessage
from sqlqueue.models.publish_gate import fill
from sqlqueue.operations.topics import pause
from tests.consuming import QUICK, Consuming
from tests.factories import ScheduledMessageFactory
from tests.logs import LOG
from tests.management.running import run
from tests.processes import ManageCommands

COMMANDS = (
    ("queuestatus",),
    ("queuestatus", "--json"),
    ("queuedoctor",),
    ("queuedoctor", "--json"),
    ("queuetail", "orders", "--from", "earliest", "--no-follow"),
)


def findings(*words: object) -> dict[str, list[tuple[str, str, str]]]:
    """Return (level, text, hint) of everything that is not well, by what it is about."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for finding in json.loads(run("queuedoctor", "--json", *words).out)["findings"]:
        if finding["level"] != "ok":
            assert finding["hint"], f"what is to be done about {finding}?"
            found.setdefault(finding["about"], []).append((finding["level"], finding["text"], finding["hint"]))
    return found


def test_a_healthy_queue(consuming: Consuming) -> None:
    consuming.consumer("orders", lambda delivery: None, group="mail")
    publish("orders", 1)
    consuming.drain()
    said = run("queuedoctor", "--strict")
    assert said.code == 0, said.out
    for about in ("clocks", "all else"):
        assert f"ok       {about}: " in said.out
    assert f"isolation {'serializable' if connection.vendor == 'sqlite' else 'read committed'}" in said.out
    own = {"idle connections", "stopping"}  # notes on the tests' own settings
    assert set(findings()) <= {*own, "consumers"}  # and that none runs, which has nothing to do


@pytest.fixture
def without_an_index(transactional_db: None) -> Iterator[str]:
    """The log without its most important index."""
    [index] = [index for index in Message._meta.indexes if index.name == "sqlqueue_message_fetch"]
    with connection.schema_editor() as editor:
        editor.remove_index(Message, index)
    yield index.name
    with connection.schema_editor() as editor:
        editor.add_index(Message, index)


def test_an_index_that_is_missing(without_an_index: str) -> None:
    said = run("queuedoctor")
    assert said.code == 1
    text = f"{without_an_index} of sqlqueue_message (topic, partition, priority, offset) is missing"
    assert f"error    indexes: {text}" in said.out


def test_migrations_that_were_not_applied(transactional_db: None) -> None:
    recorder = MigrationRecorder(connection)
    [last] = MigrationLoader(None).graph.leaf_nodes("sqlqueue")
    recorder.record_unapplied(*last)
    try:
        [(level, _, hint)] = findings()["migrations"]
        assert (level, "migrate sqlqueue" in hint) == ("error", True)
        assert run("queuedoctor").code == 1
    finally:
        recorder.record_applied(*last)


def test_a_gate_with_holes(transactional_db: None) -> None:
    PublishGate.objects.filter(slot__in=[3, 4]).delete()
    try:
        [(level, text, _)] = findings()["publish gate"]
        assert (level, text[:6]) == ("error", "2 rows")
    finally:
        fill(LOG)


def test_settings_that_are_wrong(settings, transactional_db: None) -> None:
    settings.SQLQUEUE = {"THREDS": 3}
    said = run("queuedoctor")
    assert said.code == 1
    assert "check sqlqueue.E001: SQLQUEUE has no option 'THREDS'. Did you mean 'THREADS'?" in said.out


def test_groups_that_no_process_serves(consuming: Consuming) -> None:
    consuming.consumer("orders", lambda delivery: None, group="mail")
    register(LOG, "mail", "orders")
    register(LOG, "old-audit", "orders")
    publish("orders", 1)
    found = {text: (level, hint) for level, text, hint in findings()["groups"]}
    [away] = [text for text in found if text.startswith("mail of orders")]
    [left] = [text for text in found if "'old-audit'" in text]
    assert "is away: no consumer process serves it, 1 message waits for it" in away
    assert found[away] == (
        "warning",
        "Start its consumers. If it is not needed any more, remove the group, and collection goes on.",
    )
    assert "has no handler here" in left
    assert found[left][1].startswith("If it is no longer wanted, remove it.")
    assert run("queuedoctor").code == 0
    assert run("queuedoctor", "--strict").code == 2
    pause(LOG, "orders", "mail")
    [paused] = [text for _, text, _ in findings()["groups"] if text.startswith("mail of orders")]
    assert "is paused: 1 message waits for it" in paused


def test_a_watermark_that_is_stuck(consuming: Consuming) -> None:
    @consuming.consumer("orders", group="mail")
    def fail(delivery: Delivery) -> None:
        raise Retry(delay=3600)

    offset = publish("orders", 1).offset
    consuming.drain()
    Message.objects.update(created_at=timezone.now() - timedelta(minutes=10))
    consuming.start()
    [(level, text, hint)] = findings()["stuck watermarks"]
    assert (level, f"at offset {offset}, fails again" in text, "let it be retried" in hint) == ("warning", True, True)


def test_topics_without_readers_and_handlers_without_messages(consuming: Consuming) -> None:
    consuming.consumer("oders", lambda delivery: None, group="mail")
    publish("orders", 1)
    found = {text: (level, hint) for level, text, hint in findings()["topics"]}
    [unread] = [text for text in found if "no consumer group" in text]
    [never] = [text for text in found if "nothing was ever published" in text]
    assert unread.startswith("orders has messages")
    assert found[unread][0] == "warning"
    assert "Did you mean 'orders'?" in found[never][1]


def test_scheduled_messages_that_do_not_come(consuming: Consuming) -> None:
    consuming.consumer("orders", lambda delivery: None, group="mail")
    ScheduledMessageFactory(topic="no such name!")
    move_due(LOG)
    publish("orders", 1, delay=60)
    ScheduledMessage.objects.filter(refused=False).update(due_at=timezone.now() - timedelta(minutes=5))
    found = findings()["scheduled messages"]
    assert [level for level, _, _ in found] == ["warning", "warning", "note"]
    assert "1 scheduled message of orders is overdue" in found[0][1]
    assert "1 scheduled message of topics that do not exist was refused" in found[1][1]
    assert "was refused: topic 'no such name!' is not a name" in found[2][1]


def test_a_host_whose_clock_is_wrong(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() - 3600)
    [(level, text, _)] = findings()["clocks"]
    assert level == "warning"
    assert "behind the database's" in text
    assert 3590 < float(text.split("host's is ")[1].split(" s ")[0]) < 3610


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_more_consumers_than_the_server_has_connections_for(transactional_db: None) -> None:
    said = run("queuedoctor", "--processes", 500, "--threads", 10)
    assert said.code == 1
    assert "500 × (2 × 10 threads + 7) = 13500 for the consumers, of" in said.out


@pytest.mark.database("mariadb", "mysql")
def test_a_server_that_is_impatient(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", 60)
    consuming.consumer("orders", lambda delivery: None, group="mail", visibility_timeout=30)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION wait_timeout = 20, SESSION innodb_lock_wait_timeout = 120")
    try:
        found = findings()
        assert "closes idle ones after 20 s" in found["idle connections"][0][1]
        assert "may wait for a lock for 120 s" in found["lock waits"][0][1]
    finally:
        connections.close_all()


def test_a_sequence_of_offsets_that_fell_back(consuming: Consuming) -> None:
    """A restore, a failover, TRUNCATE: what is published next would stand below what every group has read."""
    register(LOG, "mail", "orders")
    start = look(LOG).last_issued + 1_000
    ConsumerGroup.objects.update(start=start)
    said = run("queuedoctor")
    assert said.code == 1
    assert "error    check sqlqueue.E024: the log's sequence stands at offset " in said.out
    [(_, _, hint)] = findings()["check sqlqueue.E024"]
    assert "manage.py queuerecover`" in hint
    assert run("queuerecover", "--no-input").code == 0
    assert "check sqlqueue.E024" not in findings()
    assert (publish("orders", 1).offset or 0) > start


@pytest.mark.parametrize(("more", "said"), [(0, False), (1, True)])
def test_a_claim_that_is_ahead_of_the_log_is_no_sign_of_that(consuming: Consuming, more: int, said: bool) -> None:
    consuming.consumer("orders", print, group="mail")
    publish("orders", 1)
    consuming.drain()
    Offset.objects.update(claimed_to=look(LOG).last_issued + MOST_AHEAD + more)
    assert ("check sqlqueue.E024" in findings()) is said


@pytest.mark.parametrize("words", [("--processes", "0"), ("--threads", "-1")])
def test_what_cannot_be_is_refused(transactional_db: None, words: tuple[str, ...]) -> None:
    refused = run("queuedoctor", *words)
    assert refused.code == 1
    assert "is not a whole number from 1 to 1000" in refused.err


def test_nothing_secret_is_printed(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    consuming.consumer("orders", lambda delivery: None, group="mail")
    publish("orders", 1)
    with connection.cursor() as cursor:  # an open one, for the password is wrong
        cursor.execute("SELECT 1")
    monkeypatch.setitem(connections["default"].settings_dict, "PASSWORD", "hunter2")
    monkeypatch.setitem(django_settings.DATABASES["default"], "PASSWORD", "hunter2")
    for words in COMMANDS:
        said = run(*words)
        assert "hunter2" not in said.out + said.err
        assert said.out


def test_as_a_process(manage: ManageCommands) -> None:
    command = manage("queuedoctor", "--json", env={"SQLQUEUE": json.dumps({**QUICK, "CONSUMERS_MODULE": "nowhere"})})
    assert command.wait() == 0, command.output
    told = json.loads(command.output)
    assert told["errors"] == 0
    assert told["sqlqueue"]


def test_partitions_that_cannot_be_changed(consuming: Consuming, settings: Any) -> None:
    publish("orders", 1)
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"orders": {"partitions": 16}}}
    [(level, text, hint)] = findings()["check sqlqueue.W030"]
    assert (level, text) == ("warning", "topic 'orders' has 4 partitions, and the settings say 16")
    assert "Say 4" in hint
