"""The rows of files, with the position of each row and why a row does not fit: those are refused, with their file and
line, before anything is published.

A file of JSON lines is read as its lines, each of which is a payload. Of CSV the texts are read, beside the values that
Spark infers from all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from sqlqueue.contrib.spark.session import refuse_other_zone
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

DEFAULTS = {"csv": {"header": "true", "inferSchema": "true", "enforceSchema": "false"}}
FILE, BLOCK, ROW = POSITION = ("_sqlqueue_file", "_sqlqueue_block", "_sqlqueue_row")
NUMBERED = "sqlqueue.numbered"  # in the metadata of ROW: it is the number of the row in its file, from 0
TEXTS = "_sqlqueue_texts"  # of CSV: a struct of the columns' texts in the file
TEXT = "sqlqueue.text"  # in a column's metadata: the name of its text; a computed column has none
LINE = "_sqlqueue_line"  # of JSON: the line, which is the only column
RECORD = "_sqlqueue_record"  # of CSV: the text of a row that could not be read; else NULL
UNFIT = "_sqlqueue_unfit"  # why a row does not fit; NULL: it does
HIDDEN = (*POSITION, TEXTS, RECORD, UNFIT)
# With column pruning too few columns are not noticed.
OF_CSV = {"columnNameOfCorruptRecord": RECORD, "columnPruning": "false"}
# Options that apply to whole lines: the parser of a single value must not get them.
OF_LINES = {"header", "sep", "delimiter", "mode"}
NO_ROW = "it has not as many columns as the header"
NO_OBJECT = "it is no JSON object"
# What a text of a number has beside its significant digits. A float keeps DIGITS of them whatever the number is.
NO_DIGITS, DIGITS = r"[eEdDfF].*$|[^0-9]", 15
SHOWN = 200  # characters of a row


def read_files(
    spark: SparkSession, paths: Sequence[str], form: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return the files' rows with more columns, HIDDEN: POSITION says where each row is, UNFIT why it is refused.

    The types of CSV are inferred from all rows, so that one more row may change them. The column TEXTS keeps the text
    of each value in the file, of which as_messages() makes keys and ids. JSON has the column LINE only. Raises
    Spark's AnalysisException if no file is there, and ConfigurationError if no row of CSV can be read.
    """
    refuse_other_zone(spark)
    given = {**DEFAULTS.get(form, {}), **(options or {})}
    if form == "json":
        lines = spark.read.options(**given).text(list(paths)).where("trim(value) != ''")
        is_object = F.try_variant_get(F.try_parse_json("value"), "$", "map<string,variant>").isNotNull()
        columns = [F.col("value").alias(LINE), F.when(~is_object, F.lit(NO_OBJECT)).alias(UNFIT)]
        return lines.select(*columns, *_position(form))
    reader = spark.read.format(form).options(**given, **(OF_CSV if form == "csv" else {}))
    files = reader.load(list(paths))
    kinds = [kind for kind in files.schema if kind.name != RECORD]
    if taken := {kind.name for kind in kinds} & set(HIDDEN):
        raise ConfigurationError(f"the files have a column {min(taken)!r}, a name that is used for other things here")
    columns = [F.col(quoted(kind.name)) for kind in kinds]
    if form == "csv":
        if not kinds:
            raise ConfigurationError(f"no row of {', '.join(paths)} can be read as {form}")
        texts = [StructField(name, StringType()) for name in (*(kind.name for kind in kinds), RECORD)]
        files = reader.schema(StructType(texts)).load(list(paths))
        columns = [_typed(kind, given).alias(kind.name, metadata={TEXT: kind.name}) for kind in kinds]
        columns.append(F.struct(*(quoted(kind.name) for kind in kinds)).alias(TEXTS))
        columns += [F.col(RECORD), _unfit(kinds, given).alias(UNFIT)]
    return files.select(*columns, *_position(form))


def quoted(name: str) -> str:
    """Return a column's name such that Spark takes dots for a part of it."""
    return "`" + name.replace("`", "``") + "`"


def refuse_unfit(rows: DataFrame, no_time: Column | None = None) -> None:
    """Read all rows of files; raise InvalidMessage for one that does not fit. no_time: why a row has not the time that
    it must have, NULL if it has it."""
    reasons = [F.col(UNFIT)] if UNFIT in rows.columns else []
    why = F.coalesce(*reasons, F.lit(None).cast("string") if no_time is None else no_time)
    record = next((F.col(name) for name in (RECORD, LINE) if name in rows.columns), F.lit(None).cast("string"))
    known = [name for name in HIDDEN if name in rows.columns]  # Python may have no such times as other columns have
    broken = rows.select(*known, why.alias("why"), record.alias("record")).where("why IS NOT NULL")
    try:
        found = broken.limit(1).collect()
    except (PySparkException, Py4JJavaError) as error:
        if "CSV header" not in str(error):
            raise
        said, _, file = str(error)[str(error).index("CSV header") :].partition("CSV file: ")
        where, differ = file.split()[0], " ".join(said.split())
        raise InvalidMessage(
            f"{where}, line 1: the columns are not those of the first file ({differ}): publish "
            "files with other columns by themselves. Nothing was published"
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


def _position(form: str) -> list[Column]:
    row = F.monotonically_increasing_id().alias(ROW)  # grows along each block
    if form == "parquet":
        row = F.col("_metadata.row_index").alias(ROW, metadata={NUMBERED: True})
    return [F.col("_metadata.file_path").alias(FILE), F.col("_metadata.file_block_start").alias(BLOCK), row]


def _typed(kind: StructField, options: Mapping[str, str]) -> Column:
    """Return a column's texts as values of the inferred type, by the parser that inferred it."""
    text = F.col(quoted(kind.name))
    if isinstance(kind.dataType, StringType):
        return text
    some = {name: value for name, value in options.items() if name.lower() not in OF_LINES}
    return F.from_csv(text, f"value {kind.dataType.simpleString()}", {**some, "sep": "\x01"})["value"]


def _unfit(kinds: Sequence[StructField], options: Mapping[str, str]) -> Column:
    """Return why a row of CSV does not fit, as text; NULL if it does."""
    reasons = [F.when(F.col(RECORD).isNotNull(), F.lit(NO_ROW))]
    for kind in kinds:
        if isinstance(kind.dataType, StringType):
            continue
        text, value = F.col(quoted(kind.name)), _typed(kind, options)

        def because(wrong: Column, what: str, name: str = kind.name, text: Column = text) -> Column:
            return F.when(wrong, F.concat(F.lit(f"column {name!r} has {what}: "), text))

        reasons.append(because(text.isNotNull() & value.isNull(), f"no {kind.dataType.simpleString()}"))
        if isinstance(kind.dataType, DoubleType):
            digits = F.regexp_replace(F.regexp_replace(text, NO_DIGITS, ""), "^0+|0+$", "")
            endless = F.isnan(value) | (F.abs(value) == float("inf"))
            reasons.append(because(endless, "what JSON has no number for"))
            many = "more digits than a float keeps (--option inferSchema=false keeps all)"
            reasons.append(because(F.length(digits) > DIGITS, many))
    return F.coalesce(*reasons)
