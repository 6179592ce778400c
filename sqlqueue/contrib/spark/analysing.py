"""The analytics by day: find the days that have new messages or receipts, and compute them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from sqlqueue.contrib.spark.analytics import days_of, errors_by_hour, hourly, of_days
from sqlqueue.contrib.spark.archive_rows import MESSAGES, RECEIPTS, utc_day, write_parquet
from sqlqueue.contrib.spark.hours import Columns, merged
from sqlqueue.contrib.spark.topic_rows import TopicRows


@dataclass(frozen=True, slots=True)
class ComputedHours:
    """The days that were computed, as YYYY-MM-DD, and small DataFrames with a row for each hour."""

    days: list[str]
    statistics: DataFrame
    errors: DataFrame


def analyse(topic_rows: TopicRows, offset: int, receipt: int) -> ComputedHours | None:
    """Compute the days of a topic that have a message above `offset` or a receipt above the id `receipt`.

    Return None if there is no such day. (0, 0) computes all days. A day is computed from all of its rows, so that a
    second run gives the same.
    """
    dead_letters = topic_rows.dead_letters()
    new = [
        days_of(topic_rows.rows(MESSAGES, offset + 1), "created_at"),
        days_of(topic_rows.rows(RECEIPTS, receipt + 1), "finished_at"),
        days_of(dead_letters.where(F.col("offset") > offset), "failed_at"),
    ]
    days = sorted(row["day"] for row in new[0].union(new[1]).union(new[2]).distinct().collect())  # a row a day
    if not days:
        return None
    span = (days[0], days[-1])
    chosen = of_days(topic_rows.rows(RECEIPTS, days=span), "finished_at", days)
    published = of_days(topic_rows.rows(MESSAGES, days=span), "created_at", days)
    statistics = hourly(published, chosen, _messages_of(topic_rows, chosen))
    return ComputedHours(days, statistics, errors_by_hour(of_days(dead_letters, "failed_at", days)))


def write(
    spark: SparkSession, hours: Sequence[Mapping[str, Any]], like: StructType, columns: Columns, path: str
) -> None:
    """Write hours of one topic to Parquet, replacing the folder of each date; values that only the old files hold are
    kept."""
    schema = StructType([field for field in like if field.name != "partial"])
    rows, _ = merged(columns, _written(spark, hours, schema, path), hours)
    if rows:
        frame = spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)
        dated = frame.withColumn("date", utc_day("hour")).coalesce(1)
        write_parquet(dated, path, "topic", "date", replace=True)


def as_rows(hours: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield hours with aware times: PySpark gives naive ones in the time zone of the process."""
    for row in hours.coalesce(1).toLocalIterator():  # one job, not one for each partition
        yield {**row.asDict(), "hour": row["hour"].astimezone(timezone.utc)}


def _written(
    spark: SparkSession, hours: Sequence[Mapping[str, Any]], schema: StructType, path: str
) -> list[dict[str, Any]]:
    """Return the hours that the files hold of the same topics and days."""
    if not Path(path).is_dir():
        return []
    days = {f"{row['hour']:%Y-%m-%d}" for row in hours}
    stored = spark.read.schema(StructType([*schema, StructField("date", StringType())])).parquet(path)
    same = stored.where(F.col("topic").isin({row["topic"] for row in hours}) & F.col("date").isin(days))
    return list(as_rows(same.drop("date")))


def _messages_of(topic_rows: TopicRows, receipts: DataFrame) -> DataFrame:
    """Return the messages in the range of the receipts' offsets, whenever they were published."""
    (bounds,) = receipts.agg(F.min("offset").alias("low"), F.max("offset").alias("high")).collect()  # one row
    return topic_rows.rows(MESSAGES, bounds["low"] or 1, bounds["high"] or 1)
