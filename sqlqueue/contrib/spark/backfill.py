"""Backfill: rows of files as messages, those of a key in the files' order; a repeated run publishes no row again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from sqlqueue.contrib.spark.files import FILE, HIDDEN, POSITION
from sqlqueue.contrib.spark.ids import hashed, joined, json_text, named, text_of
from sqlqueue.contrib.spark.session import refuse_other_zone
from sqlqueue.contrib.spark.unfit import time_of, why_unfit


def as_messages(
    rows: DataFrame,
    *,
    key: Sequence[str] = (),
    id: Sequence[str] = (),
    payload: Sequence[str] = (),
    time: str = "",
    order: Sequence[str] = (),
) -> DataFrame:
    """Return rows as messages: payload (a struct of the named columns, or of all, of which publishing makes JSON), key,
    id and headers. A row of files that does not fit fails when it is published.

    key, id: columns whose values, as text and joined by "|", become key and id. Without id columns the id is a hash of
    key and payload, so that equal rows are one message. payload: columns of the payload; all if it is empty. time: a
    column for the header "time", in UTC. order: columns for in_order() to sort by, kept under names of their own.
    """
    refuse_other_zone(rows.sparkSession)
    names = list(payload) or [name for name in rows.columns if name not in HIDDEN]
    body = F.struct(*(named(rows, name) for name in names))
    if FILE in rows.columns:
        why = why_unfit(rows, time)
        body = F.when(why.isNull(), body).otherwise(F.raise_error(F.concat(F.col(FILE), F.lit(": "), why)))
    key_text = F.coalesce(_joined(rows, key), F.lit("")) if key else F.lit("")
    id_text = _joined(rows, id) if id else hashed(rows, key, names)
    columns = [body.alias("payload"), key_text.alias("key"), id_text.alias("id"), _headers(rows, time).alias("headers")]
    columns += [F.col(named(rows, column)).alias(f"_order{number:03}") for number, column in enumerate(order)]
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


def _joined(rows: DataFrame, names: Sequence[str]) -> Column:
    return joined([text_of(rows, name) for name in names])


def shown(messages: DataFrame) -> DataFrame:
    """Return messages with the payload's JSON text, as publishing makes it."""
    return messages.withColumn("payload", json_text("payload"))


def _headers(rows: DataFrame, time: str) -> Column:
    if not time:
        return F.lit(None).cast("string")
    at = F.date_format(time_of(rows, time), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")  # the session is in UTC
    return F.when(at.isNotNull(), F.to_json(F.struct(at.alias("time"))))


def publish(messages: DataFrame, topic: str) -> int:
    """Publish rows (payload, key, id, and optionally headers, priority and target_group); return how many rows were
    sent. The database adds those whose ids it does not have."""
    seen = Observation()
    rows = messages.observe(seen, F.count(F.lit(1)).alias("rows"))
    rows.write.format("sqlqueue").mode("append").option("topic", topic).save()
    return int(seen.get["rows"])
