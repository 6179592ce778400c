"""Publishing a DataFrame: once, whatever is run again."""

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from sqlqueue import ConfigurationError, InvalidMessage, publish
from sqlqueue.contrib.spark import publisher
from sqlqueue.contrib.spark.membership import Membership
from sqlqueue.contrib.spark.options import WRITE, SourceOptions, read
from sqlqueue.contrib.spark.project import of_django
from sqlqueue.contrib.spark.scan import Portion, TableScan
from sqlqueue.contrib.spark.session import register
from sqlqueue.contrib.spark.source import registered
from sqlqueue.contrib.spark.tables import MESSAGES
from sqlqueue.contrib.spark.writer import to_json
from sqlqueue.core.keys import partition_of
from sqlqueue.models import Message, ScheduledMessage, Topic
from sqlqueue.testing import published
from tests.database.test_session_values import options as options
from tests.logs import LOG

LARGE = 16 * 2**20


def write(frame: DataFrame, **options: Any) -> None:
    frame.write.format("sqlqueue").options(**options).mode("append").save()


def test_rows_become_messages(spark: SparkSession) -> None:
    kind = T.StructType(
        [
            T.StructField("topic", T.StringType()),
            T.StructField("key", T.StringType()),
            T.StructField("id", T.StringType()),
            T.StructField("headers", T.MapType(T.StringType(), T.StringType())),
            T.StructField(
                "payload",
                T.StructType(
                    [
                        T.StructField("text", T.StringType()),
                        T.StructField("at", T.TimestampType()),
                        T.StructField("day", T.DateType()),
                        T.StructField("price", T.DecimalType(38, 18)),
                        T.StructField("none", T.LongType()),
                        T.StructField("parts", T.ArrayType(T.BinaryType())),
                        T.StructField("rates", T.MapType(T.StringType(), T.DoubleType())),
                    ]
                ),
            ),
        ]
    )
    at = datetime(2013, 7, 1, 23, 59, 59, 123456, timezone.utc)
    price = Decimal("12345678901234567890.123456789012345678")
    text = "🛫 東京" if connection.vendor == "postgresql" else "🛫 \x00 東京"  # it refuses NUL
    payload = (text, at, date(2013, 7, 1), price, None, [b"\x00\xff", None], {"a": 0.1})
    rows = [("flights", "N1 ✈", "first", {"trace": "⏱"}, payload), ("others", None, "second", None, None)]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.createDataFrame(rows, kind)
        write(frame.withColumn("payload", to_json(F.col("payload"))).withColumn("headers", to_json(F.col("headers"))))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    first, second = Message.objects.get(topic="flights"), Message.objects.get(topic="others")
    assert first.payload == {
        "text": text,
        "at": "2013-07-01T23:59:59.123456Z",
        "day": "2013-07-01",
        "price": float(price),
        "none": None,
        "parts": ["AP8=", None],
        "rates": {"a": 0.1},
    }
    assert (first.partition_key, first.message_id, first.headers) == ("N1 ✈", "first", {"trace": "⏱"})
    assert first.partition == partition_of("N1 ✈", Topic.objects.get(name="flights").partitions)
    assert (second.payload, second.partition_key, second.headers) == (None, "", None)
    assert not publish("flights", "the same", key="N1 ✈", id="first").created


def test_what_is_written_again_is_there_once(spark: SparkSession) -> None:
    frame = spark.range(5_000).select(
        F.concat(F.lit("row "), F.col("id")).alias("id"),
        F.col("id").cast("string").alias("payload"),
        (F.col("id") % 97).cast("string").alias("key"),
    )
    write(frame, topic="numbers")
    write(frame.union(frame.limit(10)), topic="numbers")
    messages = Message.objects.filter(topic="numbers")
    assert messages.count() == 5_000
    assert sum(messages.values_list("payload", flat=True)) == sum(range(5_000))


def test_a_task_that_fails_and_is_run_again_adds_nothing_twice(spark: SparkSession) -> None:
    """The first run fails at its last row, when two statements have committed."""
    rows = spark.range(0, 3_000, 1, 1).withColumn("payload", F.lit("1"))
    rows = rows.select(F.concat(F.lit("row "), "id").alias("id"), "payload")
    last = F.when(F.col("id") == "row 2999", F.lit("{broken")).otherwise(F.col("payload"))
    with pytest.raises(PySparkException, match="payload is not JSON text"):
        write(rows.withColumn("payload", last), topic="numbers")
    present = Message.objects.filter(topic="numbers").count()
    assert present in (2_000, 2_500)  # statements of 1,000 rows, on SQLite of 500
    write(rows, topic="numbers")
    assert Message.objects.filter(topic="numbers").count() == 3_000


def test_json_text_stays_as_it_is_and_large_rows_pass(spark: SparkSession) -> None:
    exact = '{"price": 12.30, "long": 12345678901234567890.5, "text": "\\u00e9"}'
    large = json.dumps("é" * 1_000_000)
    rows = [("exact", exact), *((f"large {number}", large) for number in range(5))]
    write(spark.createDataFrame(rows, "id string, payload string").coalesce(1), topic="texts")
    stored = {message.id: message.payload for message in published("texts")}
    assert stored["exact"]["price"] == 12.3
    assert stored["exact"]["text"] == "é"
    assert all(len(stored[f"large {number}"]) == 1_000_000 for number in range(5))


def test_a_delay_waits_in_the_schedule(spark: SparkSession) -> None:
    rows = [("now", "1", None), ("later", "2", 3600.0)]
    write(spark.createDataFrame(rows, "id string, payload string, delay double"), topic="reminders")
    assert [message.id for message in published("reminders") if message.due_at is None] == ["now"]
    waiting = ScheduledMessage.objects.get()
    assert waiting.message_id == "later"
    assert 3500 < (waiting.due_at - waiting.created_at).total_seconds() < 3700


def test_rows_expire_after_so_many_seconds(spark: SparkSession) -> None:
    rows = [("never", None, None), ("soon", None, 60.0), ("later", 3600.0, 90.5)]
    frame = spark.createDataFrame(rows, "id string, delay double, expires double")
    write(frame.selectExpr("*", "'1' AS payload"), topic="codes")
    never, soon = Message.objects.filter(topic="codes").order_by("message_id")
    assert never.expires_at is None
    assert (soon.expires_at - soon.created_at).total_seconds() == pytest.approx(60, abs=5)
    assert ScheduledMessage.objects.get().expires_after == 90.5


def test_a_delayed_row_that_is_written_again_is_there_once(spark: SparkSession) -> None:
    rows = [(f"r{number % 40}", f"k{number % 20}", "1", 3600.0) for number in range(80)]
    frame = spark.createDataFrame(rows, "id string, key string, payload string, delay double")
    for _ in range(2):
        write(frame, topic="reminders")
    assert ScheduledMessage.objects.count() == 40
    write(frame.drop("delay"), topic="reminders")  # scheduled already
    assert not Message.objects.filter(topic="reminders").exists()
    ScheduledMessage.objects.all().delete()
    write(frame.drop("delay"), topic="reminders")
    write(frame, topic="reminders")  # in the log already
    assert (Message.objects.filter(topic="reminders").count(), ScheduledMessage.objects.count()) == (40, 0)


def test_the_same_id_under_another_key_is_another_message(spark: SparkSession) -> None:
    rows = [(f"customer {number}", "welcome", "1") for number in range(100)]
    frame = spark.createDataFrame(rows, "key string, id string, payload string")
    for _ in range(2):
        write(frame, topic="mails")
    assert Message.objects.filter(topic="mails").count() == 100


def test_rows_without_ids_need_a_word(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("1",), ("1",)], "payload string")
    write(frame, topic="numbers", ids="none")
    assert len(published("numbers")) == 2


REFUSED = [
    ("payload string", ("1",), {"topic": "t"}, "option ids=none if duplicates do no harm"),
    ("id string, payload string", (None, "1"), {"topic": "t"}, "a row has no id"),
    ("id string, payload string", ("a", "{broken"), {"topic": "t"}, "payload is not JSON text"),
    ("id string, payload string", ("a", "NaN"), {"topic": "t"}, "NaN is no number of JSON"),
    ("id string, payload double", ("a", 0.5), {"topic": "t"}, "payload must be JSON text, not double"),
    (
        "id string, body binary, headers map<string,string>",
        ("a", bytearray(b"1"), {}),
        {"topic": "t"},
        "make it by to_json()",
    ),
    ("id string, payload string", ("a", "1"), {}, "option topic, or give the rows a column topic"),
    ("id string, payload string, topic string", ("a", "1", None), {}, "a row has no topic"),
    ("id string, payload string, kee string", ("a", "1", "k"), {"topic": "t"}, "Did you mean 'key'?"),
    ("id string, payload string, key string", ("a", "1", "k" * 256), {"topic": "t"}, "key has 256 characters"),
    ("id string, payload string, priority int", ("a", "1", 7), {"topic": "t"}, "priority 7 is not one of topic"),
    ("id string, payload string", ("a", f'"{"x" * LARGE}"'), {"topic": "t"}, "SQLQUEUE['MAX_PAYLOAD_BYTES']"),
    ("id string, payload string", ("a", "[" * 600 + "]" * 600), {"topic": "t"}, "deep, which this database cannot"),
    (
        "id string, payload string, delay double",
        ("a", "[" * 600 + "]" * 600, 60.0),
        {"topic": "t"},
        "deep, which this database cannot",
    ),
    ("id string, payload string, expires double", ("a", "1", 0.0), {"topic": "t"}, "at least a millisecond"),
    ("id string, content string", ("a", "1"), {"topic": "t"}, "cannot write a column 'content'"),
    (
        "id string, payload string, headers string",
        ("a", "1", '{"sqlqueue-mine": 1}'),
        {"topic": "t"},
        "begins with 'sq",
    ),
    (
        "id string, payload string, headers string",
        ("a", "1", '{"SQLQueue-Batch": 1}'),
        {"topic": "t"},
        "begins with 'sq",
    ),
]


def publish_directly(columns: str, row: tuple[Any, ...], given: dict[str, str]) -> None:
    """Publish a row as a task of Spark's does, in this process."""
    kind = T.StructType.fromDDL(columns)
    registered(of_django(), 2)(given).writer(kind, overwrite=False)
    batch = pa.RecordBatch.from_pylist([dict(zip(kind.names, row))], to_arrow_schema(kind))
    publisher.publish(read(given, WRITE, "a write"), iter([batch]))


@pytest.mark.django_db
def test_what_cannot_be_published_is_refused(spark_session: SparkSession) -> None:
    for columns, row, given, said in REFUSED:
        with pytest.raises((ConfigurationError, InvalidMessage)) as raised:
            publish_directly(columns, row, given)
        assert said in str(raised.value)
    assert not published()


def test_the_log_is_never_overwritten(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", "1")], "id string, payload string")
    with pytest.raises(PySparkException, match="only added to the log"):
        frame.write.format("sqlqueue").option("topic", "t").mode("overwrite").save()


def test_topics_that_nothing_declares_and_those_of_dead_letters_are_refused(
    spark: SparkSession, settings: Any, tmp_path: Path
) -> None:
    publish("former", 1)
    settings.SQLQUEUE = {"TOPICS": {"orders": {}}}
    register(spark)
    row = spark.createDataFrame([("a", "1")], "id string, payload string")
    for topic, said in (
        ("ordres", "Did you mean 'orders'"),
        ("formr", "Did you mean 'former'"),
        ("orders_dlq", "is for the dead letters of 'orders'"),
    ):
        with pytest.raises(PySparkException, match=said):
            write(row, topic=topic)
        for command in (["queuebackfill", topic, "no.csv"], ["queuerehydrate", str(tmp_path), topic, "--all"]):
            with pytest.raises(CommandError, match=said):
                call_command(*command)
    with pytest.raises(ConfigurationError, match="Did you mean 'orders'"):  # a stream joins its group by this
        Membership(LOG, "g", ["ordres"], "earliest", 10.0)
    assert [topic.name for topic in Topic.objects.all()] == ["former"]
    for topic in ("orders", "former"):
        write(row, topic=topic)
    assert set(Message.objects.filter(message_id="a").values_list("topic", flat=True)) == {"orders", "former"}


def rows_of(*ids: str | None) -> Iterator[Any]:
    yield pa.RecordBatch.from_pylist([{"topic": "t", "id": id, "payload": "1"} for id in ids])


@pytest.mark.database("mariadb", "mysql")
@pytest.mark.django_db(transaction=True)
def test_rows_with_ids_take_two_looks_and_an_insert() -> None:
    publisher.publish(SourceOptions(), rows_of("first"))
    for ids, kinds in ((("a", "b"), ["SELECT", "SELECT", "INSERT"]), (("a", "b"), ["SELECT", "SELECT"])):
        with CaptureQueriesContext(connection) as said:
            publisher.publish(SourceOptions(), rows_of(*ids))
        assert [query["sql"].split()[0] for query in said] == kinds
    assert Message.objects.count() == 3


@pytest.mark.database("mariadb", "mysql")
@pytest.mark.django_db(transaction=True)
def test_a_connection_that_changes_values_is_refused(options: Callable[..., None]) -> None:
    options(charset="utf8")
    with pytest.raises(ConfigurationError, match="utf8mb4"):
        publisher.publish(SourceOptions(), rows_of("a"))
    with pytest.raises(ConfigurationError, match="utf8mb4"):
        list(TableScan(MESSAGES, MESSAGES.columns).read(LOG, Portion([], [(1, 2, "")], server="another")))
