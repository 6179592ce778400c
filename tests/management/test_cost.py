"""No command reads the whole log to show something, however much there is."""

import pytest
from django.db import connection
from django.utils import timezone

from sqlqueue.models import Message
from tests.admin.crowd import Crowd
from tests.database.plans import Recorder, an_index_if_there_is_one, full_scans
from tests.management.running import run

pytestmark = [
    pytest.mark.django_db(transaction=True),  # ANALYZE commits
    pytest.mark.database("mariadb", "mysql", "postgresql"),  # the statements are the same on SQLite
]
MOST_STATEMENTS = 60
OF_THE_CATALOGUE = 450  # the doctor's, to see whether each index is there


def commands() -> list[tuple[object, ...]]:
    message = Message.objects.dead_letters().first()
    assert message is not None
    topic, group = message.original_topic, message.failed_group
    return [
        ("queuestatus",),
        ("queuedoctor",),
        ("queuetail", topic, "--from", "earliest", "--limit", 100),
        ("queuetail", topic, "--no-follow", "--from", timezone.now().isoformat()),
        ("queuegroup", "rewind", topic, "--group", group, "--from", "earliest", "--dry-run"),
        ("queuegroup", "remove", topic, group, "--dry-run"),
        ("queuedlq", "list"),
        ("queuemessage", topic, "--offset", message.offset),
        ("queuedlq", "replay", topic, "--group", group, "--dry-run"),
        ("queuerequests", "list"),
    ]


def test_every_command_is_cheap() -> None:
    Crowd(messages=6_000, letters=1_000, partitions=50, groups=4)
    recorder = Recorder()
    for words in commands():
        before = recorder.count
        with connection.execute_wrapper(recorder):
            said = run(*words)  # type: ignore[arg-type]
        assert said.code == 0, (words, said.err)
        most = OF_THE_CATALOGUE if words[0] == "queuedoctor" else MOST_STATEMENTS
        assert 0 < recorder.count - before <= most, words
    assert len(recorder.statements) > 20
    scans = []
    with an_index_if_there_is_one():
        for sql, params in recorder.statements.values():
            if "sqlqueue_message" in sql and "WHERE" in sql:  # without: the catalogue's LIMIT 1
                found = [scan for scan in full_scans(sql, params) if "sqlqueue_message" in scan]
                scans += [f"{' '.join(sql.split())[:300]} → {scan}" for scan in found]
    assert not scans, "\n".join(scans)
