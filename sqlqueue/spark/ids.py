"""Ids made of values: the same values give the same id, whatever else a file holds, and different ones never do."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

TEXTS = "_texts"  # a struct of the columns' texts as the files have them
TEXT = "sqlqueue.text"  # in a column's metadata: the name of its text. A column that is computed anew has none
NO_VALUE = "\\N"


def text_of(rows: DataFrame, name: str) -> Column:
    """Return a column's values as text: as the files have it where that is known, so that no other row's type changes
    it."""
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
    """Return texts as one: a single one as it is; several with | between them, in which \\ and | are escaped by a \\
    and a missing one is \\N."""
    if len(texts) == 1:
        return texts[0]
    escaped = (F.regexp_replace(text, r"([\\|])", r"\\$1") for text in texts)
    return F.concat_ws("|", *(F.coalesce(text, F.lit(NO_VALUE)) for text in escaped))


def hashed(rows: DataFrame, *parts: Sequence[str]) -> Column:
    """Return a hash of the texts of some lists of columns. A column without a value adds nothing to it."""
    lists = [F.struct(*(text_of(rows, name).alias(name) for name in part)) for part in parts if part]
    named = (column.alias(f"_{number}") for number, column in enumerate(lists))
    return F.sha2(F.to_json(F.struct(*named), {"ignoreNullFields": "true"}), 256)
