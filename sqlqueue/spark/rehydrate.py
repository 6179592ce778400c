"""Rehydrate: a range of the archive as messages again."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sqlqueue.spark.ids import joined


def in_range(
    archived: DataFrame,
    topic: str,
    *,
    first: int | None = None,
    last: int | None = None,
    since: str = "",
    until: str = "",
    key: str | None = None,
) -> DataFrame:
    """Return what the archive holds of a topic from offset `first` to `last`, both included, published from `since` to
    before `until` (UTC); of one key, or of all."""
    rows = archived.where(F.col("topic") == topic)
    conditions: list[Column] = []
    if first is not None:
        conditions.append(F.col("offset") >= first)
    if last is not None:
        conditions.append(F.col("offset") <= last)
    if since:  # the date picks the folders, the time the rows
        at = F.lit(since).cast("timestamp")
        conditions += [F.col("date") >= F.date_format(at, "yyyy-MM-dd"), F.col("created_at") >= at]
    if until:
        at = F.lit(until).cast("timestamp")
        conditions += [F.col("date") <= F.date_format(at, "yyyy-MM-dd"), F.col("created_at") < at]
    if key is not None:
        conditions.append(F.col("key") == key)
    for condition in conditions:
        rows = rows.where(condition)
    return rows


def rehydrated(archived: DataFrame, *, group: str = "", label: str = "") -> DataFrame:
    """Return archived messages as messages to publish: the same payload, key, headers and priority under a new id, made
    of the label, the group and the old offset; for one group, or for all.

    The same range under the same label comes once for a group (or for all), however often it is published; under
    another label it comes again. What was meant for another group only is left out.
    """
    rows = archived.where(F.col("target_group").isin("", group)) if group else archived
    place = (F.col("topic"), F.col("offset").cast("string"))
    name = [F.lit("rehydrate"), F.lit(label), F.lit(group), *place]
    return rows.select(
        "payload",
        "key",
        joined(name).alias("id"),
        "headers",
        "priority",
        (F.lit(group) if group else F.col("target_group")).alias("target_group"),
        F.col("offset").alias("_row"),
    )
