"""Ids made of values: equal values give the same id, whatever else a file holds, and different values another one."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, VariantType

from sqlqueue.contrib.spark.arrow_json import json_texts

TEXTS = "_sqlqueue_texts"  # a struct of the columns' texts in the files
TEXT = "sqlqueue.text"  # in a column's metadata: the name of its text; a computed column has none
NO_VALUE = "\\N"


json_text = F.arrow_udf(json_texts, StringType())


def quoted(name: str) -> str:
    """Return a column's name such that Spark takes dots for a part of it."""
    return "`" + name.replace("`", "``") + "`"


def named(rows: DataFrame, name: str) -> str:
    """Return a name for Spark: of a column, which may contain dots, or of a field in one."""
    return quoted(name) if name in rows.columns else name


def text_of(rows: DataFrame, name: str) -> Column:
    """Return a column's values as text: the text in the files where it is known, so that the type that other rows lead
    to does not change it."""
    own = named(rows, name)
    field = rows.select(own).schema.fields[0]
    known = TEXTS in rows.columns
    if known and TEXT in field.metadata:
        return F.col(TEXTS).getField(field.metadata[TEXT])
    column, _, inner = name.partition(".")
    if known and inner and name not in rows.columns and column in rows.columns and TEXT in rows.schema[column].metadata:
        return F.get_json_object(F.col(TEXTS).getField(rows.schema[column].metadata[TEXT]), f"$.{inner}")
    if isinstance(field.dataType, BinaryType):
        return F.base64(own)
    if isinstance(field.dataType, (ArrayType, MapType, StructType, VariantType)):
        return json_text(F.col(own))
    return F.col(own).cast("string")


def joined(texts: Sequence[Column]) -> Column:
    """Return several texts joined by |, with \\ and | escaped by \\ and NULL as \\N; a single text is unchanged."""
    if len(texts) == 1:
        return texts[0]
    escaped = (F.regexp_replace(text, r"([\\|])", r"\\$1") for text in texts)
    return F.concat_ws("|", *(F.coalesce(text, F.lit(NO_VALUE)) for text in escaped))


def hashed(rows: DataFrame, *parts: Sequence[str]) -> Column:
    """Return a hash of the texts of lists of columns. NULL adds nothing to it."""
    lists = [F.struct(*(text_of(rows, name).alias(name) for name in part)) for part in parts if part]
    named = (column.alias(f"_{number}") for number, column in enumerate(lists))
    return F.sha2(F.to_json(F.struct(*named), {"ignoreNullFields": "true"}), 256)
