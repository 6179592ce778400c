"""The archive as DataFrames: what its files hold, and the figures by which two DataFrames are told to hold the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

SCHEMA_VERSION: Final = 1
MESSAGES, RECEIPTS = "messages", "receipts"

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
# What the folders' names say: topic=flights/date=2013-01-31.
_FOLDERS = {"topic": _TEXT, "date": _TEXT}
PLACE = {MESSAGES: "offset", RECEIPTS: "id"}
TIME = {MESSAGES: "created_at", RECEIPTS: "finished_at"}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a segment's rows come to. total: the sum of their offsets (ids); checksum: of all values of all rows, in any
    order."""

    rows: int
    lowest: int
    highest: int
    total: int
    checksum: str


def schema(kind: str = MESSAGES, segments: bool = False) -> StructType:
    """Return the columns of an archived kind; with `segments` also the segment's folder name."""
    columns = {**_COLUMNS[kind], **({"segment": _TEXT} if segments else {}), **_FOLDERS}
    return StructType([StructField(name, type_) for name, type_ in columns.items()])


def archived(rows: DataFrame, kind: str = MESSAGES) -> DataFrame:
    """Return messages or receipts as the archive holds them: with the UTC date by which the files are parted."""
    date = F.date_format(F.col(TIME[kind]), "yyyy-MM-dd").alias("date")  # the session's time zone is UTC
    columns = [F.col(name).cast(type_).alias(name) for name, type_ in _COLUMNS[kind].items()]
    return rows.select(*columns, F.col("topic"), date)


def figures(kind: str = MESSAGES) -> list[Column]:
    """Return the aggregates that Figures is made of."""
    place = F.col(PLACE[kind])
    values = [column for name in _COLUMNS[kind] for column in (F.col(name), F.col(name).isNull())]
    checksum = F.sum(F.xxhash64(*values, F.col("topic"), F.col("date")).cast("decimal(20,0)"))
    return [
        F.count(F.lit(1)).alias("rows"),
        F.min(place).alias("lowest"),
        F.max(place).alias("highest"),
        F.sum(place.cast("decimal(20,0)")).alias("total"),
        checksum.alias("checksum"),
    ]


def as_figures(found: dict[str, Any]) -> Figures:
    """Return the aggregates' values as Figures."""
    return Figures(
        rows=int(found["rows"] or 0),
        lowest=int(found["lowest"] or 0),
        highest=int(found["highest"] or 0),
        total=int(found["total"] or 0),
        checksum=format(int(found["checksum"] or 0) % 2**64, "016x"),
    )


def figures_of(rows: DataFrame, kind: str = MESSAGES) -> Figures:
    """Compute the figures of archived rows."""
    (found,) = rows.agg(*figures(kind)).collect()  # one row
    return as_figures(found.asDict())


def read_archive(
    spark: SparkSession, folder: str, kind: str = MESSAGES, places: Sequence[str] | None = None
) -> DataFrame:
    """Return everything that an archive holds of a kind. places: these segments or files of it only."""
    reader = spark.read.schema(schema(kind, segments=True))
    if places is None:
        return reader.parquet(f"{folder}/{kind}")
    if not places:
        return spark.createDataFrame([], schema(kind, segments=True))
    return reader.option("basePath", f"{folder}/{kind}").parquet(*places)


def write_parquet(rows: DataFrame, path: str, *parts: str, replace: bool = False) -> None:
    """Write rows as Parquet, parted by columns. replace: instead of the parts that are there already, and of no others.

    Times are written as every reader knows them, with their time zone: a setting of the whole Spark session.
    """
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = rows.write.option("compression", "zstd").partitionBy(*parts)
    if replace:
        writer = writer.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.parquet(path)
