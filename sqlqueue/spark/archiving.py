"""Archiving of a topic: each segment is written, read back, compared, moved to its destination, and then committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession

from sqlqueue.spark.archive import (
    SCHEMA_VERSION,
    SegmentTotals,
    archived,
    as_totals,
    schema,
    total_columns,
    totals_of,
    write_parquet,
)
from sqlqueue.spark.folder import Folder, move, sync, written
from sqlqueue.spark.manifest import parquet_files, write_manifest
from sqlqueue.spark.topic_rows import rows_between

if TYPE_CHECKING:  # needs Django, which this module does without
    from sqlqueue.leases.archivist import Archivist

ROWS_OF_A_FILE = 250_000
FAILURES = (PySparkException, Py4JJavaError)  # the exceptions of a failed Spark job


class SegmentDiffers(Exception):
    """The files do not hold what the database holds: the segment was deleted, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A committed segment, as commands print it."""

    kind: str
    topic: str
    first: int
    last: int
    totals: SegmentTotals
    files: int
    bytes: int


def archive_topic(
    spark: SparkSession,
    owner: Archivist,
    folder: Folder,
    kind: str,
    *,
    segment_rows: int,
    receipts_to: int = 0,
    begin: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Segment]:
    """Archive a topic's messages up to the horizon, or its receipts up to an id; yield each segment once it is
    committed.

    A run that was killed at any point is continued by the next call, after the last committed segment. owner: the
    topic's archivist. begin: a topic without segments may begin in a folder that holds no other topic. Raises
    SegmentDiffers, LeaseLost, ForeignSegment, DamagedArchive, ConfigurationError.
    """
    ends = owner.ends()
    folder.refuse_elsewhere(ends, owner.topic, begin)
    if not ends:
        folder.refuse_foreign(owner.logs())
    archive = folder.prepare(kind, owner.topic)
    for path in owner.as_owner(lambda: _sweep(owner, folder, kind)):
        say(f"removed {path}, which an earlier run had not finished")
    with folder.staging(owner.topic, owner.name) as staging:
        while within := owner.next_range(kind, segment_rows, receipts_to):
            yield _archive_segment(spark, owner, folder, archive, staging, kind, within.first, within.last)


def _sweep(owner: Archivist, folder: Folder, kind: str) -> list[str]:
    """Remove what former owners have left. The fence must hold: without it this could remove a segment that a later
    owner has moved and is about to commit."""
    segments = owner.segments(kind)
    first = segments[-1].last_offset + 1 if segments else 1
    return folder.sweep(kind, owner.topic, owner.log, {segment.path for segment in segments}, first)


def _archive_segment(
    spark: SparkSession,
    owner: Archivist,
    folder: Folder,
    archive: str,
    staging: Path,
    kind: str,
    first: int,
    last: int,
) -> Segment:
    topic = owner.topic
    rows, total = owner.held_in(kind, first, last)
    path = staging / f"{kind}-{first}"
    source = rows_between(spark, owner.alias, kind, topic, first, last)
    observed = _write(archived(source, kind), kind, str(path), files=-(-rows // ROWS_OF_A_FILE))
    read_back = totals_of(spark.read.schema(schema(kind)).parquet(str(path)), kind)
    if not (observed == read_back and (rows, total) == (read_back.rows, read_back.total)):
        raise SegmentDiffers(
            f"{kind} {first}-{last} of {topic}: the database holds {rows} rows (sum {total}), Spark read {observed}, "
            f"and the files hold {read_back}"
        )
    complete, destination = written(path, topic), folder.segment(kind, topic, first, last)
    sizes = [file.stat().st_size for file in parquet_files(complete)]
    content = {"schema_version": SCHEMA_VERSION, "archive": archive, "log": owner.log, "kind": kind, "topic": topic}
    write_manifest(complete, {**content, "first": first, "last": last, **asdict(read_back)})
    sync(complete)
    owner.commit(
        kind,
        first,
        last,
        lambda: move(complete, destination),
        row_count=read_back.rows,
        lowest=read_back.lowest,
        highest=read_back.highest,
        checksum=read_back.checksum,
        schema_version=SCHEMA_VERSION,
        path=folder.relative(destination),
        files=len(sizes),
        bytes=sum(sizes),
    )
    return Segment(kind, topic, first, last, read_back, len(sizes), sum(sizes))


def _write(rows: DataFrame, kind: str, path: str, files: int) -> SegmentTotals:
    """Write rows as Parquet; return their totals, observed while they are written."""
    observation = Observation()
    frame = rows.observe(observation, *total_columns(kind)).coalesce(max(1, files))
    write_parquet(frame, path, "topic", "date")
    return as_totals(observation.get)
