"""Archiving a topic: segment after segment, each written, read back, compared, put in place and only then counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from sqlqueue.spark.archive import (
    SCHEMA_VERSION,
    Figures,
    archived,
    as_figures,
    figures,
    figures_of,
    read_archive,
    schema,
    write_parquet,
)
from sqlqueue.spark.folder import Folder, move, parquet_files, sync, write_manifest, written
from sqlqueue.spark.log import rows_between

if TYPE_CHECKING:  # Django, of which nothing in here knows
    from sqlqueue.leases.archivist import Archivist

ROWS_OF_A_FILE = 250_000


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
    receipt_lag: float = 300.0,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Segment]:
    """Archive what the horizon has passed of a topic's messages, or what is old enough of its receipts; yield every
    segment once it counts.

    Killed at any point and called again it goes on behind the last segment that counts. `keeper` holds the topic.
    Raises SegmentDiffers, LeaseLost, ForeignSegment.
    """
    for path in keeper.as_owner(lambda: _sweep(keeper, folder, kind)):
        say(f"removed {path}, which an earlier run had not finished")
    with folder.workshop(keeper.topic, keeper.name) as workshop:
        while within := keeper.next_range(kind, segment_rows, receipt_lag):
            yield _archive_segment(spark, keeper, folder, workshop, kind, within.first, within.last)


def _sweep(keeper: Archivist, folder: Folder, kind: str) -> list[str]:
    """Remove what former owners have left. Only while nobody else can own the topic: else it could be a successor's
    segment that has just been moved, and is about to count."""
    segments = keeper.segments(kind)
    first = segments[-1].last_offset + 1 if segments else 1
    return folder.sweep(kind, keeper.topic, keeper.log, {segment.path for segment in segments}, first)


def _archive_segment(
    spark: SparkSession, keeper: Archivist, folder: Folder, workshop: Path, kind: str, first: int, last: int
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
    told = {"schema_version": SCHEMA_VERSION, "log": keeper.log, "kind": kind, "topic": topic}
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


def differences(spark: SparkSession, keeper: Archivist, folder: Folder, kind: str) -> list[str]:
    """Read a topic's archive again, compare every segment with its row in the manifest, and say what is different."""
    name = F.col("segment")
    if not (folder.root / kind).is_dir():
        return [f"{segment}: there is no folder of {kind}" for segment in keeper.segments(kind)]
    rows = read_archive(spark, str(folder.root), kind).where(F.col("topic") == keeper.topic)
    found = {row["segment"]: as_figures(row.asDict()) for row in rows.groupBy(name).agg(*figures(kind)).collect()}
    said: list[str] = []
    for segment in keeper.segments(kind):
        there = found.pop(f"{segment.first_offset}-{segment.last_offset}", None)
        wanted = (segment.row_count, segment.lowest, segment.highest, segment.checksum)
        if there is None or (there.rows, there.lowest, there.highest, there.checksum) != wanted:
            said.append(f"{segment}: the manifest says {wanted}, the files hold {there}")
    return said + [f"segment {left} of {keeper.topic} is in no manifest" for left in sorted(found)]
