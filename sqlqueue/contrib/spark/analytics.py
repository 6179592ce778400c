"""Analytics of messages, receipts and dead letters by hour, topic and group: plain functions of DataFrames, and which
days of a topic have something new."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta, timezone
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sqlqueue.contrib.spark.archive import Archive
from sqlqueue.contrib.spark.archive_rows import OFFSET_COLUMN, TIME_COLUMN, rows_between, utc_day, utc_hour
from sqlqueue.contrib.spark.manifest import MESSAGES, RECEIPTS
from sqlqueue.core.outcomes import fingerprint
from sqlqueue.database.log import Log

OUTCOMES: Final = ("acked", "retried", "postponed", "dead")
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True)
class TopicRows:
    """A topic's rows on one database, up to a horizon. frontiers: by kind, the highest offset (id) in the archive;
    later rows are read from the database, so that rows in both are read once."""

    spark: SparkSession
    log: Log
    topic: str
    horizon: int
    archive: Archive | None
    frontiers: dict[str, int]

    def rows(
        self, kind: str, first: int = 1, last: int | None = None, days: tuple[str, str] | None = None
    ) -> DataFrame:
        """Return messages with offsets, or receipts with ids, from `first` to `last`, both included. days: the
        first and the last UTC day of what is wanted, as YYYY-MM-DD."""
        last = self.horizon if kind == MESSAGES and last is None else last
        frontier = self.frontiers[kind] if self.archive and self.archive.has(kind) else 0
        options = {"since": days[0], "until": str(date.fromisoformat(days[1]) + timedelta(1))} if days else {}
        live = rows_between(self.spark, self.log, kind, self.topic, max(first, frontier + 1), last, **options)
        rows = live = live.drop("database")  # there is one
        if self.archive and first <= frontier:
            offset = F.col(OFFSET_COLUMN[kind])
            old = self.archive.read(self.spark, kind, topic=self.topic, days=days)
            old = old.where((offset >= first) & (offset <= frontier))
            old = old if last is None else old.where(offset <= last)
            rows = old.drop("segment", "date").unionByName(live)
        if days:
            rows = rows.where(utc_day(TIME_COLUMN[kind]).between(*days))
        return rows

    def dead_letters(self) -> DataFrame:
        """Return the topic's dead letters, which are never archived."""
        return rows_between(self.spark, self.log, DEAD_LETTERS, self.topic, 1, self.horizon)


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


def as_rows(hours: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield hours with aware times: PySpark gives naive ones in the time zone of the process."""
    for row in hours.coalesce(1).toLocalIterator():  # one job, not one for each partition
        yield {**row.asDict(), "hour": row["hour"].astimezone(timezone.utc)}


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


def _messages_of(topic_rows: TopicRows, receipts: DataFrame) -> DataFrame:
    """Return the messages in the range of the receipts' offsets, whenever they were published."""
    (bounds,) = receipts.agg(F.min("offset").alias("low"), F.max("offset").alias("high")).collect()  # one row
    return topic_rows.rows(MESSAGES, bounds["low"] or 1, bounds["high"] or 1)


def _milliseconds(start: str, end: str) -> Column:
    """Return whole milliseconds: an exact percentile keeps every distinct value, so there should be few."""
    return F.round((F.unix_micros(F.col(end)) - F.unix_micros(F.col(start))) / 1000).cast("long")


def _percentile(milliseconds: Column, share: float) -> Column:
    return F.round(F.percentile(milliseconds, F.lit(share)) / 1000, 6)
