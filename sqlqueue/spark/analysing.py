"""The analytics, day by day: which days have something new, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from sqlqueue.core.hours import Columns, merged
from sqlqueue.spark.analytics import days_of, errors_by_hour, hourly, of_days
from sqlqueue.spark.archive import MESSAGES, RECEIPTS, write_parquet
from sqlqueue.spark.log import Log


@dataclass(frozen=True, slots=True)
class Found:
    """The days that were computed, and what they come to: small DataFrames, a row for each hour."""

    days: list[str]
    statistics: DataFrame
    errors: DataFrame


def analyse(log: Log, offset: int, receipt: int) -> Found | None:
    """Compute every day of a topic that has a message above this offset, or a receipt above this id; None if none has.
    (0, 0) computes all days.

    A day is computed from all that there is of it: to do it again gives the same.
    """
    dead = log.dead_letters()
    new = [
        days_of(log.rows(MESSAGES, offset + 1), "created_at"),
        days_of(log.rows(RECEIPTS, receipt + 1), "finished_at"),
        days_of(dead.where(F.col("offset") > offset), "failed_at"),
    ]
    days = sorted(row["day"] for row in new[0].union(new[1]).union(new[2]).distinct().collect())  # a row a day
    if not days:
        return None
    span = (days[0], days[-1])
    chosen = of_days(log.rows(RECEIPTS, days=span), "finished_at", days)
    statistics = hourly(of_days(log.rows(MESSAGES, days=span), "created_at", days), chosen, _known(log, chosen))
    return Found(days, statistics, errors_by_hour(of_days(log.dead_letters(), "failed_at", days)))


def write(
    spark: SparkSession, hours: Sequence[Mapping[str, Any]], like: StructType, columns: Columns, path: str
) -> None:
    """Write hours of one topic to Parquet, a folder for each date, which is replaced; but what a file knows and the
    hours do not is kept."""
    schema = StructType([field for field in like if field.name != "partial"])
    rows, _ = merged(columns, _written(spark, hours, schema, path), hours)
    if rows:
        frame = spark.createDataFrame([tuple(row[name] for name in schema.names) for row in rows], schema)
        dated = frame.withColumn("date", F.date_format("hour", "yyyy-MM-dd")).coalesce(1)
        write_parquet(dated, path, "topic", "date", replace=True)


def as_rows(hours: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield hours with aware times; PySpark gives them without their zone, in the process's."""
    for row in hours.coalesce(1).toLocalIterator():  # one job, not one for each partition
        yield {**row.asDict(), "hour": row["hour"].astimezone(timezone.utc)}


def _written(
    spark: SparkSession, hours: Sequence[Mapping[str, Any]], schema: StructType, path: str
) -> list[dict[str, Any]]:
    """Return what the files say already of the same topics and days."""
    if not Path(path).is_dir():
        return []
    days = {f"{row['hour']:%Y-%m-%d}" for row in hours}
    there = spark.read.schema(StructType([*schema, StructField("date", StringType())])).parquet(path)
    same = there.where(F.col("topic").isin({row["topic"] for row in hours}) & F.col("date").isin(days))
    return list(as_rows(same.drop("date")))


def _known(log: Log, receipts: DataFrame) -> DataFrame:
    """Return the messages that can be those of the receipts, whenever they were published."""
    (bounds,) = receipts.agg(F.min("offset").alias("low"), F.max("offset").alias("high")).collect()  # one row
    return log.rows(MESSAGES, bounds["low"] or 1, bounds["high"] or 1)
