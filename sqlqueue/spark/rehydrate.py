"""Rehydrate: a range of the archive as messages again."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.exceptions import ConfigurationError
from sqlqueue.spark.archive import MESSAGES, read_archive
from sqlqueue.spark.folder import Folder
from sqlqueue.spark.ids import joined
from sqlqueue.spark.manifest import DamagedArchive, without_gaps


def held(
    spark: SparkSession, folder: Folder, topic: str, first: int | None = None, last: int | None = None
) -> DataFrame:
    """Return a topic's archived messages, as the segments' own manifests tell of them: no database need know of them.

    At least those from offset `first` to `last`. Raises ConfigurationError if there is nothing of the topic, and
    DamagedArchive if a segment or a file of these is missing.
    """
    there = folder.of_topic(MESSAGES, topic)
    if not there:
        raise ConfigurationError(f"there are no messages of topic {topic!r} in {folder.root}: is it another folder's?")
    wanted = without_gaps(there, 1 if first is None else first, last)
    damages = [damage for manifest in wanted for damage in manifest.damages()]
    if damages:
        raise DamagedArchive("\n".join(damages))
    return read_archive(spark, str(folder.root), places=[str(manifest.place) for manifest in wanted])


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


def rehydrated(archived: DataFrame, *, group: str = "", label: str = "", same_ids: bool = False) -> DataFrame:
    """Return archived messages as messages to publish: the same payload, key, headers and priority under a new id, made
    of the label, the group and the old offset; for one group, or for all.

    The same range under the same label comes once for a group (or for all), however often it is published; under
    another label it comes again. What was meant for another group only is left out. same_ids: under the ids that they
    had, so that only what the log has lost comes again.
    """
    rows = archived.where(F.col("target_group").isin("", group)) if group else archived
    place = (F.col("topic"), F.col("offset").cast("string"))
    name = [F.lit("rehydrate"), F.lit(label), F.lit(group), *place]
    return rows.select(
        "payload",
        "key",
        F.col("id") if same_ids else joined(name).alias("id"),
        "headers",
        "priority",
        (F.lit(group) if group else F.col("target_group")).alias("target_group"),
        F.col("offset").alias("_row"),
    )
