"""Backfill: rows of files as messages, each key's in the files' order, each row once however often it is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqlqueue.spark.files import POSITION
from sqlqueue.spark.ids import TEXTS, hashed, joined, text_of


def as_messages(
    rows: DataFrame,
    *,
    key: Sequence[str] = (),
    id: Sequence[str] = (),
    payload: Sequence[str] = (),
    time: str = "",
    order: Sequence[str] = (),
) -> DataFrame:
    """Return rows as messages: payload (JSON of the named columns, or of all), key, id and headers.

    key, id: the values' text; those of several columns are joined by "|". Without id columns the id is made of the
    texts of key and payload, so that rows which are equal are one message. time: a column that goes into the header
    "time", in UTC; when a message was published is for the database to say. order: columns that in_order() is to sort
    by; they are kept under names of their own.
    """
    names = list(payload) or [name for name in rows.columns if name not in (*POSITION, TEXTS)]
    body = F.to_json(F.struct(*names), {"ignoreNullFields": "false"})
    place = F.coalesce(_joined(rows, key), F.lit("")) if key else F.lit("")
    name = _joined(rows, id) if id else hashed(rows, key, names)
    columns = [body.alias("payload"), place.alias("key"), name.alias("id"), _headers(time).alias("headers")]
    columns += [F.col(column).alias(f"_order{number:03}") for number, column in enumerate(order)]
    return rows.select(*columns, *(column for column in POSITION if column in rows.columns))


def in_order(messages: DataFrame, writers: int) -> DataFrame:
    """Return messages such that each of `writers` tasks has all messages of its keys, in order.

    A task publishes its rows one after another, so a key's messages get their offsets in this order; also when a run
    was killed and another one goes on.
    """
    lane = F.when(F.col("key") == "", F.col("id")).otherwise(F.col("key"))
    order = sorted(name for name in messages.columns if name.startswith("_order"))
    order += [name for name in POSITION if name in messages.columns]
    spread = messages.repartition(writers, lane)
    return (spread.sortWithinPartitions(*order) if order else spread).drop(*order)


def survey(messages: DataFrame) -> dict[str, Any]:
    """Return what a dry run tells: rows, ids (distinct ones), keys, and the longest id and key."""
    (found,) = messages.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_distinct("id").alias("ids"),
        F.count_distinct("key").alias("keys"),
        F.max(F.length("id")).alias("longest_id"),
        F.max(F.length("key")).alias("longest_key"),
    ).collect()  # one row
    return dict(found.asDict())


def _joined(rows: DataFrame, names: Sequence[str]) -> Column:
    return joined([text_of(rows, name) for name in names])


def _headers(time: str) -> Column:
    if not time:
        return F.lit(None).cast("string")
    at = F.date_format(F.col(time).cast("timestamp"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")  # the session is in UTC
    return F.when(at.isNotNull(), F.to_json(F.struct(at.alias("time"))))
