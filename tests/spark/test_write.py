"""Publishing a DataFrame: once, whatever is run again."""

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sqlqueue import publish
from sqlqueue.core.keys import partition_of
from sqlqueue.models import Message, ScheduledMessage, Topic
from sqlqueue.testing import published

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
    payload = ("🛫 \x00 東京", at, date(2013, 7, 1), price, None, [b"\x00\xff", None], {"a": 0.1})
    rows = [("flights", "N1 ✈", "first", {"trace": "⏱"}, payload), ("others", None, "second", None, None)]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        write(spark.createDataFrame(rows, kind))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    first, second = Message.objects.get(topic="flights"), Message.objects.get(topic="others")
    assert first.payload == {
        "text": "🛫 \x00 東京",
        "at": "2013-07-01T23:59:59.123456Z",
        "day": "2013-07-01",
        "price": "12345678901234567890.123456789012345678",
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
    stored = {message.message_id: message.payload for message in published("texts")}
    assert stored["exact"]["price"] == 12.3
    assert stored["exact"]["text"] == "é"
    assert all(len(stored[f"large {number}"]) == 1_000_000 for number in range(5))


def test_a_delay_waits_in_the_schedule(spark: SparkSession) -> None:
    rows = [("now", "1", None), ("later", "2", 3600.0)]
    write(spark.createDataFrame(rows, "id string, payload string, delay double"), topic="reminders")
    assert [message.message_id for message in published("reminders")] == ["now"]
    waiting = ScheduledMessage.objects.get()
    assert waiting.message_id == "later"
    assert 3500 < (waiting.due_at - waiting.created_at).total_seconds() < 3700


def test_rows_without_ids_need_a_word(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("1",), ("1",)], "payload string")
    write(frame, topic="numbers", ids="none")
    assert len(published("numbers")) == 2


@pytest.mark.parametrize(
    ("columns", "row", "options", "said"),
    [
        ("payload string", ("1",), {"topic": "t"}, "option ids=none if twice is no harm"),
        ("id string, payload string", (None, "1"), {"topic": "t"}, "a row has no id"),
        ("id string, payload string", ("a", "{broken"), {"topic": "t"}, "payload is not JSON text"),
        ("id string, payload string", ("a", "NaN"), {"topic": "t"}, "NaN is no number of JSON"),
        ("id string, payload double", ("a", float("nan")), {"topic": "t"}, "payload is not JSON"),
        ("id string, payload string", ("a", "1"), {}, "option topic, or a column topic"),
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
        ("id string, body string", ("a", "1"), {"topic": "t"}, "cannot write a column 'body'"),
    ],
)
def test_what_cannot_be_published_is_refused(
    spark: SparkSession, columns: str, row: tuple[Any, ...], options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        write(spark.createDataFrame([row], columns), **options)
    assert said in str(raised.value)
    assert not published()


def test_the_log_is_never_overwritten(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", "1")], "id string, payload string")
    with pytest.raises(PySparkException, match="only added to the log"):
        frame.write.format("sqlqueue").option("topic", "t").mode("overwrite").save()
