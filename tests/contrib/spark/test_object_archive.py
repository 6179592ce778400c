"""The archive in an object store: what a manifest says is there, once, and nothing else is."""

import json
import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from django.core.management import CommandError, call_command
from pyspark.sql import SparkSession

from sqlqueue import NewMessage, publish_many
from sqlqueue.contrib.spark import archive, archive_rows, store
from sqlqueue.contrib.spark.archive import Archive, read_archive
from sqlqueue.contrib.spark.archiving import archive_topic
from sqlqueue.contrib.spark.archivist import Archivist, archivist
from sqlqueue.contrib.spark.manifest import MANIFESTS
from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.contrib.spark.rehydrate import archived_messages, in_range
from sqlqueue.contrib.spark.store import opened
from sqlqueue.exceptions import ConfigurationError, LeaseLost
from sqlqueue.log.collect import collect
from sqlqueue.models import Message, PartitionLease
from tests.consuming import QUICK
from tests.contrib.spark import object_store
from tests.contrib.spark.object_store import LocalObjects
from tests.contrib.spark.test_archive_kills import JAVA, known_horizon
from tests.logs import LOG
from tests.processes import ManageCommands, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

KILLS = int(os.environ.get("ARCHIVE_KILLS", "2"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with object_store.running(tmp_path_factory.mktemp("store") / "log") as uri:
        yield uri


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "RETENTION": 0}


@pytest.fixture
def bucket(server: str) -> str:
    """The URI of an empty place in the store."""
    return server.replace("/archive?", f"/{uuid.uuid4().hex}?")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that is used as an object store is: without the server it takes a tenth of the time."""
    monkeypatch.setattr(archive, "opened", LocalObjects)
    return str(tmp_path / "lake")


def publish_some(count: int, topic: str = "t") -> None:
    publish_many(topic, [NewMessage({"n": n}, key=f"k{n % 5}") for n in range(count)])


def publish_on_four_days() -> None:
    publish_some(4)
    for number, message in enumerate(Message.objects.filter(topic="t"), 1):
        noon = datetime(2026, 1, number, 12, tzinfo=timezone.utc)
        Message.objects.filter(pk=message.pk).update(created_at=noon)


def run(lake: str, **options: Any) -> None:
    call_command("queuearchive", lake, **{"wait": 10.0, "receipts": False, **options})


def offsets(spark: SparkSession, lake: str) -> Counter[int]:
    return Counter(row.offset for row in read_archive(spark, lake).select("offset").collect())


def published() -> dict[int, int]:
    return dict.fromkeys(Message.objects.filter(topic="t").values_list("offset", flat=True), 1)


def files_in(lake: str) -> list[str]:
    """Return the paths of the data files in a store."""
    return [path for path in archive.opened(lake).sizes() if path.endswith(".parquet")]


class PowerCut(Exception):
    pass


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the next archivist fail before or after it puts the manifest."""

    def prepare(when: str) -> None:
        commit = Archivist.commit

        def cut(owner: Archivist, kind: str, first: int, last: int, put: Callable[[], None], **columns: Any) -> None:
            def put_and_die() -> None:
                if when == "after":
                    put()
                raise PowerCut

            monkeypatch.setattr(Archivist, "commit", commit)
            commit(owner, kind, first, last, put_and_die, **columns)

        monkeypatch.setattr(Archivist, "commit", cut)

    return prepare


def test_what_is_archived_there_is_verified_collected_and_brought_back(
    spark: SparkSession, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_some(12)
    publish_some(3, "a:b/c")
    before = list(Message.objects.filter(topic="t").values_list("partition_key", "payload", "message_id"))
    run(bucket, segment_rows=8)
    assert offsets(spark, bucket) == dict.fromkeys(Message.objects.values_list("offset", flat=True), 1)
    assert {row.topic for row in read_archive(spark, bucket).select("topic").collect()} == {"t", "a:b/c"}
    run(bucket)  # nothing new
    run(bucket, verify=True)
    assert "t: 2 segments of messages, 0 wrong" in capsys.readouterr().out
    assert collect(LOG, known_horizon()).messages == 15
    call_command("queuerehydrate", bucket, "t", all=True, same_ids=True)
    again = Message.objects.filter(topic="t").order_by("offset")
    assert sorted(map(str, again.values_list("partition_key", "payload", "message_id"))) == sorted(map(str, before))


@pytest.mark.parametrize(("when", "where"), [("before", "lake"), ("after", "bucket")])
def test_what_a_cut_run_has_left_counts_for_nothing_and_is_removed(
    spark: SparkSession, cut: Callable[[str], None], when: str, where: str, request: pytest.FixtureRequest
) -> None:
    lake = request.getfixturevalue(where)
    publish_some(10)
    cut(when)
    with archivist(LOG, "t", timeout=30) as owner, pytest.raises(PowerCut):
        list(archive_topic(spark, owner, Archive(lake), "messages", segment_rows=6))
    assert not ArchiveSegment.objects.exists()
    left = files_in(lake)
    assert left
    assert len(offsets(spark, lake)) == (6 if when == "after" else 0)  # verified rows, which no row counts yet
    publish_some(1)
    run(lake, segment_rows=9)  # another range
    assert offsets(spark, lake) == published()
    assert not set(left) & set(files_in(lake))
    named = {file for manifest in Archive(lake).of_topic("messages", "t") for file in manifest.files}
    assert named == set(files_in(lake))
    run(lake, verify=True)


def test_files_that_no_manifest_names_are_not_read_and_are_named_by_verify(spark: SparkSession, lake: str) -> None:
    publish_some(5)
    run(lake)
    place, (file,) = archive.opened(lake), files_in(lake)
    with place.opened(file) as source:
        bytes_of_it = source.read()
    stray = file.replace("part-", "part-stray-")
    with place.created(stray) as stream:
        stream.write(bytes_of_it)
    assert offsets(spark, lake) == published()
    with pytest.raises(CommandError, match=r"part-stray-.*is in no manifest"):
        run(lake, verify=True)
    place.delete(stray)
    place.delete(file)
    with pytest.raises(CommandError, match="parquet is missing"):
        run(lake, verify=True)
    with pytest.raises(CommandError, match="parquet is missing"):
        call_command("queuerehydrate", lake, "t", all=True)


def test_of_two_archivists_the_row_decides_and_a_late_manifest_does_not_count(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_some(10)
    place = Archive(lake)
    late: list[Callable[[], None]] = []

    def hold(owner: Archivist, kind: str, first: int, last: int, put: Callable[[], None], **columns: Any) -> None:
        late.append(put)
        raise PowerCut

    with archivist(LOG, "t", timeout=30) as frozen:
        with monkeypatch.context() as patch:
            patch.setattr(Archivist, "commit", hold)
            with pytest.raises(PowerCut):
                list(archive_topic(spark, frozen, place, "messages", segment_rows=4))
        PartitionLease.objects.update(valid_until="2000-01-01 00:00:00Z")
        with archivist(LOG, "t", timeout=30) as successor:
            with pytest.raises(LeaseLost):
                list(archive_topic(spark, frozen, place, "messages", segment_rows=4))
            assert not files_of_manifests(lake)
            list(archive_topic(spark, successor, place, "messages", segment_rows=7))
            late[0]()  # it wakes up in the middle of its transaction, which the server has long ended
    assert len(files_of_manifests(lake)) == 3
    assert offsets(spark, lake) == published()
    assert [row.row_count for row in ArchiveSegment.objects.of("t")] == [7, 3]
    publish_some(1)
    run(lake)
    assert len(files_of_manifests(lake)) == 3
    assert offsets(spark, lake) == published()


def test_more_than_one_batch_of_rows_and_more_files_than_tasks_are_read(
    spark: SparkSession, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_some(archive_rows.ROWS_OF_A_BATCH + 10)
    run(lake)
    for _ in range(2):
        publish_some(1)
        run(lake)
    monkeypatch.setattr(store, "MOST_TASKS", 2)
    assert len(files_in(lake)) == 3
    assert offsets(spark, lake) == published()


def test_a_read_of_one_topic_and_day_opens_no_other_file(spark: SparkSession, lake: str) -> None:
    publish_some(3, "other")
    publish_on_four_days()
    run(lake)
    for file in files_in(lake):
        if "topic=other" in file or "date=2026-01-01" in file or "date=2026-01-04" in file:
            archive.opened(lake).delete(file)
    read = read_archive(spark, lake, topic="t", days=("2026-01-02", "2026-01-03"))
    assert sorted(row.date for row in read.select("date").collect()) == ["2026-01-02", "2026-01-03"]


def test_a_range_of_times_is_had_from_the_files_of_its_days(spark: SparkSession, lake: str) -> None:
    publish_on_four_days()
    run(lake)
    times = {"since": "2026-01-02T12:00:00Z", "until": "2026-01-04T12:00:00Z"}
    rows = archived_messages(spark, lake, "t", **times)
    assert sorted(row.date for row in rows.collect()) == ["2026-01-02", "2026-01-03", "2026-01-04"]
    assert sorted(row.date for row in in_range(rows, "t", **times).collect()) == ["2026-01-02", "2026-01-03"]


def test_row_groups_are_as_large_as_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(**limits: int) -> list[int]:
        with monkeypatch.context() as patch:
            for name, value in limits.items():
                patch.setattr(archive_rows, name, value)
            some = {"n": range(1_000), "topic": ["t"] * 1_000, "date": ["d"] * 1_000}
            batches = (pa.RecordBatch.from_pydict(some) for _ in range(9))
            (written,) = archive_rows.write_files(opened(str(tmp_path)), "some", "run", batches)
            (row,) = written.to_pylist()
            path = tmp_path / "some" / row["name"]
            file = pa.parquet.ParquetFile(path)
            assert row["bytes"] == path.stat().st_size
            assert file.read()["n"].to_pylist() == [*range(1_000)] * 9
            return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]

    assert groups() == [9_000]
    assert groups(BYTES_OF_A_ROW_GROUP=32_000) == [4_000, 4_000, 1_000]


def files_of_manifests(lake: str) -> list[str]:
    return sorted(archive.opened(lake).sizes(MANIFESTS))


def test_another_databases_archive_is_left_alone(spark: SparkSession, lake: str) -> None:
    publish_some(5)
    run(lake)
    ArchiveSegment.objects.all().delete()
    place, (path,) = archive.opened(lake), files_of_manifests(lake)
    place.put(path, str(place.text(path)).replace("t since ", "t since long "), "")
    with pytest.raises(CommandError, match="another database"):
        run(lake)
    assert len(offsets(spark, lake)) == 5


def test_a_place_that_cannot_be_is_refused(bucket: str, tmp_path: Path) -> None:
    for uri, said in (
        ("s3://key:secret@lake/x", "keys are not for its URI"),
        ("nothing://lake", "cannot be opened"),
        (f"file://{tmp_path}", "give its path"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            opened(uri)
    with pytest.raises(CommandError, match="there is no"):
        call_command("queuerehydrate", bucket, "t", all=True)


@pytest.mark.long
def test_killed_anywhere_and_run_again_it_holds_each_message_once(
    spark: SparkSession, bucket: str, manage: ManageCommands, settings: Any
) -> None:
    settings.SQLQUEUE = options = {**QUICK, "RETENTION": 0, "LEASE_DURATION": 4, "HEARTBEAT_INTERVAL": 1}
    chance, expected = random.Random(), set()
    words = ["--segment-rows=20", "--no-receipts", "--wait=120", "--master=local[1]"]
    words += ["--conf=spark.driver.memory=512m", f"--conf=spark.driver.extraJavaOptions={JAVA}"]

    def start() -> Any:
        return manage("queuearchive", bucket, *words, env={"SQLQUEUE": json.dumps(options), **object_store.KEYS})

    def wait_for_a_segment(done: int, command: Any) -> None:
        def under_way() -> bool:
            advanced = ArchiveSegment.objects.count() > done
            assert advanced or command.returncode is None, command.output
            return advanced

        wait_until(under_way, 240, lambda: command.output)

    for _ in range(KILLS):
        publish_some(60)
        expected |= set(Message.objects.values_list("offset", flat=True))
        done, command = ArchiveSegment.objects.count(), start()
        wait_for_a_segment(done, command)
        time.sleep(chance.uniform(0, 2))  # anywhere in a segment
        command.kill_all()
        held = offsets(spark, bucket)
        assert set(held.values()) == {1}
        collect(LOG, known_horizon())
        assert expected - set(Message.objects.values_list("offset", flat=True)) <= set(held)
    command = start()
    assert command.wait(240) == 0, command.output
    assert offsets(spark, bucket) == dict.fromkeys(expected, 1)
    named = {file for manifest in Archive(bucket).of_topic("messages", "t") for file in manifest.files}
    assert named == set(files_in(bucket))
