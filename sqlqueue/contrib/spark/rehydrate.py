"""Rehydration: a range of the archive as messages to publish."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.contrib.spark.archive import parts, with_databases
from sqlqueue.contrib.spark.backfill import joined
from sqlqueue.contrib.spark.files import ROW
from sqlqueue.contrib.spark.manifest import MESSAGES, DamagedArchive, without_gaps
from sqlqueue.contrib.spark.options import microseconds, utc_time
from sqlqueue.exceptions import ConfigurationError


def archived_messages(
    spark: SparkSession,
    root: str,
    topic: str,
    first: int | None = None,
    last: int | None = None,
    database: str = "",
    since: str = "",
    until: str = "",
) -> DataFrame:
    """Return a topic's archived messages, at least those from offset `first` to `last` that were published from `since`
    to `until`; of one database, or of all.

    The segments' manifests say what is there; the database is not asked, and files of other days are not read. An
    archive of several databases has a column `database`. Raises ConfigurationError if the archive has no messages of
    the topic, if offsets are named and it is on several databases, and for what is no time; DamagedArchive if a segment
    or a file of this range is missing.
    """
    archives = {name: part for name, part in parts(root).items() if database in ("", name)}
    found = {name: part.of_topic(MESSAGES, topic) for name, part in archives.items()}
    found = {name: manifests for name, manifests in found.items() if manifests}
    if not found:
        raise ConfigurationError(f"there are no messages of topic {topic!r} in {root}: is it in another folder?")
    if len(found) > 1 and (first is not None or last is not None):
        names = ", ".join(found)
        raise ConfigurationError(f"offsets are those of one database: say which with --database: {names}")
    wanted = {name: without_gaps(manifests, 1 if first is None else first, last) for name, manifests in found.items()}
    damages = [damage for name, some in wanted.items() for each in some for damage in archives[name].damages(each)]
    if damages:
        raise DamagedArchive("\n".join(damages))
    low = f"{utc_time(since, 'since'):%Y-%m-%d}" if since else ""
    high = f"{utc_time(until, 'until'):%Y-%m-%d}" if until else "~"  # behind all dates
    rows = {}
    for name, some in wanted.items():
        files = [file for each in some for file in each.parts() if low <= file.date <= high]
        rows[name] = archives[name].store.read(spark, MESSAGES, files)
    return with_databases(rows)


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
    """Return the messages of a topic from offset `first` to `last`, both included, published from `since` (included) to
    `until` (excluded), in UTC; of one key, or of all. Raises ConfigurationError for what is no time."""
    offset, at = F.col("offset"), F.col("created_at")
    conditions = [F.col("topic") == topic]
    conditions += [] if first is None else [offset >= first]
    conditions += [] if last is None else [offset <= last]
    conditions += [at >= _time(since, "since")] if since else []
    conditions += [at < _time(until, "until")] if until else []
    conditions += [] if key is None else [F.col("key") == key]
    return reduce(DataFrame.where, conditions, archived)


def _time(text: str, name: str) -> Column:
    return F.timestamp_micros(F.lit(microseconds(utc_time(text, name))))


def rehydrated(archived: DataFrame, *, group: str = "", label: str = "", same_ids: bool = False) -> DataFrame:
    """Return archived messages as messages to publish, for one group or for all: the same payload, key, headers and
    priority under a new id, which is made of the label, the group and the old offset.

    So a range is published once under a label and for a group (or for all), however often this is done; under another
    label it is published again. Messages for another group only are left out. same_ids: keep the old ids, so that only
    messages that the log has lost are published.
    """
    rows = archived.where(F.col("target_group").isin("", group)) if group else archived
    offset = F.col("offset").cast("string")
    if "database" in rows.columns:  # an offset is one database's
        offset = F.concat("database", F.lit(":"), offset)
    message_ref = (F.col("topic"), offset)
    id_parts = [F.lit("rehydrate"), F.lit(label), F.lit(group), *message_ref]
    return rows.select(
        "payload",
        "body",
        "key",
        F.col("id") if same_ids else joined(id_parts).alias("id"),
        "headers",
        "priority",
        (F.lit(group) if group else F.col("target_group")).alias("target_group"),
        F.col("offset").alias(ROW),
    )
