"""Analytics of messages, receipts and dead letters by hour, topic and group: plain functions of DataFrames."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sqlqueue.contrib.spark.archive_rows import utc_day, utc_hour
from sqlqueue.core.fingerprint import fingerprint

OUTCOMES: Final = ("acked", "retried", "postponed", "dead")
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def published_by_hour(messages: DataFrame) -> DataFrame:
    """Return, by hour and topic, how many messages were published, how many keys they have, the key with the most
    messages, and how many these are. `consumer_group` is empty in these rows."""
    hour = utc_hour("created_at")
    keyed = messages.groupBy(hour.alias("hour"), "topic", "key").agg(
        F.count(F.lit(1)).alias("messages"), F.max("offset").alias("last_offset")
    )
    busiest = F.when(F.col("key") != "", F.struct("messages", "key"))
    hourly = keyed.groupBy("hour", "topic").agg(
        F.sum("messages").alias("published"),
        F.count(busiest).alias("key_count"),
        F.max(busiest).alias("busiest"),
        F.max("last_offset").alias("last_offset"),
    )
    return hourly.select(
        "hour",
        "topic",
        F.lit("").alias("consumer_group"),
        "published",
        "key_count",
        F.coalesce("busiest.key", F.lit("")).alias("top_key"),
        F.coalesce("busiest.messages", F.lit(0)).alias("top_key_messages"),
        "last_offset",
    )


def settled_by_hour(receipts: DataFrame, messages: DataFrame) -> DataFrame:
    """Return, by hour, topic and group, how many deliveries ended in which way, how many were redeliveries, and the
    percentiles of the handlers' time and of the time from publishing to the ack, in seconds.

    messages: those that the receipts belong to, as far as they still exist. Where some are missing, `partial` is true,
    and the time from publishing is that of the others.
    """
    # No broadcast join: it would collect a whole log on the driver, since Parquet's compressed size looks small.
    message = [name for name in ("database", "offset") if name in receipts.columns]  # an offset is one database's
    published = messages.select(*message, "created_at").hint("merge")
    rows = receipts.join(published, message, "left")
    acked = F.col("outcome") == "acked"
    delivered = F.col("outcome") != "replayed"  # the receipt of an operator's replay is none of a delivery
    handler = F.when(delivered, _milliseconds("started_at", "finished_at"))
    end_to_end = F.when(acked, _milliseconds("created_at", "finished_at"))
    return rows.groupBy(utc_hour("finished_at").alias("hour"), "topic", F.col("group").alias("consumer_group")).agg(
        *(F.count(F.when(F.col("outcome") == outcome, 1)).alias(outcome) for outcome in OUTCOMES),
        F.count(F.when(delivered & (F.col("attempts") > 1), 1)).alias("redelivered"),
        *(_percentile(handler, share).alias(f"handler_{name}") for name, share in PERCENTILES.items()),
        *(_percentile(end_to_end, share).alias(f"end_to_end_{name}") for name, share in PERCENTILES.items()),
        F.max("id").alias("last_receipt"),
        (F.count(F.when(acked, 1)) > F.count(end_to_end)).alias("partial"),
    )


def hourly(messages: DataFrame, receipts: DataFrame, known: DataFrame) -> DataFrame:
    """Return published_by_hour and settled_by_hour as one DataFrame: a row for each hour and topic, and one for each
    hour, topic and group. known: the messages that the receipts belong to."""
    rows = published_by_hour(messages).unionByName(settled_by_hour(receipts, known), allowMissingColumns=True)
    counts = ("published", "key_count", "top_key_messages", *OUTCOMES, "redelivered", "last_offset", "last_receipt")
    return rows.fillna(0, list(counts)).fillna("", ["top_key"]).fillna(False, ["partial"])


def errors_by_hour(dead_letters: DataFrame) -> DataFrame:
    """Return, by hour, topic, group and fingerprint, how many dead letters there are, and the offset of one as an
    example."""
    fingerprint_of = F.udf(fingerprint, StringType(), useArrow=False)  # the same as in the dead letters' rows
    rows = dead_letters.select(
        utc_hour("failed_at").alias("hour"),
        F.col("original_topic").alias("topic"),
        F.col("failed_group").alias("consumer_group"),
        fingerprint_of(F.coalesce("last_error", F.lit(""))).alias("fingerprint"),
        F.col("original_offset").alias("example"),
    )
    return rows.groupBy("hour", "topic", "consumer_group", "fingerprint").agg(
        F.count(F.lit(1)).alias("dead"), F.max("example").alias("example")
    )


def days_of(rows: DataFrame, column: str) -> DataFrame:
    """Return the UTC days that a column's times lie in."""
    return rows.select(utc_day(column).alias("day")).distinct()


def of_days(rows: DataFrame, column: str, days: list[str]) -> DataFrame:
    """Return the rows whose time lies in one of the days."""
    return rows.where(utc_day(column).isin(days))


def _milliseconds(start: str, end: str) -> Column:
    """Return whole milliseconds: an exact percentile keeps every distinct value, so there should be few."""
    return F.round((F.unix_micros(F.col(end)) - F.unix_micros(F.col(start))) / 1000).cast("long")


def _percentile(milliseconds: Column, share: float) -> Column:
    return F.round(F.percentile(milliseconds, F.lit(share)) / 1000, 6)
