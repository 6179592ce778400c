"""The rows of files, with the position of each row and the text of each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from sqlqueue.spark.ids import TEXT, TEXTS

FORMATS = ("csv", "json", "orc", "parquet")
DEFAULTS: dict[str, dict[str, str]] = {"csv": {"header": "true", "inferSchema": "true"}}
POSITION = ("_file", "_block", "_row")
# Options that apply to whole lines: the parser of a single value must not get them.
OF_LINES = {"header", "sep", "delimiter", "mode"}


def read_files(
    spark: SparkSession, paths: Sequence[str], form: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return the files' rows with three more columns, POSITION, that say where each row is.

    The types of CSV and JSON are inferred from all rows, so that one more row may change them. The column `_texts`
    keeps the text of each value in the file, of which as_messages() makes keys and ids.
    """
    given = {**DEFAULTS.get(form, {}), **(options or {})}
    reader = spark.read.format(form).options(**given)
    files = reader.load(list(paths))
    columns = [F.col("*")]
    if form in ("csv", "json"):
        kinds = files.schema
        files = reader.schema(StructType([StructField(kind.name, StringType()) for kind in kinds])).load(list(paths))
        columns = [_typed(kind, form, given).alias(kind.name, metadata={TEXT: kind.name}) for kind in kinds]
        columns.append(F.struct(*(_quoted(kind.name) for kind in kinds)).alias(TEXTS))
    return files.select(
        *columns,
        F.col("_metadata.file_path").alias("_file"),
        F.col("_metadata.file_block_start").alias("_block"),
        F.monotonically_increasing_id().alias("_row"),  # grows along each block
    )


def _typed(kind: StructField, form: str, options: Mapping[str, str]) -> Column:
    """Return a column's texts as values of the inferred type, by the parser that inferred it."""
    text = F.col(_quoted(kind.name))
    if isinstance(kind.dataType, StringType):
        return text
    schema = f"value {kind.dataType.simpleString()}"
    some = {name: value for name, value in options.items() if name.lower() not in OF_LINES}
    if form == "csv":
        return F.from_csv(text, schema, {**some, "sep": "\x01"})["value"]
    if isinstance(kind.dataType, (DateType, TimestampType, TimestampNTZType)):
        return F.from_json(F.to_json(F.struct(text.alias("value"))), schema, some)["value"]
    return F.from_json(F.concat(F.lit('{"value":'), text, F.lit("}")), schema, some)["value"]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
