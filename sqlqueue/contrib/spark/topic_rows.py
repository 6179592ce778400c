"""A topic's rows as DataFrames, from the database, the archive, or both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.contrib.spark.archive_rows import MESSAGES, OFFSET_COLUMN, RECEIPTS, TIME_COLUMN, utc_day
from sqlqueue.contrib.spark.storage import Archive
from sqlqueue.database.log import Log

DEAD_LETTERS = "dead_letters"


def rows_between(
    spark: SparkSession, log: Log, table: str, topic: str, first: int, last: int | None, **options: str
) -> DataFrame:
    """Return a topic's messages (or dead letters) in the database with offsets from `first` to `last`, or its receipts
    with ids in that range, both ends included. alias: of the database. options: further ones of the data source."""
    low, high = ("fromId", "toId") if table == RECEIPTS else ("from", "to")
    reader = (
        spark.read.format("sqlqueue")
        .option("table", table)
        .option("topic", topic)
        .option("alias", log)
        .options(**options)
    )
    reader = reader.option(low, first)
    return (reader if last is None else reader.option(high, last)).load()


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
