"""The archive in the tests: made by the functions that the command calls, and read by pyarrow alone."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset
from pyspark.sql import SparkSession

from sqlqueue.contrib.spark.archive import Archive
from sqlqueue.contrib.spark.archiving import archive_topic
from sqlqueue.contrib.spark.archivist import archivist, newest_receipts
from sqlqueue.contrib.spark.models import ArchiveSegment
from sqlqueue.models import Message
from tests.logs import LOG


def archive(
    spark: SparkSession, folder: Path, topic: str = "t", kind: str = "messages", segment_rows: int = 1_000
) -> list[ArchiveSegment]:
    """Archive what there is of a topic."""
    receipts_to = newest_receipts(LOG, [topic], 0).get(topic, 0)
    with archivist(LOG, topic, timeout=30) as owner:
        rows = {"segment_rows": segment_rows, "receipts_to": receipts_to}
        return list(archive_topic(spark, owner, Archive(str(folder)), kind, **rows))


def rows_in(folder: Path, kind: str = "messages") -> list[dict[str, Any]]:
    """Return the rows of every Parquet file below a folder, whatever wrote it."""
    if not (folder / kind).is_dir():
        return []
    return pyarrow.dataset.dataset(folder / kind, format="parquet", partitioning="hive").to_table().to_pylist()


def files_of(segment: ArchiveSegment, folder: Path) -> list[Path]:
    """Return the files that the manifest of a segment names."""
    return [folder / path for path in json.loads((folder / segment.path).read_text())["files"]]


def offsets_in(folder: Path) -> Counter[int]:
    """Count the offsets in an archive."""
    return Counter(row["offset"] for row in rows_in(folder))


def as_archived(message: Message) -> dict[str, Any]:
    """Return a message of the log as a row of the archive has to say it."""
    return {
        "offset": message.offset,
        "topic": message.topic,
        "partition": message.partition,
        "priority": message.priority,
        "key": message.partition_key,
        "id": message.message_id,
        "payload": message.payload,
        "headers": message.headers,
        "body": None if message.body is None else bytes(message.body),
        "created_at": message.created_at,
        "target_group": message.target_group,
        "date": f"{message.created_at:%Y-%m-%d}",
    }


def decoded(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the archive with its JSON decoded, and without the folder's name."""
    headers = None if row["headers"] is None else json.loads(row["headers"])
    rest = {name: value for name, value in row.items() if name != "segment"}
    return {**rest, "payload": json.loads(row["payload"]), "headers": headers}
