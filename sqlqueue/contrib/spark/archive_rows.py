"""The archive's rows: the columns of its files, days and hours in UTC whatever the session's time zone is, and totals
by which two DataFrames are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from sqlqueue.database.log import Log

HOUR = 3_600_000_000  # microseconds
DAY = 24 * HOUR
SCHEMA_VERSION: Final = 1
MESSAGES, RECEIPTS = "messages", "receipts"
KINDS: Final = (MESSAGES, RECEIPTS)

_LONG, _INT, _TEXT, _AT = LongType(), IntegerType(), StringType(), TimestampType()
_COLUMNS = {
    MESSAGES: {
        "offset": _LONG,
        "partition": _INT,
        "priority": _INT,
        "key": _TEXT,
        "id": _TEXT,
        "payload": _TEXT,
        "headers": _TEXT,
        "created_at": _AT,
        "target_group": _TEXT,
        "body": BinaryType(),
    },
    RECEIPTS: {
        "id": _LONG,
        "group": _TEXT,
        "partition": _INT,
        "offset": _LONG,
        "outcome": _TEXT,
        "attempts": _INT,
        "worker": _TEXT,
        "started_at": _AT,
        "finished_at": _AT,
    },
}
# The columns that are in folders' names: topic=flights/date=2013-01-31.
_FOLDERS = {"topic": _TEXT, "date": _TEXT}
OFFSET_COLUMN = {MESSAGES: "offset", RECEIPTS: "id"}
TIME_COLUMN = {MESSAGES: "created_at", RECEIPTS: "finished_at"}


@dataclass(frozen=True, slots=True)
class SegmentTotals:
    """Totals of a segment's rows. lowest, highest: offsets (or ids of receipts); total: their sum; checksum: of all
    values of all rows, in any order, as 16 hexadecimal digits."""

    rows: int
    lowest: int
    highest: int
    total: int
    checksum: str


def schema(kind: str = MESSAGES, segments: bool = False) -> StructType:
    """Return the archive's schema of messages or receipts; segments: with the name of the segment's folder."""
    columns = {**_COLUMNS[kind], **({"segment": _TEXT} if segments else {}), **_FOLDERS}
    return StructType([StructField(name, type_) for name, type_ in columns.items()])


def archived(rows: DataFrame, kind: str = MESSAGES) -> DataFrame:
    """Return messages or receipts with the archive's columns, among them the UTC date that partitions the files."""
    date = utc_day(TIME_COLUMN[kind]).alias("date")
    columns = [F.col(name).cast(type_).alias(name) for name, type_ in _COLUMNS[kind].items()]
    return rows.select(*columns, F.col("topic"), date)


def total_columns(kind: str = MESSAGES) -> list[Column]:
    """Return the aggregates that SegmentTotals consists of."""
    offset = F.col(OFFSET_COLUMN[kind])
    values = [column for name in _COLUMNS[kind] for column in (F.col(name), F.col(name).isNull())]
    checksum = F.sum(F.xxhash64(*values, F.col("topic"), F.col("date")).cast("decimal(20,0)"))
    return [
        F.count(F.lit(1)).alias("rows"),
        F.min(offset).alias("lowest"),
        F.max(offset).alias("highest"),
        F.sum(offset.cast("decimal(20,0)")).alias("total"),
        checksum.alias("checksum"),
    ]


def as_totals(values: dict[str, Any]) -> SegmentTotals:
    """Return the aggregates' values as SegmentTotals."""
    return SegmentTotals(
        rows=int(values["rows"] or 0),
        lowest=int(values["lowest"] or 0),
        highest=int(values["highest"] or 0),
        total=int(values["total"] or 0),
        checksum=format(int(values["checksum"] or 0) % 2**64, "016x"),
    )


def totals_of(rows: DataFrame, kind: str = MESSAGES) -> SegmentTotals:
    """Compute the totals of archived rows."""
    (row,) = rows.agg(*total_columns(kind)).collect()  # one row
    return as_totals(row.asDict())


def rows_between(
    spark: SparkSession, log: Log, table: str, topic: str, first: int, last: int | None, **options: str
) -> DataFrame:
    """Return a topic's messages (or dead letters) in the database with offsets from `first` to `last`, or its receipts
    with ids in that range, both ends included. options: further ones of the data source."""
    low, high = ("fromId", "toId") if table == RECEIPTS else ("from", "to")
    reader = (
        spark.read.format("sqlqueue")
        .option("table", table)
        .option("topic", topic)
        .option("database", log.alias)
        .options(**options)
    )
    reader = reader.option(low, first)
    return (reader if last is None else reader.option(high, last)).load()


def utc_hour(column: str) -> Column:
    """Return the hours that times lie in, as times."""
    return F.timestamp_micros(_floor(column, HOUR))


def utc_day(column: str) -> Column:
    """Return the days that times lie in, as YYYY-MM-DD."""
    return F.date_from_unix_date((_floor(column, DAY) / F.lit(DAY)).cast("int")).cast("string")


def _floor(column: str, unit: int) -> Column:
    at = F.unix_micros(F.col(column))
    return at - F.pmod(at, F.lit(unit))
