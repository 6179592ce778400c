"""Rows of files that do not fit are refused, with their file and line, before anything is published."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.exceptions import InvalidMessage
from sqlqueue.spark.files import FILE, RECORD, UNFIT
from sqlqueue.spark.ids import named, text_of

# What Spark says of a CSV file whose header is another one.
HEADER = re.compile(
    r"(?:CSV header does not conform|Number of column in CSV header)[^\n]*\n(.*?)\n\s*CSV file: (\S+)", re.DOTALL
)
SHOWN = 200  # characters of a row


def time_of(rows: DataFrame, name: str) -> Column:
    """Return a column as times, NULL for what is none."""
    return F.col(named(rows, name)).try_cast("timestamp")


def why_unfit(rows: DataFrame, time: str = "") -> Column:
    """Return why a row is refused, as text; NULL if it is not. time: a column that must hold times."""
    known = F.col(UNFIT) if UNFIT in rows.columns else F.lit(None).cast("string")
    if not time:
        return known
    text = text_of(rows, time)
    no_time = F.concat(F.lit(f"column {time!r} has no time: "), text)
    return F.coalesce(known, F.when(text.isNotNull() & time_of(rows, time).isNull(), no_time))


def refuse_unfit(rows: DataFrame, time: str = "") -> None:
    """Read all rows of files; raise InvalidMessage for one that does not fit, or a CSV file with another header.

    time: a column that must hold times. Only CSV and JSON are read for this, and others if `time` is named.
    """
    if UNFIT not in rows.columns and not time:
        return
    record = F.col(RECORD) if RECORD in rows.columns else F.lit(None).cast("string")
    broken = rows.select("*", why_unfit(rows, time).alias("why"), record.alias("record")).where("why IS NOT NULL")
    try:
        found = broken.limit(1).collect()
    except (PySparkException, Py4JJavaError) as error:
        other = HEADER.search(str(error))
        if other is None:
            raise
        said, file = other.groups()
        differ = "; ".join(map(str.strip, said.splitlines()))
        raise InvalidMessage(
            f"{file}, line 1: the columns are not those of the first file ({differ}): publish files with other columns "
            "by themselves. Nothing was published"
        ) from None
    for row in found:
        line = _line_of(rows.sparkSession, row[FILE], row["record"]) if row["record"] is not None else None
        where = row[FILE] if line is None else f"{row[FILE]}, line {line}"
        shown = "" if row["record"] is None else f": {row['record'][:SHOWN]}"
        raise InvalidMessage(f"{where}: {row['why']}{shown}. Nothing was published")


def _line_of(spark: SparkSession, file: str, record: str) -> int | None:
    """Return the number of the first line with this text; None if a record is several lines."""
    lines = spark.read.text(file).rdd.zipWithIndex().filter(lambda line: line[0][0] == record).take(1)
    return int(lines[0][1]) + 1 if lines else None
