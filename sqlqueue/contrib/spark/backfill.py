"""Backfill: rows of files as messages, those of a key in the files' order; a repeated run publishes no row again.

Ids are made of values: equal values give the same id, whatever else a file holds, and different values another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

from sqlqueue.contrib.spark.files import FILE, HIDDEN, LINE, POSITION, TEXT, TEXTS, UNFIT, quoted
from sqlqueue.contrib.spark.session import refuse_other_zone
from sqlqueue.contrib.spark.writer import to_json
from sqlqueue.exceptions import ConfigurationError

NO_VALUE = "\\N"


def as_messages(
    rows: DataFrame,
    *,
    key: Sequence[str] = (),
    id: Sequence[str] = (),
    payload: Sequence[str] = (),
    time: str = "",
    order: Sequence[str] = (),
) -> DataFrame:
    """Return rows as messages: payload (JSON text of the named columns, or of all), key, id and headers. A row of files
    that does not fit fails when it is published.

    key, id: columns whose values, as text and joined by "|", become key and id. Without id columns the id is a hash of
    key and payload, so that equal rows are one message. payload: columns of the payload; all if it is empty. time: a
    column for the header "time", in UTC. order: columns for in_order() to sort by, kept under names of their own.
    Raises ConfigurationError for columns of a payload that is a line of JSON, which is published as it is.
    """
    refuse_other_zone(rows.sparkSession)
    if LINE in rows.columns and payload:
        raise ConfigurationError("JSON lines are published as they are: to choose columns, read them as a DataFrame")
    names = list(payload) or [name for name in rows.columns if name not in HIDDEN]
    body = F.col(LINE) if LINE in rows.columns else to_json(F.struct(*(_own(rows, name) for name in names)))
    if FILE in rows.columns:
        reasons = [F.col(UNFIT)] if UNFIT in rows.columns else []
        why = F.coalesce(*reasons, no_time(rows, time))
        body = F.when(why.isNull(), body).otherwise(F.raise_error(F.concat(F.col(FILE), F.lit(": "), why)))
    key_text = F.coalesce(joined([text_of(rows, name) for name in key]), F.lit("")) if key else F.lit("")
    id_text = joined([text_of(rows, name) for name in id]) if id else hashed(rows, key, names)
    columns = [body.alias("payload"), key_text.alias("key"), id_text.alias("id"), _headers(rows, time).alias("headers")]
    for number, name in enumerate(order):
        column = _own(rows, name)
        if LINE in rows.columns:  # a text: numbers by their size
            columns.append(column.try_cast("double").alias(f"_order{number:03}"))
        columns.append(column.alias(f"_order{number:03}_"))
    return rows.select(*columns, *(column for column in POSITION if column in rows.columns))


def in_order(messages: DataFrame, writers: int) -> DataFrame:
    """Return messages divided among `writers` tasks: all messages of a key are in one task, in order.

    A task publishes its rows one after another, so a key's messages get their offsets in this order, also when a
    run is killed and another one continues.
    """
    ordering_key = F.when(F.col("key") == "", F.col("id")).otherwise(F.col("key"))
    order = sorted(name for name in messages.columns if name.startswith("_order"))
    order += [name for name in POSITION if name in messages.columns]
    spread = messages.repartition(writers, ordering_key)
    return (spread.sortWithinPartitions(*order) if order else spread).drop(*order)


def totals(messages: DataFrame) -> dict[str, Any]:
    """Return the numbers of rows, distinct (key, id) and keys, and the lengths of the longest id and key."""
    (row,) = messages.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_distinct("key", "id").alias("ids"),
        F.count_distinct("key").alias("keys"),
        F.max(F.length("id")).alias("longest_id"),
        F.max(F.length("key")).alias("longest_key"),
    ).collect()  # one row
    return dict(row.asDict())


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


def no_time(rows: DataFrame, name: str) -> Column:
    """Return why a row has not the time that its column must have, as text; NULL if it has, or none is wanted."""
    if not name:
        return F.lit(None).cast("string")
    text = text_of(rows, name)
    said = F.concat(F.lit(f"column {name!r} has no time: "), text)
    return F.when(text.isNotNull() & _time_of(rows, name).isNull(), said)


def text_of(rows: DataFrame, name: str) -> Column:
    """Return a column's values as text: the text in the files where it is known, so that the type that other rows lead
    to does not change it."""
    own = _own(rows, name)
    if LINE in rows.columns:
        return own
    field = rows.select(own).schema.fields[0]
    if TEXTS in rows.columns and TEXT in field.metadata:
        return F.col(TEXTS).getField(field.metadata[TEXT])
    if isinstance(field.dataType, BinaryType):
        return F.base64(own)
    if isinstance(field.dataType, (ArrayType, MapType, StructType, VariantType)):
        return to_json(own)
    return own.cast("string")


def _own(rows: DataFrame, name: str) -> Column:
    """Return a column, whose name may contain dots, or a field in one; of JSON lines the text of a value in them."""
    if LINE not in rows.columns:
        return F.col(quoted(name) if name in rows.columns else name)
    if name == LINE:
        return F.col(LINE)
    path = "".join(f"['{part}']" for part in name.split("."))
    return F.try_variant_get(F.try_parse_json(LINE), f"${path}", "string")  # which keeps the digits of numbers


def _time_of(rows: DataFrame, name: str) -> Column:
    return _own(rows, name).try_cast("timestamp")


def _headers(rows: DataFrame, time: str) -> Column:
    if not time:
        return F.lit(None).cast("string")
    at = F.date_format(_time_of(rows, time), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")  # the session is in UTC
    return F.when(at.isNotNull(), F.to_json(F.struct(at.alias("time"))))


def publish(messages: DataFrame, topic: str) -> int:
    """Publish rows (payload, key, id, and optionally headers, priority and target_group); return how many rows were
    sent. The database adds those whose ids it does not have."""
    seen = Observation()
    rows = messages.observe(seen, F.count(F.lit(1)).alias("rows"))
    rows.write.format("sqlqueue").mode("append").option("topic", topic).save()
    return int(seen.get["rows"])
