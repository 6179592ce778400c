"""A topic's rows as DataFrames, wherever they are: in the database, in the archive, or in both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.spark.archive import MESSAGES, PLACE, RECEIPTS, TIME, read_archive
from sqlqueue.spark.folder import Folder

DEAD_LETTERS = "dead_letters"


def rows_between(
    spark: SparkSession, table: str, topic: str, first: int, last: int | None, **options: str
) -> DataFrame:
    """Return a topic's messages (or its dead letters) in the database with offsets from `first` to `last`, or its
    receipts with such ids, both ends in it. options: further ones of the data source."""
    low, high = ("fromId", "toId") if table == RECEIPTS else ("from", "to")
    reader = spark.read.format("sqlqueue").option("table", table).option("topic", topic).options(**options)
    reader = reader.option(low, first)
    return (reader if last is None else reader.option(high, last)).load()


@dataclass(frozen=True)
class Log:
    """A topic up to a horizon. frontiers: up to where, by kind, the archive holds it; behind that it is read from the
    database, and what is in both comes once."""

    spark: SparkSession
    topic: str
    horizon: int
    archive: Folder | None
    frontiers: dict[str, int]

    def rows(
        self, kind: str, first: int = 1, last: int | None = None, days: tuple[str, str] | None = None
    ) -> DataFrame:
        """Return messages with offsets, or receipts with ids, from `first` to `last`, both in it, whose time is in the
        UTC days from the first to the last of `days`."""
        last = self.horizon if kind == MESSAGES and last is None else last
        frontier = self.frontiers[kind] if self.archive and (self.archive.root / kind).is_dir() else 0
        options = {"since": days[0], "until": str(date.fromisoformat(days[1]) + timedelta(1))} if days else {}
        live = rows_between(self.spark, kind, self.topic, max(first, frontier + 1), last, **options)
        rows = live
        if self.archive and first <= frontier:
            place = F.col(PLACE[kind])
            old = read_archive(self.spark, str(self.archive.root), kind)
            old = old.where((F.col("topic") == self.topic) & (place >= first) & (place <= frontier))
            old = old if last is None else old.where(place <= last)
            if days:  # the date picks the folders
                old = old.where(F.col("date").between(*days))
            rows = old.drop("segment", "date").unionByName(live)
        if days:
            day = F.date_format(TIME[kind], "yyyy-MM-dd")  # the session's time zone is UTC
            rows = rows.where(day.between(*days))
        return rows

    def dead_letters(self) -> DataFrame:
        """Return the topic's dead letters, which are never archived."""
        return rows_between(self.spark, DEAD_LETTERS, self.topic, 1, self.horizon)
