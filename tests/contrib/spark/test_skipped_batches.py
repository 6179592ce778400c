"""A batch that its sink has skipped is not settled: a sink that knows its batches by number loses none."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sqlqueue import publish, publish_many
from sqlqueue.contrib.spark.membership import Membership
from sqlqueue.contrib.spark.scan import StreamBatch, note_read
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import ConsumerGroup, Message, Offset
from sqlqueue.operations.move import move
from tests.contrib.spark.test_stream import TIMEOUT, Direct, offsets_of, positions
from tests.contrib.spark.test_stream import direct as direct
from tests.logs import LOG

REFUSED = "give the query a new checkpoint and a new output folder"


class Files:
    """A stream into files, of one group."""

    def __init__(self, spark: SparkSession, root: Path):
        self.spark, self.root = spark, root

    def start(self, checkpoint: str, folder: str = "output") -> StreamingQuery:
        stream = self.spark.readStream.format("sqlqueue").options(group="lake", topic="flights").load()
        writer = stream.writeStream.format("parquet").option("path", str(self.root / folder))
        writer = writer.option("checkpointLocation", str(self.root / checkpoint))
        return writer.trigger(availableNow=True).start()

    def run(self, checkpoint: str, folder: str = "output") -> list[int]:
        """Run everything available; return the offsets that the folder holds."""
        assert self.start(checkpoint, folder).awaitTermination(TIMEOUT)
        return self.held(folder)

    def held(self, folder: str = "output") -> list[int]:
        rows = self.spark.read.parquet(str(self.root / folder)).select("offset").collect()
        return sorted(row.offset for row in rows)

    def refused(self, checkpoint: str, folder: str = "output") -> None:
        with pytest.raises(StreamingQueryException, match=REFUSED):
            self.start(checkpoint, folder).awaitTermination(TIMEOUT)

    def forget_commit(self, checkpoint: str) -> None:
        """Let a checkpoint be as if Spark was killed between the sink's commit of the last batch and its own."""
        last = max((self.root / checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Files:
    return Files(spark, tmp_path)


def test_a_batch_that_files_have_skipped_is_not_settled(files: Files) -> None:
    publish_many("flights", range(20))
    first = files.run("checkpoint")
    before = positions()
    publish_many("flights", range(20))
    files.refused("second")
    files.refused("second")  # also after another start
    assert positions() == before
    assert files.held() == first
    assert first + files.run("third", "another") == offsets_of("flights")
    assert {row[0] for row in positions()} == {offsets_of("flights")[-1]}


def test_a_batch_that_is_skipped_after_a_rewind_is_not_settled(direct: Direct) -> None:
    publish_many("flights", range(20))
    direct.run("checkpoint")
    move(LOG, "lake", "flights", 0)
    with pytest.raises(ConfigurationError, match=REFUSED):
        direct.run("second", skipping=True)
    assert max(row[0] for row in positions()) < offsets_of("flights")[0]


def test_what_an_earlier_checkpoint_has_read_does_not_count_for_a_new_one(direct: Direct) -> None:
    publish_many("flights", range(20))
    direct.run("checkpoint")
    Offset.objects.update(position=0, offset_acked=0, claimed_to=0)  # killed before it was settled
    with pytest.raises(ConfigurationError, match=REFUSED):
        direct.run("second", skipping=True)
    assert max(row[0] for row in positions()) < offsets_of("flights")[0]


def test_a_batch_that_its_sink_has_taken_before_a_kill_is_settled(files: Files) -> None:
    for _ in range(2):
        publish_many("flights", range(20))
        files.run("checkpoint")
    last = offsets_of("flights")[-1]
    Offset.objects.update(position=last - 20, offset_acked=last - 20, claimed_to=last - 20)
    files.forget_commit("checkpoint")
    assert files.run("checkpoint") == offsets_of("flights")
    assert {row[0] for row in positions()} == {last}


@pytest.mark.long
def test_a_batch_that_is_run_again_is_settled_though_another_query_has_planned_since(files: Files) -> None:
    publish_many("flights", range(20))
    files.run("checkpoint")
    last = offsets_of("flights")[-1]
    Offset.objects.update(position=0, offset_acked=0, claimed_to=0)
    files.forget_commit("checkpoint")
    shutil.rmtree(files.root / "output")  # the sink has not taken it
    ConsumerGroup.objects.update(streamed_to=last, streamed_by="another", streamed_read=False)
    assert files.run("checkpoint") == offsets_of("flights")
    assert {row[0] for row in positions()} == {last}


@pytest.mark.long
def test_a_sink_of_ones_own_that_skips_by_number_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    taken: dict[int, list[int]] = {}

    def once(frame: DataFrame, number: int) -> None:
        if number not in taken:
            taken[number] = [row.offset for row in frame.collect()]

    def start(checkpoint: str) -> StreamingQuery:
        stream = spark.readStream.format("sqlqueue").options(group="lake", topic="flights").load()
        writer = stream.writeStream.foreachBatch(once).option("checkpointLocation", str(tmp_path / checkpoint))
        return writer.trigger(availableNow=True).start()

    publish_many("flights", range(5))
    assert start("checkpoint").awaitTermination(TIMEOUT)
    publish_many("flights", range(5))
    with pytest.raises(StreamingQueryException, match=REFUSED):
        start("second").awaitTermination(TIMEOUT)
    assert {row[0] for row in positions()} == {max(taken[0])}


def test_a_skipped_batch_without_messages_of_the_group_is_settled(direct: Direct) -> None:
    publish_many("flights", range(5))
    direct.run("checkpoint")
    publish("flights", "for another one", group="other")
    direct.run("second", skipping=True)
    assert {row[0] for row in positions()} == {offsets_of("flights")[-1]}


@pytest.fixture
def noting(transactional_db: None) -> Callable[[StreamBatch], bool]:
    """Note that a batch was read, as a task does; tell whether the group knows."""

    def note(batch: StreamBatch) -> bool:
        note_read(LOG, batch)
        return ConsumerGroup.objects.get(topic="flights").streamed_read

    return note


def test_a_late_task_of_another_batch_notes_nothing(noting: Callable[[StreamBatch], bool]) -> None:
    publish_many("flights", range(5))
    first, *_, last = offsets_of("flights")
    member = Membership(LOG, "lake", ["flights"], "earliest", 30)
    member.settle(0, last, "mine")
    batch = StreamBatch("lake", ("flights",), last, "mine")
    assert not noting(batch._replace(checkpoint="another"))
    assert not noting(batch._replace(end=first))
    assert not noting(batch._replace(group="another"))
    assert noting(batch)
    assert member.was_read(last, "mine")
    member.settle(first, last + 1, "mine")
    assert not member.was_read(last + 1, "mine")
    member.leave()
    assert Message.objects.count() == 5
