"""Ids made of values: equal values give the same id, whatever else a file holds, and different values another one."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

TEXTS = "_texts"  # a struct of the columns' texts in the files
TEXT = "sqlqueue.text"  # in a column's metadata: the name of its text; a computed column has none
NO_VALUE = "\\N"


def text_of(rows: DataFrame, name: str) -> Column:
    """Return a column's values as text: the text in the files where it is known, so that the type that other rows lead
    to does not change it."""
    field = rows.select(name).schema.fields[0]
    known = TEXTS in rows.columns
    if known and TEXT in field.metadata:
        return F.col(TEXTS).getField(field.metadata[TEXT])
    column, _, inner = name.partition(".")
    if known and inner and column in rows.columns and TEXT in rows.schema[column].metadata:
        return F.get_json_object(F.col(TEXTS).getField(rows.schema[column].metadata[TEXT]), f"$.{inner}")
    if isinstance(field.dataType, BinaryType):
        return F.base64(name)
    if isinstance(field.dataType, (ArrayType, MapType, StructType)):
        return F.to_json(name)
    return F.col(name).cast("string")


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
