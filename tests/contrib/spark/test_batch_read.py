"""The log as a DataFrame: what was published, all of it, once, as it was published."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sqlqueue import ConfigurationError, NewMessage, Reject, publish, publish_many
from sqlqueue.contrib.spark import plan
from sqlqueue.contrib.spark.options import READ
from sqlqueue.contrib.spark.options import read as parsed
from sqlqueue.contrib.spark.project import of_django
from sqlqueue.contrib.spark.session import register
from sqlqueue.contrib.spark.source import BatchReader, registered
from sqlqueue.core.keys import partition_of
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.models import Message, Offset, Receipt
from tests.consuming import Consuming
from tests.logs import LOG
from tests.transactions import OpenTransaction

Read = Callable[..., DataFrame]
STRANGE = {"": "empty", "emoji": "🛫✈️🛬", "東京": None, "quotes": "\"'\\`%s{now}", "deep": [[{"a": [None]}]]}


def test_messages_are_what_was_published(read: Read) -> None:
    publish("flights", STRANGE, key="ключ 🗝", id="the first", headers={"trace": "⏱", "none": None})
    publish("flights", {"price": 12.30, "long": 2**53, "none": None})
    publish("flights", "x" * 1_000_000, key="a,b", group="only")
    publish("flights", None)
    expected = Message.objects.order_by("offset")
    frame = read()
    rows = frame.withColumn("created_at", F.unix_micros("created_at")).orderBy("offset").collect()
    assert frame.dtypes == [
        ("offset", "bigint"),
        ("topic", "string"),
        ("partition", "int"),
        ("priority", "int"),
        ("key", "string"),
        ("id", "string"),
        ("payload", "string"),
        ("headers", "string"),
        ("created_at", "timestamp"),
        ("target_group", "string"),
        ("body", "binary"),
    ]
    assert len(rows) == 4
    for row, message in zip(rows, expected, strict=True):
        assert (row.offset, row.topic, row.partition, row.priority) == (
            message.offset,
            "flights",
            message.partition,
            0,
        )
        assert (row.key, row.id, row.target_group) == (message.partition_key, message.message_id, message.target_group)
        assert row.created_at == round(message.created_at.timestamp() * 1_000_000)
        assert decoded(row.payload) == message.payload
        assert decoded(row.headers) == message.headers
    assert rows[0].key == "ключ 🗝"
    assert len(rows[2].payload) == 1_000_002


def decoded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def test_times_are_the_same_moments_in_every_session_time_zone(spark: SparkSession, read: Read) -> None:
    publish("flights", 1)
    at = Message.objects.get().created_at
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        frame = read(since=(at - timedelta(seconds=1)).isoformat(), until=(at + timedelta(seconds=1)).isoformat())
        assert frame.select(F.unix_micros("created_at")).first()[0] == round(at.timestamp() * 1_000_000)
        local = frame.select(F.date_format("created_at", "HH:mm")).first()[0]
        assert local == (at + timedelta(hours=5, minutes=45)).strftime("%H:%M")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert read(until=at.isoformat()).count() == 0
    assert read(since=at.isoformat()).count() == 1


def directly(**options: Any) -> list[dict[str, Any]]:
    """Read a table as Spark's processes do, in this one."""
    given = {name.rstrip("_"): str(value) for name, value in options.items()}
    reader = BatchReader(of_django(), parsed(given, READ, "a batch read"), 2)
    batches = [batch for portion in reader.partitions() for batch in reader.read(portion)]
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.django_db(transaction=True)
def test_options_narrow_a_read() -> None:
    for topic in ("a", "b", "c"):
        publish_many(topic, [NewMessage(number, key=f"k{number % 5}") for number in range(20)])
    offsets = sorted(Message.objects.values_list("offset", flat=True))

    def found(**options: Any) -> set[int]:
        return {row["offset"] for row in directly(columns="offset", **options)}

    def expected(**lookups: Any) -> set[int]:
        return set(Message.objects.filter(**lookups).values_list("offset", flat=True))

    assert found() == set(offsets)
    assert found(topic="a, c") == expected(topic__in=["a", "c"])
    assert found(topic="unknown") == set()
    assert found(key="k3") == expected(partition_key="k3")
    assert found(key='["k3", "k4"]', topic="b") == expected(partition_key__in=["k3", "k4"], topic="b")
    assert found(partition=partition_of("k1", 32)) == expected(partition=partition_of("k1", 32))
    assert found(from_=offsets[10], to=offsets[30]) == set(offsets[10:31])
    assert found(from_=offsets[-1] + 1) == set()


def test_columns_come_as_chosen(read: Read) -> None:
    publish("flights", 7, key="k")
    frame = read(columns="payload, key,topic")
    assert frame.columns == ["payload", "key", "topic"]
    assert [tuple(row) for row in frame.collect()] == [("7", "k", "flights")]


def test_tasks_share_the_rows_whatever_gaps_are_between_them(read: Read) -> None:
    publish_many("many", range(12_000))
    first = Message.objects.order_by("offset").first()
    quoted = connection.ops.quote_name
    columns = f"topic, {quoted('partition')}, priority, partition_key, payload"
    with connection.cursor() as cursor:  # each once more, far above
        cursor.execute(
            f"INSERT INTO sqlqueue_message ({quoted('offset')}, message_id, {columns}) "
            f"SELECT {quoted('offset')} + %s, SUBSTR(message_id, 2), {columns} FROM sqlqueue_message",
            [10**12],
        )
    frame = read(numPartitions=4, columns="offset,id")
    sizes = Counter(row.task for row in frame.select(F.spark_partition_id().alias("task")).collect())
    assert len(sizes) == 4
    assert max(sizes.values()) < 1.3 * 6_000
    assert frame.agg(F.countDistinct("offset"), F.min("offset")).first() == (24_000, first.offset)
    assert read(numPartitions=4, to=first.offset).count() == 1


def test_two_filters_of_one_frame_do_not_mix(read: Read) -> None:
    publish_many("a", range(12))
    publish_many("b", range(3))
    frame = read()
    a, b = frame.where("topic = 'a'"), frame.where("topic = 'b'")
    assert (a.count(), b.count(), frame.count()) == (12, 3, 15)
    assert {row.topic: row["count"] for row in a.union(b).groupBy("topic").count().collect()} == {"a": 12, "b": 3}


@pytest.mark.database("mariadb", "mysql")
def test_nothing_is_read_beyond_the_horizon(read: Read) -> None:
    publish("flights", "before")
    with OpenTransaction() as late:
        late.do(lambda: publish("flights", "late"))
        publish("flights", "after")
        with pytest.raises(PySparkException, match="a transaction that publishes has been open since before offset"):
            read(horizonTimeout=1).count()
        late.commit()
    assert sorted(row.payload for row in read(columns="payload").collect()) == ['"after"', '"before"', '"late"']


def test_a_loaded_frame_stands_still(read: Read) -> None:
    publish("flights", 1)
    frame = read()
    assert frame.count() == 1
    publish("flights", 2)
    assert frame.count() == 1
    assert read().count() == 2


def test_receipts_dead_letters_and_offsets(read: Read, consuming: Consuming, spark: SparkSession) -> None:
    @consuming.consumer("flights", group="alerts", max_attempts=1)
    def refuse_odd(delivery: Any) -> None:
        if delivery.payload % 2:
            raise Reject(f"odd 🙃 {delivery.payload}")

    published = [publish("flights", number, key="k") for number in range(6)]
    consuming.drain()
    letters = read("dead_letters", topic="flights").orderBy("original_offset").collect()
    assert [letter.payload for letter in letters] == ["1", "3", "5"]
    assert [letter.original_offset for letter in letters] == [published[number].offset for number in (1, 3, 5)]
    assert {(letter.failed_group, letter.original_topic, letter.failure_count) for letter in letters} == {
        ("alerts", "flights", 1)
    }
    assert letters[0].last_error == "odd 🙃 1"
    assert all(letter.failed_at for letter in letters)
    assert directly(table="dead_letters", topic="others") == []
    assert len(directly(table="dead_letters")) == 3

    receipts = read("receipts", topic="flights").orderBy("offset").collect()
    stored = list(Receipt.objects.order_by("message_offset"))
    assert [(row.id, row.group, row.offset, row.outcome, row.attempts, row.worker) for row in receipts] == [
        (one.id, one.consumer_group, one.message_offset, one.outcome, one.attempts, one.worker) for one in stored
    ]
    assert len(receipts) == 3
    assert all(row.started_at <= row.finished_at for row in receipts)
    second = stored[1].id
    assert [row["id"] for row in directly(table="receipts", fromId=second, toId=second)] == [second]
    assert len(directly(table="receipts", topic="flights", fromId=second)) == 2
    assert directly(table="receipts", topic="others", toId=second) == []
    said = parsed({"table": "receipts", "fromId": str(second)}, READ, "a batch read")
    ranges = [
        (low, high) for portion in plan.batch(LOG, said, 2, ServerIdentity(LOG)) for low, high, _ in portion.ranges
    ]
    assert [(ranges[0][0], ranges[-1][1])] == [(stored[1].id, stored[2].id)]  # what is below is not looked at

    offsets = read("offsets", topic="flights").collect()
    assert {(row.group, row.partition, row.position, row.fencing_token) for row in offsets} == set(
        Offset.objects.values_list("consumer_group", "partition", "position", "fencing_token")
    )


def test_a_wrong_option_is_refused_in_words(spark_session: SparkSession) -> None:
    for given, said in (
        ({"topci": "a"}, "no option 'topci' for reading. Did you mean 'topic'?"),
        ({"table": "mesages"}, "no table 'mesages' to read. Did you mean 'messages'?"),
        ({"columns": "offset,pay"}, "no column 'pay'"),
        ({"from": "-1"}, "from must be a whole number from 0"),
        ({"since": "yesterday"}, "since must be a time such as"),
        ({"database": "other"}, "no alias 'other'"),
        ({"fromId": "1"}, "fromId and toId are for table receipts"),
        ({"table": "receipts", "toId": "9", "from": "1"}, "instead of the offsets' from and to"),
        ({"group": "g"}, "no option 'group' for a batch read"),
        ({"topic": "a topic"}, "is not a name"),
    ):
        source = registered(of_django(), 2)(given)
        with pytest.raises(ConfigurationError) as raised:
            source.reader(StructType.fromDDL(source.schema()))
        assert said in str(raised.value)
    register(spark_session)
    with pytest.raises(PySparkException, match="no option 'topci' for reading"):
        spark_session.read.format("sqlqueue").option("topci", "a").load()


@pytest.mark.database("mariadb", "mysql")
def test_a_password_shows_nowhere(
    spark: SparkSession, read: Read, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    publish("flights", 1)
    secret = "Vogelnest-4711"
    with connection.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS reader")
        cursor.execute(f"CREATE USER reader IDENTIFIED BY '{secret}'")
        cursor.execute(f"GRANT ALL ON {connection.settings_dict['NAME']}.* TO reader")
    config = {**connection.settings_dict, "USER": "reader", "PASSWORD": secret}
    monkeypatch.setitem(connections.settings, "guarded", config)
    try:
        register(spark)
        frame = read(database="guarded")
        assert frame.count() == 1
        frame.explain("extended")
        with connection.cursor() as cursor:
            cursor.execute("ALTER USER reader IDENTIFIED BY 'another one'")
        with pytest.raises(PySparkException) as raised:
            read(database="guarded").count()
        plan = frame._jdf.queryExecution().toString()
        conf = str(spark.sparkContext.getConf().getAll())
        said = capfd.readouterr()
        assert "BatchScan sqlqueue" in plan + said.out
        for text in (plan, conf, str(raised.value), said.out, said.err):
            assert secret not in text
    finally:
        connections["guarded"].close()
        del connections["guarded"]
        with connection.cursor() as cursor:
            cursor.execute("DROP USER reader")


def test_a_project_says_nothing_of_its_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "PASSWORD", "Vogelnest-4711")
    project = of_django()
    assert project.databases["default"]["PASSWORD"] == "Vogelnest-4711"
    assert "Vogelnest" not in repr(project) + str(project)
