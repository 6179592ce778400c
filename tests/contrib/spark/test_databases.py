"""Several databases are read as one log, and each row is published to the database of its key."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pytest_django import DjangoDbBlocker

from sqlqueue import ConfigurationError, NewMessage, publish, publish_many
from sqlqueue.contrib.spark.analytics import hourly
from sqlqueue.contrib.spark.archive import read_archive
from sqlqueue.contrib.spark.models import HourlyStatistic
from sqlqueue.contrib.spark.session import register
from sqlqueue.core.keys import database_of
from sqlqueue.models import ConsumerGroup, Message, Offset, Topic
from tests.contrib.spark.test_stream import Streams
from tests.databases.aliases import BOTH, A, B

pytestmark = pytest.mark.long

KEYS = [f"key-{number}" for number in range(60)]
OF = {alias: [key for key in KEYS if database_of(key, BOTH) == alias] for alias in BOTH}


@pytest.fixture
def several(
    spark: SparkSession, databases: dict[str, Any], django_db_blocker: DjangoDbBlocker
) -> Iterator[SparkSession]:
    with django_db_blocker.unblock():
        register(spark)
        yield spark


def stored(topic: str = "t") -> set[tuple[str, int, str]]:
    """Return what the log holds of a topic: database, offset, key."""
    return {
        (alias, *row)
        for alias in BOTH
        for row in Message.objects.using(alias).filter(topic=topic).values_list("offset", "partition_key")
    }


def read(spark: SparkSession, **options: Any) -> set[tuple[str, int, str]]:
    frame = spark.read.format("sqlqueue").options(**{"topic": "t", **options}).load()
    rows = frame.select("database", "offset", "key").collect()
    assert len(set(rows)) == len(rows)
    return {tuple(row) for row in rows}


def test_a_batch_reads_every_database_and_names_it(several: SparkSession) -> None:
    publish_many("t", [NewMessage(key, key=key) for key in KEYS])
    publish_many("only", [NewMessage(1, key=key) for key in OF[A]])
    assert Counter(database for database, *_ in stored()) == {database: len(keys) for database, keys in OF.items()}
    assert read(several) == stored()
    assert read(several, database=B) == {row for row in stored() if row[0] == B}
    assert read(several, key=OF[B][0]) == {row for row in stored() if row[2] == OF[B][0]}
    frame = several.read.format("sqlqueue").option("topic", "t").load()
    assert frame.columns[-1] == "database"
    offsets = several.read.format("sqlqueue").options(table="offsets", columns="database,group").load()
    assert offsets.collect() == []
    with pytest.raises(PySparkException, match="name one with the option database"):
        read(several, to=10)
    assert read(several, to=10**9, database=B) == {row for row in stored() if row[0] == B}
    with pytest.raises(PySparkException, match="DATABASES has no alias 'c'"):
        read(several, database="c")


def test_rows_are_published_to_the_databases_of_their_keys_once(several: SparkSession) -> None:
    rows = several.createDataFrame([(key, f"id-{key}", "{}") for key in KEYS], "key string, id string, payload string")
    keyless = several.createDataFrame([(f"alone-{n}", "1") for n in range(20)], "id string, payload string")
    for _ in range(2):
        rows.write.format("sqlqueue").option("topic", "t").mode("append").save()
        keyless.write.format("sqlqueue").option("topic", "t").mode("append").save()
    found = stored()
    assert len(found) == 80
    assert all(database_of(key, BOTH) == database for database, _, key in found if key)
    for database, alias in zip(BOTH, BOTH):
        alone = Message.objects.using(alias).filter(topic="t", partition_key="").values_list("message_id", flat=True)
        assert {database_of(id, BOTH) for id in alone} == {database}
        assert Topic.objects.using(alias).get(name="t").databases == ",".join(BOTH)
    assert publish("t", {}, key=KEYS[0], id=f"id-{KEYS[0]}").status == "ignored"
    with pytest.raises(PySparkException, match="no option 'database' for a write"):
        rows.write.format("sqlqueue").options(topic="t", database=A).mode("append").save()


def test_a_stream_reads_every_database_once_and_the_group_stands_at_each_end(
    several: SparkSession, tmp_path: Path
) -> None:
    seen: Counter[tuple[str, str]] = Counter()

    def keep(frame: Any, number: int) -> None:
        seen.update((row.database, row.key) for row in frame.select("database", "key").collect())

    streams = Streams(several, tmp_path)
    streams_options = {"topic": "t", "maxRowsPerBatch": 20}
    for turn in range(2):
        publish_many("t", [NewMessage(turn, key=key) for key in KEYS])
        assert streams.start(keep, **streams_options).awaitTermination(240)
        assert seen == {(database, key): turn + 1 for database, keys in OF.items() for key in keys}
    for alias in BOTH:
        highest = Message.objects.using(alias).latest("offset").offset
        (stands,) = set(Offset.objects.using(alias).filter(consumer_group="lake").values_list("position", flat=True))
        assert stands >= highest
        assert ConsumerGroup.objects.using(alias).get(topic="t").consumer_group == "lake"


def test_a_database_joins_a_query_with_its_topic(several: SparkSession, tmp_path: Path) -> None:
    publish_many("mine", [NewMessage(1, key=key) for key in OF[A][:5]])
    streams = Streams(several, tmp_path)
    assert sum(map(len, streams.run(topic="mine", database=A))) == 5
    joined = publish("u", 1, key=OF[B][0])
    assert streams.run(topic="mine,u") == [[joined.offset]]


def archive(*words: Any, **options: Any) -> None:
    call_command("queuearchive", *words, **{"wait": 30.0, "receipts": False, "segment_rows": 25, **options})


def test_the_archive_has_a_part_for_each_database_and_brings_all_of_it_back(
    several: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lake"
    publish_many("t", [NewMessage(key, key=key, id=f"id-{key}") for key in KEYS])
    publish_many("only", [NewMessage(key, key=key) for key in OF[A][:3]])
    archive(folder)
    archive(folder, verify=True)
    assert f"database {B}\nt: " in capsys.readouterr().out
    rows = read_archive(several, str(folder)).where("topic = 't'").select("database", "offset", "key").collect()
    assert {tuple(row) for row in rows} == stored()
    assert len(rows) == len(KEYS)
    before = {key: database for database, _, key in stored()}
    for alias in BOTH:
        Message.objects.using(alias).filter(topic="t").delete()
    with pytest.raises(CommandError, match=f"say which with --database: {A}, {B}"):
        call_command("queuerehydrate", folder, "t", last=5, same_ids=True)
    call_command("queuerehydrate", folder, "t", all=True, same_ids=True)
    call_command("queuerehydrate", folder, "t", all=True, same_ids=True)
    assert f"t: {len(KEYS)} rows, 0 new messages" in capsys.readouterr().out
    assert {key: database for database, _, key in stored()} == before
    call_command("queuerehydrate", folder, "t", all=True, label="again")
    assert len(stored()) == 2 * len(KEYS)  # an offset of a and the same one of b make two ids


def test_an_archive_of_one_log_is_not_mixed_with_those_of_several(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "lake"
    publish("mine", 1, key=KEYS[0])
    archive(folder)
    request.getfixturevalue("databases")
    with request.getfixturevalue("django_db_blocker").unblock():
        register(spark)
        with pytest.raises(CommandError, match="is not where the archive of mine ended"):
            archive(folder)
        publish("u", 2, key=OF[B][0])
        archive(folder, database=B)
        with pytest.raises(ConfigurationError, match="move its folders and files"):
            read_archive(spark, str(folder))
        (folder / f"database={A}").mkdir(exist_ok=True)
        for name in ("messages", "_archive", "_manifests"):
            (folder / name).rename(folder / f"database={A}" / name)
        publish("mine", 2, key=KEYS[0])
        archive(folder)
    rows = read_archive(spark, str(folder)).select("database", "topic").collect()
    assert Counter(tuple(row) for row in rows) == {(A, "mine"): 2, (B, "u"): 1}


def test_the_analytics_of_each_database_are_in_its_own_tables(several: SparkSession) -> None:
    publish_many("t", [NewMessage(1, key=key) for key in KEYS])
    call_command("queueanalytics")
    for database, alias in zip(BOTH, BOTH):
        hours = HourlyStatistic.objects.using(alias).filter(topic="t")
        assert sum(hour.published for hour in hours) == len(OF[database])
    messages = several.read.format("sqlqueue").option("topic", "t").load()
    receipts = several.read.format("sqlqueue").options(topic="t", table="receipts").load()
    whole = hourly(messages, receipts, messages).agg(F.sum("published"), F.sum("key_count")).collect()[0]
    assert tuple(whole) == (len(KEYS), len(KEYS))
