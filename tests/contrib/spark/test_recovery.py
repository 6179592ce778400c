"""The drill: archive, lose the database, rehydrate; and what comes back is what was there."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pyspark.sql import SparkSession

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.log.groups import register
from sqlqueue.models import Message
from tests.consuming import QUICK, Consuming
from tests.contrib.spark.archiving import files_of, offsets_in
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

TOPICS = ("flights", "a:b/c")
OPTIONS = {**QUICK, "TOPICS": {topic: {"partitions": 4, "priorities": 2} for topic in TOPICS}}


@pytest.fixture(autouse=True)
def quick(settings: object) -> None:
    settings.SQLQUEUE = OPTIONS


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    """An archive of two topics, in several segments."""
    for topic in TOPICS:
        some = [{"n": n, "s": "🛫 \\ |"} for n in range(30)]
        publish_many(topic, [NewMessage(p, key=f"k{p['n'] % 3}", priority=p["n"] % 2) for p in some])
        publish(topic, None, key="", id=f"one of {topic}", headers={"trace": "é"})
        register(LOG, "audit", topic)
        publish(topic, "for one group", key="k1", group="audit")
    call_command("queuearchive", tmp_path / "lake", segment_rows=10)
    return tmp_path / "lake"


def by_ordering_queue() -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """Return all that a log says, but for offsets and the time of publishing, in each key's order."""
    ordering_queues = defaultdict(list)
    for message in Message.objects.order_by("offset"):
        ordering_key = (message.topic, message.partition, message.priority, message.partition_key)
        values = (message.message_id, message.payload, message.headers, message.target_group)
        ordering_queues[ordering_key].append(values)
    for ordering_key, queue in ordering_queues.items():
        if ordering_key[-1] == "":  # without a key there is no order
            queue.sort(key=str)
    return dict(ordering_queues)


def test_an_empty_database_gets_everything_back_from_the_archive_alone(
    folder: Path, tmp_path: Path, consuming: Consuming, settings, capsys
) -> None:
    settings.SQLQUEUE = OPTIONS
    before = by_ordering_queue()
    assert sum(map(len, before.values())) == 64
    call_command("flush", interactive=False, verbosity=0)  # the disaster
    assert not ArchiveSegment.objects.exists()
    for topic in TOPICS:
        call_command("queuerehydrate", folder, topic, all=True, same_ids=True, dry_run=True)
        assert f"{topic}: 32 messages would be published" in capsys.readouterr().out
        call_command("queuerehydrate", folder, topic, all=True, same_ids=True)
        assert f"{topic}: 32 rows, 32 new messages" in capsys.readouterr().out
        call_command("queuerehydrate", folder, topic, all=True, same_ids=True)
        assert f"{topic}: 32 rows, 0 new messages" in capsys.readouterr().out
    assert by_ordering_queue() == before
    heard = []
    consuming.consumer("flights", lambda delivery: heard.append(delivery.id), group="billing")
    consuming.drain()
    assert len(heard) == 31  # all but what was meant for another group
    with pytest.raises(CommandError, match="another database"):  # offsets begin again: the old archive is complete
        call_command("queuearchive", folder)
    call_command("queuearchive", tmp_path / "lake2")
    assert sum(offsets_in(tmp_path / "lake2").values()) == 64


def test_a_database_from_a_backup_gets_back_only_what_it_has_lost(folder: Path, capsys) -> None:
    before = by_ordering_queue()
    lost = Message.objects.filter(topic="flights").order_by("-offset").values_list("offset", flat=True)[:9]
    Message.objects.filter(offset__in=list(lost)).delete()
    call_command("queuerehydrate", folder, "flights", all=True, same_ids=True)
    assert "32 rows, 9 new" in capsys.readouterr().out
    assert by_ordering_queue() == before


@pytest.mark.long
def test_nothing_is_called_a_success_that_found_no_archive(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is nothing at"):
        call_command("queuerehydrate", tmp_path / "typo", "flights", all=True)
    with pytest.raises(CommandError, match="there are no messages of topic 'unknown'"):
        call_command("queuerehydrate", folder, "unknown", into="flights", all=True)
    with pytest.raises(CommandError, match="--same-ids is for"):
        call_command("queuerehydrate", folder, "flights", all=True, same_ids=True, label="x")


@pytest.mark.long
def test_a_missing_segment_or_file_is_named_and_the_rest_can_be_had(folder: Path, capsys) -> None:
    first, second, *_ = ArchiveSegment.objects.of("flights")
    Message.objects.all().delete()
    (file,) = files_of(first, folder)
    kept = file.rename(folder / "kept")
    with pytest.raises(CommandError, match=rf"{file.relative_to(folder)} is missing"):
        call_command("queuerehydrate", folder, "flights", all=True)
    kept.rename(file)
    (folder / second.path).unlink()
    missing = f"no segment with the offsets {second.first_offset}-{second.last_offset}"
    with pytest.raises(CommandError, match=missing):
        call_command("queuerehydrate", folder, "flights", all=True)
    assert not Message.objects.exists()
    call_command("queuerehydrate", folder, "flights", last=first.last_offset)
    call_command("queuerehydrate", folder, "flights", first=second.last_offset + 1)
    assert Message.objects.count() == 22
