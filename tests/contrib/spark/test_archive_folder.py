"""An archive stays in its folder, wherever that is, and what is wrong with one topic or file keeps no other waiting."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pyspark.sql import SparkSession

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.contrib.spark.archive import IDENTITIES, Archive
from sqlqueue.contrib.spark.archivist import archivist, newest_receipts
from sqlqueue.contrib.spark.models import ArchiveSegment, HourlyStatistic
from sqlqueue.database.horizon import Horizon
from sqlqueue.log.collect import collect
from sqlqueue.models import Message, Receipt, Topic
from tests.consuming import QUICK, Consuming
from tests.contrib.spark.archiving import files_of, offsets_in
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

SHARED = Path("/dev/shm")


@pytest.fixture(autouse=True)
def quick(settings: object) -> None:
    settings.SQLQUEUE = {**QUICK, "RETENTION": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder of another file system."""
    folder = SHARED / f"sqlqueue-{uuid.uuid4().hex}"
    if not SHARED.is_dir() or SHARED.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def run(folder: Path, *topics: str, **options: object) -> None:
    call_command("queuearchive", folder, topic=list(topics), **{"wait": 10.0, "receipts": False, **options})


def collected() -> int:
    horizon = Horizon(LOG)
    horizon.wait()
    return collect(LOG, horizon).messages


def test_another_folder_than_the_last_one_is_refused_and_nothing_is_collected(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    publish("t", 1)
    run(folder, "t")
    publish("t", 2)
    with pytest.raises(CommandError, match=r"other is not where the archive of t ended.*mounted"):
        run(tmp_path / "other", "t")
    assert ArchiveSegment.objects.count() == 1
    assert collected() == 1
    assert Message.objects.get().payload == 2
    moved = folder.rename(tmp_path / "moved")  # the folder may move, with all that is in it
    run(moved, "t")
    assert sum(offsets_in(moved).values()) == 2
    assert {manifest.archive for manifest in Archive(str(moved)).manifests("messages")} == Archive(
        str(moved)
    ).identities()


def test_the_segments_of_another_archive_do_not_pass_for_this_one(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    publish("t", 1)
    run(folder, "t")
    publish("t", 2)
    copy = shutil.copytree(folder, tmp_path / "copy")
    (identity,) = (copy / IDENTITIES).iterdir()
    identity.rename(copy / IDENTITIES / "another.json")
    with pytest.raises(CommandError, match="is not where the archive of t ended"):
        run(tmp_path / "copy", "t")


def test_a_new_topic_goes_where_the_others_are_unless_told_otherwise(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    publish("a", 1)
    run(folder, "a")
    publish("b", 1)
    with pytest.raises(CommandError, match="--new-folder"):
        run(tmp_path / "other", "b")
    run(tmp_path / "other", "b", new_folder=True)
    publish("b", 2)
    run(tmp_path / "other", "b")
    publish("c", 1)
    run(folder, "c")
    assert [sum(offsets_in(archive).values()) for archive in (folder, tmp_path / "other")] == [2, 2]


def test_another_databases_archive_is_left_alone(spark: SparkSession, folder: Path) -> None:
    publish("t", 1)
    run(folder, "t")
    ArchiveSegment.objects.all().delete()
    Topic.objects.filter(name="t").delete()  # as a database that was set up anew
    publish("u", 1)
    with pytest.raises(CommandError, match="another database"):
        run(folder, "u")
    assert len(Archive(str(folder)).paths("messages")) == 1


def test_a_link_to_another_file_system_works(spark: SparkSession, folder: Path, elsewhere: Path) -> None:
    folder.symlink_to(elsewhere)
    publish("t", 1)
    run(folder, "t")
    run(folder, "t", verify=True)
    assert sum(offsets_in(elsewhere).values()) == 1


def test_where_no_rename_leads_nothing_is_written(spark: SparkSession, folder: Path, elsewhere: Path) -> None:
    folder.mkdir()
    (folder / "messages").symlink_to(elsewhere)
    publish("t", 1)
    with pytest.raises(CommandError, match="must be on one file system"):
        run(folder, "t")
    assert not list(elsewhere.iterdir())


def test_a_topic_that_cannot_be_archived_keeps_no_other_one_out(spark: SparkSession, folder: Path) -> None:
    long = "b" + "/" * 99
    for topic in ("a", long, "c", "d"):
        publish(topic, 1)
    run(folder, "a", "d")
    publish("a", 2)
    manifest = folder / ArchiveSegment.objects.of("a")[0].path
    manifest.write_text(manifest.read_text().replace('"rows": 1', '"rows": 2'))  # a is in trouble, too
    with pytest.raises(CommandError, match=r"a: .*is not where(.|\n)*would have more than 255 characters") as error:
        run(folder)
    assert error.value.returncode == 1
    assert set(ArchiveSegment.objects.values_list("topic", flat=True)) == {"a", "c", "d"}


def test_what_another_process_archives_is_left_to_it_and_said_by_75(spark: SparkSession, folder: Path) -> None:
    for topic in ("a", "b"):
        publish(topic, 1)
    with archivist(LOG, "a", timeout=30), pytest.raises(CommandError, match="is being archived by") as error:
        run(folder, wait=0.3)
    assert error.value.returncode == 75
    assert set(ArchiveSegment.objects.values_list("topic", flat=True)) == {"b"}


def test_verify_names_the_damaged_files_and_goes_on(spark: SparkSession, folder: Path, capsys) -> None:
    publish_many("a", [NewMessage({"n": n}, key=str(n)) for n in range(6)])
    publish("b", 1)
    run(folder, segment_rows=2)
    first, second, fine = ArchiveSegment.objects.of("a")
    (file,), (short,), (away,) = (files_of(each, folder) for each in (first, second, ArchiveSegment.objects.of("b")[0]))
    file.write_bytes(b"\0" * file.stat().st_size)
    short.write_bytes(short.read_bytes()[:100])
    away.unlink()
    with pytest.raises(CommandError) as error:
        run(folder, verify=True)
    said = str(error.value)
    assert f"{first}: its files cannot be read" in said
    assert f"{short.relative_to(folder)} has 100 bytes" in said
    assert f"{away.relative_to(folder)} is missing" in said
    assert str(fine) not in said
    assert error.value.returncode == 1
    told = capsys.readouterr().out
    assert "a: 3 segments of messages, 2 wrong" in told
    assert "b: 1 segments of messages, 1 wrong" in told


def test_one_look_at_the_receipts_serves_all_topics(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = {**QUICK, "HISTORY": "all"}
    topics = [f"quiet{n}" for n in range(20)]
    for topic in topics:
        publish(topic, 1)
    consuming.consumer("busy", lambda delivery: None)
    publish_many("busy", range(30))
    consuming.drain()
    with CaptureQueriesContext(connection) as said:
        newest = newest_receipts(LOG, [*topics, "busy"], 0)
    assert newest == {"busy": Receipt.objects.order_by("-id")[0].id}
    assert sum("sqlqueue_receipt" in query["sql"] for query in said) == 1
    with archivist(LOG, "quiet0", timeout=30) as owner, CaptureQueriesContext(connection) as said:
        assert owner.next_range("receipts", 100, newest.get("quiet0", 0)) is None
    assert not [query for query in said if "sqlqueue_receipt" in query["sql"]]
    assert newest_receipts(LOG, ["busy"], 3600) == {}


def test_the_analytics_refuse_an_archive_that_is_not_there_or_another_one(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    publish("t", 1)
    with pytest.raises(CommandError, match="there is nothing at"):
        call_command("queueanalytics", archive=str(folder))
    run(folder, "t")
    (tmp_path / "other").mkdir()
    with pytest.raises(CommandError, match="is not where the archive of t ended"):
        call_command("queueanalytics", archive=str(tmp_path / "other"))
    assert not HourlyStatistic.objects.exists()
