"""The rows of files, with the position of each row, the text of each value, and why a row does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DateType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sqlqueue.contrib.spark.floats import why_no_float
from sqlqueue.contrib.spark.ids import TEXT, TEXTS, quoted
from sqlqueue.contrib.spark.session import refuse_other_zone
from sqlqueue.exceptions import ConfigurationError

DEFAULTS: dict[str, dict[str, str]] = {"csv": {"header": "true", "inferSchema": "true", "enforceSchema": "false"}}
FILE, BLOCK, ROW = POSITION = ("_sqlqueue_file", "_sqlqueue_block", "_sqlqueue_row")
NUMBERED = "sqlqueue.numbered"  # in the metadata of ROW: it is the number of the row in its file, from 0
RECORD = "_sqlqueue_record"  # the text of a row that could not be read; else NULL
UNFIT = "_sqlqueue_unfit"  # why a row does not fit; NULL: it does
HIDDEN = (*POSITION, TEXTS, RECORD, UNFIT)
OURS: dict[str, dict[str, str]] = {
    "csv": {"columnNameOfCorruptRecord": RECORD, "columnPruning": "false"},  # with it too few columns are not noticed
    "json": {"columnNameOfCorruptRecord": RECORD},
}
UNREADABLE = {"csv": "it has not as many columns as the header", "json": "it is no JSON object"}
AS_TEXT = {"csv": "inferSchema=false", "json": "prefersDecimal=true"}  # keeps all digits of numbers
# Options that apply to whole lines: the parser of a single value must not get them.
OF_LINES = {"header", "sep", "delimiter", "mode"}


def read_files(
    spark: SparkSession, paths: Sequence[str], form: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return the files' rows with more columns, HIDDEN: POSITION says where each row is, UNFIT why it is refused.

    The types of CSV and JSON are inferred from all rows, so that one more row may change them. The column TEXTS keeps
    the text of each value in the file, of which as_messages() makes keys and ids. Raises ConfigurationError if no file
    is there, or if no row of CSV or JSON can be read.
    """
    refuse_other_zone(spark)
    given = {**DEFAULTS.get(form, {}), **(options or {}), **OURS.get(form, {})}
    reader = spark.read.format(form).options(**given)
    found = expanded(spark, paths)
    files = reader.load(found)
    kinds = [kind for kind in files.schema if kind.name != RECORD]
    if taken := {kind.name for kind in kinds} & set(HIDDEN):
        raise ConfigurationError(f"the files have a column {min(taken)!r}, a name that is used for other things here")
    columns = [F.col(quoted(kind.name)) for kind in kinds]
    if form in OURS:
        if not kinds:
            raise ConfigurationError(f"no row of {', '.join(paths)} can be read as {form}")
        texts = [StructField(name, StringType()) for name in (*(kind.name for kind in kinds), RECORD)]
        files = reader.schema(StructType(texts)).load(found)
        columns = [_typed(kind, form, given).alias(kind.name, metadata={TEXT: kind.name}) for kind in kinds]
        columns.append(F.struct(*(quoted(kind.name) for kind in kinds)).alias(TEXTS))
        columns += [F.col(RECORD), _unfit(kinds, form, given).alias(UNFIT)]
    row = F.monotonically_increasing_id().alias(ROW)  # grows along each block
    if form == "parquet":
        row = F.col("_metadata.row_index").alias(ROW, metadata={NUMBERED: True})
    return files.select(
        *columns,
        F.col("_metadata.file_path").alias(FILE),
        F.col("_metadata.file_block_start").alias(BLOCK),
        row,
    )


def expanded(spark: SparkSession, paths: Iterable[str]) -> list[str]:
    """Return the files and folders that paths name, which may have wildcards. Raises ConfigurationError for a path with
    nothing there.

    Spark itself would log a failure of Java's for a single path with wildcards.
    """
    jvm, configuration = spark._jvm, spark.sparkContext._jsc.hadoopConfiguration()
    assert jvm is not None
    found: list[str] = []
    for text in paths:
        path = jvm.org.apache.hadoop.fs.Path(text)
        some = path.getFileSystem(configuration).globStatus(path)
        if not some:
            raise ConfigurationError(f"there is no file {text}")
        found += [str(status.getPath().toString()) for status in some]
    return found


def _typed(kind: StructField, form: str, options: Mapping[str, str]) -> Column:
    """Return a column's texts as values of the inferred type, by the parser that inferred it."""
    text = F.col(quoted(kind.name))
    if isinstance(kind.dataType, StringType):
        return text
    some = {name: value for name, value in options.items() if name.lower() not in OF_LINES}
    if form == "csv":
        return F.from_csv(text, f"value {kind.dataType.simpleString()}", {**some, "sep": "\x01"})["value"]
    schema = StructType([StructField("value", kind.dataType)])
    if isinstance(kind.dataType, (DateType, TimestampType, TimestampNTZType)):
        return F.from_json(F.to_json(F.struct(text.alias("value"))), schema, some)["value"]
    return F.from_json(F.concat(F.lit('{"value":'), text, F.lit("}")), schema, some)["value"]


def _unfit(kinds: Sequence[StructField], form: str, options: Mapping[str, str]) -> Column:
    """Return why a row does not fit, as text; NULL if it does."""
    reasons = [F.when(F.col(RECORD).isNotNull(), F.lit(UNREADABLE[form]))]
    for kind in kinds:
        if isinstance(kind.dataType, StringType):
            continue
        text, value = F.col(quoted(kind.name)), _typed(kind, form, options)
        no_value = f"column {kind.name!r} has no {kind.dataType.simpleString()}: "
        reasons.append(F.when(text.isNotNull() & value.isNull(), F.concat(F.lit(no_value), text)))
        if (why := why_no_float(kind.dataType, f"--option {AS_TEXT[form]} keeps all")) is not None:
            reasons.append(F.concat(F.lit(f"column {kind.name!r} has "), why(text)))
    return F.coalesce(*reasons)
