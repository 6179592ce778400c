"""The archive holds each message exactly once, and only what it holds is ever collected."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from pyspark.sql import SparkSession

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.contrib.spark import archiving
from sqlqueue.contrib.spark.archive import Archive
from sqlqueue.contrib.spark.archiving import archive_topic
from sqlqueue.contrib.spark.archivist import GROUP, Archivist, archivist
from sqlqueue.contrib.spark.manifest import ForeignSegment
from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.contrib.spark.plan import LEAST_ROWS
from sqlqueue.database.horizon import Horizon
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown, LeaseLost
from sqlqueue.log.collect import collect
from sqlqueue.log.groups import register, remove
from sqlqueue.models import ConsumerGroup, Message, Offset, PartitionLease, Receipt
from sqlqueue.operations.move import move
from tests.consuming import QUICK, Consuming
from tests.contrib.spark.archiving import archive, as_archived, decoded, files_of, offsets_in, rows_in
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def quick(settings: object) -> None:
    """Keep nothing longer than the archive wants it."""
    settings.SQLQUEUE = {**QUICK, "RETENTION": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def run_collection() -> int:
    horizon = Horizon(LOG)
    horizon.wait()
    return collect(LOG, horizon).messages


def publish_some(count: int, topic: str = "t") -> None:
    publish_many(topic, [NewMessage({"n": n}, key=f"k{n % 7}") for n in range(count)])


class TestWhatItHolds:
    def test_is_every_message_of_the_topic_with_all_its_values(self, spark: SparkSession, folder: Path) -> None:
        publish("other", "not this one")
        payloads = [
            None,
            True,
            "",
            '🛫 naïve ‘quotes’ \\ " \n\t',
            -(2**63),
            1e-7,
            12345678901234.56789,
            {"nested": [1, {"null": None}], "a b": "ü"},
            "é" * 600_000,
        ]
        for n, payload in enumerate(payloads):
            publish("t", payload, key=f"clé {n % 3}", id=f"id-{n}", headers={"n": n, "t": "2013-01-01T00:00:00Z"})
            publish("other", n)
        publish("t", "keyless")
        publish("t", "for one group", group="other")
        segments = archive(spark, folder, segment_rows=5)
        expected = [as_archived(message) for message in Message.objects.filter(topic="t").order_by("offset")]
        found = sorted((decoded(row) for row in rows_in(folder)), key=lambda row: row["offset"])
        assert found == expected
        assert [segment.row_count for segment in segments] == [5, 5, 1]

    def test_is_everything_where_one_file_is_not_enough(
        self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archiving, "ROWS_OF_A_FILE", 4_000)
        publish_some(3 * LEAST_ROWS)  # so many tasks write them
        (segment,) = archive(spark, folder, segment_rows=100_000)
        assert segment.files > 1
        every = Message.objects.filter(topic="t").values_list("offset", flat=True)
        assert offsets_in(folder) == Counter(every)
        assert segment.row_count == len(every)

    def test_is_told_by_the_manifest_without_a_gap(self, spark: SparkSession, folder: Path) -> None:
        publish_some(12)
        archive(spark, folder, segment_rows=8)
        publish_some(3)
        archive(spark, folder)
        rows = list(ArchiveSegment.objects.of("t"))
        assert rows[0].first_offset == 1
        assert [row.first_offset for row in rows[1:]] == [row.last_offset + 1 for row in rows[:-1]]
        assert [row.row_count for row in rows] == [8, 4, 3]
        for row in rows:
            files = files_of(row, folder)
            assert len(files) == row.files
            assert sum(file.stat().st_size for file in files) == row.bytes
        assert not archive(spark, folder)  # nothing new
        assert not list((folder / "_partial").iterdir())

    def test_are_receipts_too_each_once(
        self, spark: SparkSession, folder: Path, consuming: Consuming, settings
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "HISTORY": "all"}
        consuming.consumer("t", lambda delivery: None)
        publish_some(10)
        consuming.drain()
        archive(spark, folder, kind="receipts", segment_rows=6)
        publish_some(5)
        consuming.drain()
        archive(spark, folder, kind="receipts")
        found = sorted((row["id"], row["offset"], row["group"], row["outcome"]) for row in rows_in(folder, "receipts"))
        stored = Receipt.objects.order_by("id").values_list("id", "message_offset", "consumer_group", "outcome")
        assert found == list(stored)
        assert len(found) == 15


class TestCollection:
    def test_waits_for_the_archive_and_for_nothing_else(
        self, spark: SparkSession, folder: Path, consuming: Consuming, settings
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "RETENTION": 0}
        consuming.consumer("t", lambda delivery: None)
        publish_some(30)
        register(LOG, GROUP, "t")
        consuming.drain()
        assert run_collection() == 0
        archive(spark, folder, segment_rows=12)
        published = set(Message.objects.values_list("offset", flat=True))
        assert run_collection() == 30
        assert offsets_in(folder) == dict.fromkeys(published, 1)
        publish_some(4)
        consuming.drain()
        assert run_collection() == 0

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_nothing_above_the_horizon_is_archived(self, spark: SparkSession, folder: Path) -> None:
        publish("t", "before")
        with ThreadPoolExecutor(1) as pool:
            holding, done = threading.Event(), threading.Event()

            def hold() -> None:
                with transaction.atomic():
                    publish("t", "late")
                    holding.set()
                    done.wait(60)
                connections.close_all()

            other = pool.submit(hold)
            assert holding.wait(30)
            publish("t", "after")
            try:
                with pytest.raises(HorizonUnknown), archivist(LOG, "t", timeout=0.5):
                    pass
                with pytest.raises(CommandError) as error:
                    call_command("queuearchive", folder, wait=0.5)
                assert error.value.returncode == 75
            finally:
                done.set()
            other.result(30)
        assert not rows_in(folder)
        archive(spark, folder)
        assert {decoded(row)["payload"] for row in rows_in(folder)} == {"before", "late", "after"}


class TestTwoArchivists:
    def test_one_waits_for_the_other(self, folder: Path) -> None:
        publish_some(3)
        with (
            archivist(LOG, "t", timeout=30) as first,
            pytest.raises(LeaseLost, match=first.name),
            archivist(LOG, "t", timeout=0.3),
        ):
            pass
        with archivist(LOG, "t", timeout=30):
            pass
        assert not PartitionLease.objects.exclude(holder="").exists()

    def test_one_that_has_lost_the_topic_changes_nothing(self, spark: SparkSession, folder: Path) -> None:
        publish_some(10)
        with archivist(LOG, "t", timeout=30) as frozen:
            archiving = archive_topic(spark, frozen, Archive(str(folder)), "messages", segment_rows=4)
            assert next(archiving).row_count == 4
            PartitionLease.objects.update(valid_until="2000-01-01 00:00:00Z")
            with archivist(LOG, "t", timeout=30) as successor:
                with pytest.raises(LeaseLost):
                    next(archiving)
                assert sum(offsets_in(folder).values()) == 4
                with pytest.raises(PowerCut):
                    archive_until_the_power_cut(spark, successor, folder)
                moved = offsets_in(folder)
                assert len(moved) == 10
                with pytest.raises(LeaseLost):  # else it would sweep what the successor has just moved
                    list(archive_topic(spark, frozen, Archive(str(folder)), "messages", segment_rows=4))
                assert offsets_in(folder) == moved
        archive(spark, folder)
        assert offsets_in(folder) == dict.fromkeys(Message.objects.values_list("offset", flat=True), 1)
        assert ArchiveSegment.objects.count() == 2


class PowerCut(Exception):
    pass


def archive_until_the_power_cut(spark: SparkSession, owner: Archivist, folder: Path) -> None:
    """Archive; but fail between the moving of the first segment's files and the commit that makes them count."""
    whole = owner.commit

    def cut(kind: str, first: int, last: int, move_files: Callable[[], None], **columns: object) -> None:
        def move_and_die() -> None:
            move_files()
            raise PowerCut

        whole(kind, first, last, move_and_die, **columns)

    owner.commit = cut
    list(archive_topic(spark, owner, Archive(str(folder)), "messages", segment_rows=100))


class TestWhatAnInterruptedRunHasLeft:
    def test_is_swept_files_in_their_place_included(self, spark: SparkSession, folder: Path) -> None:
        publish_some(10)
        with archivist(LOG, "t", timeout=30) as owner, pytest.raises(PowerCut):
            archive_until_the_power_cut(spark, owner, folder)
        assert len(offsets_in(folder)) == 10
        assert not ArchiveSegment.objects.exists()
        assert not Offset.objects.filter(offset_acked__gt=0).exists()
        publish_some(1)
        archive(spark, folder, segment_rows=6)
        assert offsets_in(folder) == dict.fromkeys(Message.objects.values_list("offset", flat=True), 1)

    def test_is_never_another_databases_archive(self, spark: SparkSession, folder: Path) -> None:
        publish_some(5)
        archive(spark, folder)
        ArchiveSegment.objects.all().delete()
        manifest = next((folder / "_manifests").rglob("*.json"))
        manifest.write_text(manifest.read_text().replace("t since ", "t since long "))
        with pytest.raises(ForeignSegment, match="another database"):
            archive(spark, folder)
        assert len(offsets_in(folder)) == 5


class TestTheCommand:
    def test_archives_all_topics_and_verifies_them(self, spark: SparkSession, folder: Path, capsys) -> None:
        publish_some(6, "a")
        publish_some(7, "b:c/d")
        call_command("queuearchive", folder, dry_run=True)
        assert "a: 6 messages would be archived" in capsys.readouterr().out
        assert not ConsumerGroup.objects.exists()
        call_command("queuearchive", folder, segment_rows=6, receipt_lag=0.0)
        assert sum(offsets_in(folder).values()) == 13
        assert {row["topic"] for row in rows_in(folder)} >= {"a"}
        call_command("queuearchive", folder, verify=True)
        assert "b:c/d: 2 segments of messages, 0 wrong" in capsys.readouterr().out
        shutil.rmtree(files_of(ArchiveSegment.objects.of("a")[0], folder)[0].parent)
        with pytest.raises(CommandError, match="parquet is missing"):
            call_command("queuearchive", folder, verify=True)

    def test_a_hole_is_told_by_verify_and_by_rehydrate(self, spark: SparkSession, folder: Path, capsys) -> None:
        """What was collected while the topic had no archive group is in no segment; what was not, is in one."""
        publish_some(6)
        archive(spark, folder)
        before = ArchiveSegment.objects.get().last_offset
        remove(LOG, GROUP, "t")
        publish_some(9)
        new = dict(Message.objects.filter(offset__gt=before).order_by("offset").values_list("offset", "partition"))
        first, last = min(new), max(new)
        register(LOG, "slow", "t")
        for partition in set(new.values()) - {new[first]}:
            move(LOG, "slow", "t", last, partition=partition)
        run_collection()
        kept = set(Message.objects.filter(offset__gt=before).values_list("offset", flat=True))
        lost = max(set(new) - kept)
        with pytest.raises(CommandError, match=rf"messages of t, {before + 1}-{lost}: in no segment"):
            call_command("queuearchive", folder, verify=True)
        publish_some(2)
        call_command("queuearchive", folder, receipt_lag=0.0)
        assert first in kept < set(offsets_in(folder))
        with pytest.raises(CommandError, match=rf"messages of t, [0-9]+-{lost}: in no segment"):
            call_command("queuearchive", folder, verify=True)
        with pytest.raises(CommandError, match=rf"no segment with the offsets [0-9]+-{lost}: name a range without"):
            call_command("queuerehydrate", folder, "t", "--all", dry_run=True)
        call_command("queuearchive", folder)  # it has what is there: nothing again
        assert set(offsets_in(folder).values()) == {1}

    def test_refuses_what_cannot_be(self, folder: Path) -> None:
        publish("t", 1)
        with pytest.raises(ConfigurationError, match="no topic 'nothing'"), archivist(LOG, "nothing", timeout=1):
            pass
        with pytest.raises(ConfigurationError, match="dead letters"), archivist(LOG, "t_dlq", timeout=1):
            pass
        with pytest.raises(CommandError, match="segment-rows"):
            call_command("queuearchive", folder, "--segment-rows=0")
