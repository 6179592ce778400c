"""Rows of files that do not fit are refused, with their file and line, before anything is published."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sqlqueue.contrib.spark.arrow_json import plain
from sqlqueue.contrib.spark.files import FILE, HIDDEN, NUMBERED, RECORD, ROW, UNFIT
from sqlqueue.contrib.spark.ids import named, text_of
from sqlqueue.core.codec import encode
from sqlqueue.exceptions import InvalidMessage

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


def why_unsayable(rows: DataFrame, names: Sequence[str]) -> Column:
    """Return why JSON cannot say one of these columns, or fields of them; NULL if it can say them all."""

    def why(values: pa.Array) -> pa.Array:
        return pa.array([_unsayable(value, values.type, names) for value in values], pa.string())

    columns = [F.col(named(rows, name)).alias(f"_{number}") for number, name in enumerate(names)]
    return F.arrow_udf(why, StringType())(F.struct(*columns))


def _unsayable(value: Any, kind: Any, names: Sequence[str]) -> str | None:
    for field, name in zip(kind, names):
        try:
            encode(plain(value[field.name].as_py(), field.type), f"column {name!r}")
        except InvalidMessage as error:
            return str(error) if str(error).startswith("column") else f"column {name!r}: {error}"
        except (ValueError, ArithmeticError) as error:  # times beyond Python's
            return f"column {name!r}: {error}"
    return None


def refuse_unfit(rows: DataFrame, time: str = "", columns: Sequence[str] = ()) -> None:
    """Read all rows of files; raise InvalidMessage for one that does not fit, or a CSV file with another header.

    time: a column that must hold times. columns: those that the payload is made of; all if it is empty.
    """
    why, record = why_unfit(rows, time), F.lit(None).cast("string")
    if UNFIT in rows.columns:  # what is inferred from text JSON can say, and else UNFIT has said it
        record = F.col(RECORD)
    else:
        names = columns or [name for name in rows.columns if name not in HIDDEN]
        why = F.coalesce(why, why_unsayable(rows, names))
    known = [name for name in HIDDEN if name in rows.columns]  # Python may have no such times as other columns have
    broken = rows.select(*known, why.alias("why"), record.alias("record")).where("why IS NOT NULL")
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
        where, shown = row[FILE], ""
        if row["record"] is not None:
            shown = f": {row['record'][:SHOWN]}"
            if (line := _line_of(rows.sparkSession, row[FILE], row["record"])) is not None:
                where += f", line {line}"
        elif NUMBERED in rows.schema[ROW].metadata:
            where += f", row {row[ROW] + 1}"
        raise InvalidMessage(f"{where}: {row['why']}{shown}. Nothing was published")


def _line_of(spark: SparkSession, file: str, record: str) -> int | None:
    """Return the number of the first line with this text; None if a record is several lines."""
    lines = spark.read.text(file).rdd.zipWithIndex().filter(lambda line: line[0][0] == record).take(1)
    return int(lines[0][1]) + 1 if lines else None
