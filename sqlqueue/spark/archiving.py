"""Archiving a topic: segment after segment, each written, read back, compared, put in place and only then counted."""

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
    Figures,
    archived,
    as_figures,
    figures,
    figures_of,
    schema,
    write_parquet,
)
from sqlqueue.spark.folder import Folder, move, sync, written
from sqlqueue.spark.log import rows_between
from sqlqueue.spark.manifest import parquet_files, write_manifest

if TYPE_CHECKING:  # Django, of which nothing in here knows
    from sqlqueue.leases.archivist import Archivist

ROWS_OF_A_FILE = 250_000
FAILURES = (PySparkException, Py4JJavaError)  # of Spark, at whatever it was to do


class SegmentDiffers(Exception):
    """What was read back is not what the database holds: the segment was thrown away, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that counts, as it is told to people."""

    kind: str
    topic: str
    first: int
    last: int
    figures: Figures
    files: int
    bytes: int


def archive_topic(
    spark: SparkSession,
    keeper: Archivist,
    folder: Folder,
    kind: str,
    *,
    segment_rows: int,
    receipts_to: int = 0,
    begin: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Segment]:
    """Archive what the horizon has passed of a topic's messages, or its receipts up to an id; yield every segment once
    it counts.

    Killed at any point and called again it goes on behind the last segment that counts. `keeper` holds the topic.
    begin: a topic that is archived for the first time may begin in a folder where no other one is. Raises
    SegmentDiffers, LeaseLost, ForeignSegment, DamagedArchive, ConfigurationError.
    """
    ends = keeper.ends()
    folder.refuse_elsewhere(ends, keeper.topic, begin)
    if not ends:
        folder.refuse_foreign(keeper.logs())
    archive = folder.prepare(kind, keeper.topic)
    for path in keeper.as_owner(lambda: _sweep(keeper, folder, kind)):
        say(f"removed {path}, which an earlier run had not finished")
    with folder.workshop(keeper.topic, keeper.name) as workshop:
        while within := keeper.next_range(kind, segment_rows, receipts_to):
            yield _archive_segment(spark, keeper, folder, archive, workshop, kind, within.first, within.last)


def _sweep(keeper: Archivist, folder: Folder, kind: str) -> list[str]:
    """Remove what former owners have left. Only while nobody else can own the topic: else it could be a successor's
    segment that has just been moved, and is about to count."""
    segments = keeper.segments(kind)
    first = segments[-1].last_offset + 1 if segments else 1
    return folder.sweep(kind, keeper.topic, keeper.log, {segment.path for segment in segments}, first)


def _archive_segment(
    spark: SparkSession,
    keeper: Archivist,
    folder: Folder,
    archive: str,
    workshop: Path,
    kind: str,
    first: int,
    last: int,
) -> Segment:
    topic = keeper.topic
    rows, total = keeper.held_in(kind, first, last)
    path = workshop / f"{kind}-{first}"
    source = rows_between(spark, kind, topic, first, last)
    seen = _write(archived(source, kind), kind, str(path), files=-(-rows // ROWS_OF_A_FILE))
    read_back = figures_of(spark.read.schema(schema(kind)).parquet(str(path)), kind)
    if not (seen == read_back and (rows, total) == (read_back.rows, read_back.total)):
        raise SegmentDiffers(
            f"{kind} {first}-{last} of {topic}: the database holds {rows} rows (sum {total}), Spark read {seen}, "
            f"and the files hold {read_back}"
        )
    whole, place = written(path, topic), folder.segment(kind, topic, first, last)
    sizes = [file.stat().st_size for file in parquet_files(whole)]
    told = {"schema_version": SCHEMA_VERSION, "archive": archive, "log": keeper.log, "kind": kind, "topic": topic}
    write_manifest(whole, {**told, "first": first, "last": last, **asdict(read_back)})
    sync(whole)
    keeper.commit(
        kind,
        first,
        last,
        lambda: move(whole, place),
        row_count=read_back.rows,
        lowest=read_back.lowest,
        highest=read_back.highest,
        checksum=read_back.checksum,
        schema_version=SCHEMA_VERSION,
        path=folder.relative(place),
        files=len(sizes),
        bytes=sum(sizes),
    )
    return Segment(kind, topic, first, last, read_back, len(sizes), sum(sizes))


def _write(rows: DataFrame, kind: str, path: str, files: int) -> Figures:
    """Write rows as Parquet; return the figures of what went by on its way there."""
    observed = Observation()
    frame = rows.observe(observed, *figures(kind)).coalesce(max(1, files))
    write_parquet(frame, path, "topic", "date")
    return as_figures(observed.get)
