"""A stream is a consumer group: it reads every message, says how far it is, and shares with no other."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.contrib.spark.membership import Membership
from sqlqueue.contrib.spark.options import STREAM, read
from sqlqueue.contrib.spark.project import of_django
from sqlqueue.contrib.spark.source import registered
from sqlqueue.contrib.spark.stream import StreamReader
from sqlqueue.database.horizon import Horizon
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown, LeaseLost
from sqlqueue.log.collect import collect
from sqlqueue.log.groups import register, remove
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Message, Offset, PartitionLease, Topic
from sqlqueue.operations.move import move
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.processlist import end_this_threads_connection
from tests.transactions import OpenTransaction

TIMEOUT = 240
Sink = Callable[[DataFrame, int], None]


class Streams:
    """Starts streams of one test, which share a checkpoint unless told."""

    def __init__(self, spark: SparkSession, folder: Path):
        self.spark, self.folder = spark, folder
        self.batches: list[list[int]] = []

    def keep(self, frame: DataFrame, number: int) -> None:
        self.batches.append(sorted(row.offset for row in frame.select("offset").collect()))

    def start(self, sink: Sink | None = None, checkpoint: str = "checkpoint", **options: Any) -> StreamingQuery:
        options = {"group": "lake", "topic": "flights", **options}
        available = options.pop("available", True)
        stream = self.spark.readStream.format("sqlqueue").options(**options).load()
        writer = stream.writeStream.foreachBatch(sink or self.keep)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        trigger: dict[str, Any] = {"availableNow": True} if available else {"processingTime": "0.2 seconds"}
        return writer.trigger(**trigger).start()

    def run(self, **options: Any) -> list[list[int]]:
        """Run everything available; return the batches' offsets."""
        self.batches = []
        query = self.start(**options)
        assert query.awaitTermination(TIMEOUT)
        return [batch for batch in self.batches if batch]  # a new query's first one may be empty


class Direct:
    """Runs streams as Spark calls them, in this process: each until it has read everything.

    skipping: the sink takes no batch, as one does that knows them by number.
    """

    def __init__(self) -> None:
        self.ends: dict[str, dict[str, Any]] = {}

    def run(self, checkpoint: str = "checkpoint", skipping: bool = False, **options: Any) -> list[list[int]]:
        given = {"group": "lake", "topic": "flights", "columns": "offset", **options}
        stream = StreamReader(of_django(), read(given, STREAM, "a stream"), 2)
        found = []
        try:
            stream.prepareForTriggerAvailableNow()
            end = self.ends.get(checkpoint) or stream.initialOffset()
            while (following := stream.latestOffset(end, stream.getDefaultReadLimit())) != end:
                portions = [] if skipping else stream.partitions(end, following)
                batches = [batch for portion in portions for batch in stream.read(portion)]
                found.append(sorted(row["offset"] for batch in batches for row in batch.to_pylist()))
                end = self.ends[checkpoint] = following
        finally:
            stream.stop()
        return [batch for batch in found if batch]


@pytest.fixture
def direct(transactional_db: None) -> Direct:
    return Direct()


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path)


def offsets_of(topic: str) -> list[int]:
    return list(Message.objects.filter(topic=topic).order_by("offset").values_list("offset", flat=True))


def positions(group: str = "lake", topic: str = "flights") -> set[tuple[int, int, int]]:
    rows = Offset.objects.filter(consumer_group=group, topic=topic)
    return set(rows.values_list("position", "offset_acked", "claimed_to"))


def test_what_is_available_is_read_once_and_the_group_stands_at_its_end(streams: Streams) -> None:
    publish_many("flights", [NewMessage(number, key=f"k{number % 7}") for number in range(100)])
    publish_many("others", range(50))
    publish("flights", "for another group", group="other")
    mine = offsets_of("flights")[:-1]
    batches = streams.run(maxRowsPerBatch=40)
    assert [offset for batch in batches for offset in batch] == mine
    assert len(batches) >= 3
    assert max(map(len, batches)) <= 40
    ((position, watermark, claimed),) = positions()
    assert position == watermark == claimed >= mine[-1]
    publish_many("flights", range(5))
    (batch,) = streams.run()
    assert batch == offsets_of("flights")[-5:]
    assert positions() == {(batch[-1],) * 3}
    assert streams.run() == []


def test_positions_never_pass_what_the_sink_has_committed(streams: Streams) -> None:
    publish_many("flights", range(60))
    mine = offsets_of("flights")

    def second_fails(frame: DataFrame, number: int) -> None:
        streams.keep(frame, number)
        if number == 1:
            raise RuntimeError("the lake is full")

    query = streams.start(second_fails, maxRowsPerBatch=25)
    with pytest.raises(StreamingQueryException, match="the lake is full"):
        query.awaitTermination(TIMEOUT)
    first, second = streams.batches
    ((position, watermark, _),) = positions()
    assert first[-1] <= position == watermark < second[0]
    again = streams.run(maxRowsPerBatch=25)
    assert again[0] == second
    assert first + [offset for batch in again for offset in batch] == mine
    assert {row[0] for row in positions()} == {mine[-1]}


@pytest.mark.database("mariadb", "mysql")
def test_a_late_commit_is_not_skipped(streams: Streams) -> None:
    publish("flights", "first")
    query = streams.start(available=False)
    wait_until(lambda: streams.batches, TIMEOUT)
    with OpenTransaction() as late:
        late.do(lambda: publish("flights", "late"))
        after = publish("flights", "after")
        assert after.offset is not None
        wait_until(lambda: query.lastProgress and query.lastProgress.batchId >= 0, TIMEOUT)
        seen = query.recentProgress[-1].timestamp
        wait_until(lambda: query.recentProgress[-1].timestamp > seen or query.exception(), TIMEOUT)
        assert after.offset not in [offset for batch in streams.batches for offset in batch]
        late.commit()
    expected = offsets_of("flights")
    assert len(expected) == 3
    wait_until(lambda: sorted(offset for batch in streams.batches for offset in batch) == expected, TIMEOUT)
    query.stop()


def test_a_group_with_live_consumers_is_refused(direct: Direct, consuming: Consuming) -> None:
    publish("flights", 1)

    @consuming.consumer("flights", group="lake")
    def handle(delivery: Any) -> None: ...

    host = consuming.start()
    wait_until(lambda: offsets_of("flights")[0] in {row[0] for row in positions()})
    with pytest.raises(ConfigurationError, match="group 'lake' has live consumers"):
        direct.run()
    assert PartitionLease.objects.filter(holder=host.name).exists()
    host.stop()
    assert direct.run(checkpoint="another") == []


def test_the_newer_of_two_streams_wins(direct: Direct) -> None:
    offset = publish("flights", 1).offset
    assert offset is not None
    older = Membership(LOG, "lake", ["flights"], "earliest", 30)
    older.settle(offset)
    publish("flights", 2)
    assert direct.run() == [offsets_of("flights")[1:]]
    with pytest.raises(LeaseLost, match="no longer the owner of group 'lake'"):
        older.settle(offset + 1)
    older.abandon()


def test_a_reset_ends_a_running_stream(direct: Direct) -> None:
    publish("flights", 1)
    running = Membership(LOG, "lake", ["flights"], "earliest", 30)
    move(LOG, "lake", "flights", 0)
    with pytest.raises(LeaseLost, match="the group was moved"):
        running.settle(offsets_of("flights")[0])
    running.abandon()
    assert direct.run() == [offsets_of("flights")]


def go_back(offset: int) -> None:
    """Let the log, its counter and the group be as a backup from this offset has them."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM sqlqueue_message WHERE `offset` > %s", [offset])
        cursor.execute("ALTER TABLE sqlqueue_message AUTO_INCREMENT = %s", [offset + 1])
    Offset.objects.update(position=offset, offset_acked=offset, claimed_to=offset)
    ConsumerGroup.objects.update(streamed_to=offset)


@pytest.mark.database("mariadb", "mysql")
def test_a_checkpoint_ahead_of_a_restored_log_is_refused_and_nothing_is_lost(direct: Direct) -> None:
    publish_many("flights", range(50))
    direct.run()
    back = offsets_of("flights")[9]
    go_back(back)
    before = positions()
    for count in (20, 80):  # the log ends before the checkpoint, and behind it
        publish_many("flights", [f"new {number}" for number in range(count)])
        with pytest.raises(ConfigurationError, match=r"restored or failed over.*give the query a new checkpoint"):
            direct.run()
        assert positions() == before
    new = offsets_of("flights")[10:]
    horizon = Horizon(LOG)
    horizon.wait()
    collect(LOG, horizon)
    assert offsets_of("flights")[-len(new) :] == new
    assert direct.run(checkpoint="fresh") == [new]
    assert {row[0] for row in positions()} == {new[-1]}


def test_an_old_checkpoint_does_not_undo_a_reset(direct: Direct) -> None:
    publish_many("flights", range(30))
    direct.run()
    move(LOG, "lake", "flights", 0)
    with pytest.raises(ConfigurationError, match="the group was rewound"):
        direct.run()
    assert {row[0] for row in positions()} == {0}
    move(LOG, "lake", "flights", 0, partition=1)  # a part of it as well
    assert direct.run(checkpoint="fresh") == [offsets_of("flights")]
    *_, last = Message.objects.filter(topic="flights").order_by("offset")
    move(LOG, "lake", "flights", last.offset - 1, partition=last.partition)
    with pytest.raises(ConfigurationError, match="the group was rewound"):
        direct.run(checkpoint="fresh")


def test_a_checkpoint_may_be_ahead_by_the_batch_that_was_in_flight(direct: Direct) -> None:
    publish_many("flights", range(30))
    (mine,) = direct.run()
    Offset.objects.update(position=0, offset_acked=0, claimed_to=0)  # killed after the sink had committed
    assert direct.run() == []
    assert {row[0] for row in positions()} == {mine[-1]}
    new = publish("flights", "new")
    Message.objects.exclude(offset=new.offset).delete()
    assert direct.run() == [[new.offset]]
    Message.objects.all().delete()  # an empty log is no log that went back
    assert direct.run() == []


def test_a_topic_that_a_stream_gains_is_not_skipped(direct: Direct) -> None:
    publish_many("trains", range(5))
    publish_many("flights", range(5))
    direct.run()
    with pytest.raises(ConfigurationError, match="give the query a new checkpoint"):
        direct.run(topic="flights,trains")
    (batch,) = direct.run(topic="flights,trains", checkpoint="fresh")
    assert set(offsets_of("trains")) <= set(batch)


def test_what_waited_behind_a_key_is_read_again_and_waits_no_more(direct: Direct) -> None:
    publish_many("flights", [NewMessage(number, key="one") for number in range(10)])
    register(LOG, "lake", "flights")
    direct.run()
    mine = offsets_of("flights")
    partition = Message.objects.filter(topic="flights").values_list("partition", flat=True)[0]
    place = {"consumer_group": "lake", "topic": "flights", "partition": partition, "partition_key": "one"}
    BlockedRange.objects.create(**place, low=mine[3], high=mine[8], messages=5)
    BlockedRange.objects.create(**{**place, "partition_key": "more"}, low=mine[3], high=mine[9] + 100, messages=2)
    Offset.objects.filter(partition=partition).update(offset_acked=mine[3])
    (batch,) = direct.run(checkpoint="fresh")
    assert batch == mine[4:]
    assert list(BlockedRange.objects.values_list("partition_key", "low")) == [("more", mine[9])]


def test_it_takes_over_what_consumers_have_left_behind(direct: Direct, consuming: Consuming) -> None:
    @consuming.consumer("flights", group="lake", backoff=3600)
    def refuse_odd(delivery: Any) -> None:
        if delivery.payload % 2:
            raise ValueError

    publish_many("flights", [NewMessage(number, key=str(number)) for number in range(6)])
    consuming.drain()
    left = set(DeliveryState.objects.unsettled().values_list("message_offset", flat=True))
    assert len(left) == 3
    (batch,) = direct.run()
    assert left <= set(batch)
    assert not DeliveryState.objects.exists()
    assert len(positions()) == 1


def test_start_latest_and_pauses_are_heeded(direct: Direct) -> None:
    publish("flights", "before")
    assert direct.run(start="latest") == []
    new = publish("flights", "new")
    ConsumerGroup.objects.update(paused=True)
    assert direct.run(start="latest") == []
    ConsumerGroup.objects.update(paused=False)
    assert direct.run(start="latest") == [[new.offset]]
    remove(LOG, "lake", "flights")


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_start_latest_waits_no_longer_than_it_may_for_an_open_publisher(transactional_db: None) -> None:
    with OpenTransaction() as person:
        person.do(lambda: publish("flights", "open"))
        publish("flights", "later")
        with pytest.raises(HorizonUnknown, match="has been open since"):
            Membership(LOG, "lake", ["flights"], "latest", 0.5)
    assert not ConsumerGroup.objects.exists()


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_connection_that_was_lost_while_a_batch_ran_ends_no_stream(transactional_db: None) -> None:
    offset = publish("flights", 1).offset
    member = Membership(LOG, "lake", ["flights"], "earliest", 30)
    member.settle(offset)
    end_this_threads_connection()
    member.leave()
    assert not PartitionLease.objects.exclude(holder="").exists()


def test_a_stream_can_end_in_a_topic(streams: Streams, tmp_path: Path) -> None:
    publish_many("flights", [NewMessage({"n": number}, id=f"f{number}") for number in range(30)])

    def start() -> StreamingQuery:
        frame = streams.spark.readStream.format("sqlqueue").options(group="copy", topic="flights").load()
        writer = frame.select("id", "key", "payload").writeStream.format("sqlqueue").option("topic", "copies")
        return writer.option("checkpointLocation", str(tmp_path / "copy")).trigger(availableNow=True).start()

    assert start().awaitTermination(TIMEOUT)
    assert {row[0] for row in positions("copy")} == {offsets_of("flights")[-1]}
    move(LOG, "copy", "flights", 0)
    shutil.rmtree(tmp_path / "copy")
    assert start().awaitTermination(TIMEOUT)  # everything again, and nothing twice
    copies = Message.objects.filter(topic="copies")
    assert sorted(copies.values_list("message_id", flat=True)) == sorted(f"f{number}" for number in range(30))


@pytest.mark.once
def test_a_wrong_option_is_refused_in_words(spark_session: SparkSession) -> None:
    for given, said in (
        ({"group": "g"}, "give it the options group and topic"),
        ({"topic": "flights"}, "give it the options group and topic"),
        ({"from": "7"}, "no option 'from' for a stream"),
        ({"maxRowsPerBatch": "0"}, "maxRowsPerBatch must be a whole number from 1"),
    ):
        source = registered(of_django(), 2)(given)
        with pytest.raises(ConfigurationError, match=said):
            source.streamReader(StructType.fromDDL(source.schema()))


def test_a_topic_that_there_is_not_is_refused_in_words(direct: Direct) -> None:
    publish("flights", 0)
    with pytest.raises(ConfigurationError, match=r"there is no topic 'fligths'. Did you mean 'flights'\?"):
        direct.run(topic="flights,fligths")
    assert set(Topic.objects.values_list("name", flat=True)) == {"flights"}
    assert not ConsumerGroup.objects.exists()
