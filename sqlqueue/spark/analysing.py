"""The analytics, day by day: which days have something new, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from sqlqueue.spark.analytics import days_of, errors_by_hour, hourly, of_days
from sqlqueue.spark.archive import MESSAGES, RECEIPTS, write_parquet
from sqlqueue.spark.log import Log

# A receipt's id is taken before its settle commits: look again at so many ids below the last one.
LATE_RECEIPTS = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """The days that were computed, and what they come to: small DataFrames, a row for each hour."""

    days: list[str]
    statistics: DataFrame
    errors: DataFrame


def analyse(log: Log, offset: int, receipt: int) -> Found | None:
    """Compute every day of a topic that has something above this offset, or about this receipt's id, late rows
    included; None if none has. (0, 0) computes all days.

    A day is computed from all that there is of it: to do it again gives the same.
    """
    late = max(0, receipt - LATE_RECEIPTS)
    dead = log.dead_letters()
    new = [
        days_of(log.rows(MESSAGES, offset + 1), "created_at"),
        days_of(log.rows(RECEIPTS, late + 1), "finished_at"),
        days_of(dead.where(F.col("offset") > offset), "failed_at"),
    ]
    days = sorted(row["day"] for row in new[0].union(new[1]).union(new[2]).distinct().collect())  # a row a day
    if not days:
        return None
    span = (days[0], days[-1])
    chosen = of_days(log.rows(RECEIPTS, days=span), "finished_at", days)
    statistics = hourly(of_days(log.rows(MESSAGES, days=span), "created_at", days), chosen, _known(log, chosen))
    return Found(days, statistics, errors_by_hour(of_days(log.dead_letters(), "failed_at", days)))


def write(rows: DataFrame, folder: str, name: str) -> None:
    """Write hours to Parquet, a folder for each date; a date that is there already is replaced."""
    dated = rows.withColumn("date", F.date_format("hour", "yyyy-MM-dd")).coalesce(1)
    write_parquet(dated, f"{folder}/{name}", "topic", "date", replace=True)


def _known(log: Log, receipts: DataFrame) -> DataFrame:
    """Return the messages that can be those of the receipts, whenever they were published."""
    (bounds,) = receipts.agg(F.min("offset").alias("low"), F.max("offset").alias("high")).collect()  # one row
    return log.rows(MESSAGES, bounds["low"] or 1, bounds["high"] or 1)
