"""Archiving of a topic: each segment is written, read back, compared, published, and then committed. Verification reads
the files again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession

from sqlqueue.contrib.spark.archive import Archive
from sqlqueue.contrib.spark.archive_rows import (
    SCHEMA_VERSION,
    SegmentTotals,
    archived,
    as_totals,
    rows_between,
    total_columns,
    totals_of,
)
from sqlqueue.contrib.spark.manifest import DamagedArchive, data_folder, escaped, file_of, manifest_path

if TYPE_CHECKING:  # needs Django, which this module does without
    from sqlqueue.contrib.spark.archivist import Archivist, OffsetRange
    from sqlqueue.contrib.spark.models import ArchiveSegment
    from sqlqueue.contrib.spark.store import Store

ROWS_OF_A_FILE = 250_000
FAILURES = (PySparkException, Py4JJavaError)  # the exceptions of a failed Spark job


class SegmentDiffers(Exception):
    """The files do not hold what the database holds: the segment was deleted, and nothing was changed."""


def archive_topic(
    spark: SparkSession,
    owner: Archivist,
    folder: Archive,
    kind: str,
    *,
    segment_rows: int,
    receipts_to: int = 0,
    begin: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[ArchiveSegment]:
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
    identity = folder.prepare(kind, owner.topic)
    for path in owner.as_owner(lambda: _sweep(owner, folder, kind)):
        say(f"removed {path}, which an earlier run had not finished")
    try:
        while within := owner.next_range(kind, segment_rows, receipts_to):
            yield _archive_segment(spark, owner, folder, identity, kind, within)
    finally:
        folder.store.end(_run(owner))


def differences(spark: SparkSession, owner: Archivist, folder: Archive, kind: str) -> list[str]:
    """Read each segment of a topic again, and return a line for each difference, also for what is in no segment, and
    for segments and files that the database does not have; go on after a damaged segment."""
    segments = owner.segments(kind)
    found = [f"{segment}: {wrong}" for segment in segments for wrong in _differences(spark, segment, folder, kind)]
    unknown = folder.unknown(kind, owner.topic, {segment.path for segment in segments})
    return found + gaps(segments, owner.lost_to(kind)) + [f"{path} is in no manifest" for path in unknown]


def gaps(segments: Sequence[ArchiveSegment], lost_to: int) -> list[str]:
    """Return a line for each range of offsets that no segment has, between two of a topic, or behind the last one up to
    `lost_to`. What the topic had there is gone: it had no archive group, or that was moved past it."""
    ends = [(segment.first_offset - 1, segment.last_offset) for segment in segments]
    before = [last for _, last in ends]
    after = [*(first for first, _ in ends[1:]), lost_to]
    return [
        f"{segment.kind} of {segment.topic}, {last + 1}-{end}: in no segment; what the topic had there is gone: it had "
        "no group archive meanwhile, or that was moved past it"
        for segment, last, end in zip(segments, before, after)
        if end > last
    ]


def _differences(spark: SparkSession, segment: ArchiveSegment, folder: Archive, kind: str) -> list[str]:
    try:
        manifest = folder.manifest(segment.path)
        if manifest is None:
            return [f"{segment.path} is missing from {folder.root}, or has no manifest"]
        if damages := folder.damages(manifest):
            return damages
        found = totals_of(folder.store.read(spark, kind, manifest.parts()), kind)
    except DamagedArchive as error:
        return [str(error)]
    except FAILURES as error:
        return [f"its files cannot be read: {str(error).strip().splitlines()[0]}"]
    expected = (segment.row_count, segment.lowest, segment.highest, segment.checksum)
    actual = (found.rows, found.lowest, found.highest, found.checksum)
    return [] if actual == expected else [f"the manifest says {expected}, the files hold {actual}"]


def _sweep(owner: Archivist, folder: Archive, kind: str) -> list[str]:
    """Remove what former owners have left. The fence must hold: without it this could remove a segment that a later
    owner has moved and is about to commit."""
    segments = owner.segments(kind)
    first = segments[-1].last_offset + 1 if segments else 1
    return folder.sweep(kind, owner.topic, owner.identity, {segment.path for segment in segments}, first)


def _archive_segment(
    spark: SparkSession, owner: Archivist, folder: Archive, identity: str, kind: str, within: OffsetRange
) -> ArchiveSegment:
    store, topic, (first, last) = folder.store, owner.topic, within
    data, run = data_folder(kind, topic, first, last), _run(owner)
    begun, whole = store.drafts(data, run)
    written, totals = _write(spark, owner, store, begun, whole, kind, within)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "archive": identity,
        "log": owner.identity,
        "token": owner.token,
        "kind": kind,
        "topic": topic,
        "first": first,
        "last": last,
        **asdict(totals),
        "files": {f"{data}/{name}": size for name, size in written.items()},
    }
    path = manifest_path(kind, topic, first, last, owner.token)

    def publish() -> None:
        store.publish(whole, data)
        store.put(path, json.dumps(manifest, indent=1) + "\n", run)

    return owner.commit(
        kind,
        first,
        last,
        publish,
        row_count=totals.rows,
        lowest=totals.lowest,
        highest=totals.highest,
        checksum=totals.checksum,
        schema_version=SCHEMA_VERSION,
        path=path,
        files=len(written),
        bytes=sum(written.values()),
    )


def _write(
    spark: SparkSession, owner: Archivist, store: Store, begun: str, whole: str, kind: str, within: OffsetRange
) -> tuple[dict[str, int], SegmentTotals]:
    """Write the rows of a range, and read them back; return the names and sizes of the files, and their totals. Raises
    SegmentDiffers."""
    topic, (first, last) = owner.topic, within
    rows, total = owner.held_in(kind, first, last)
    observation = Observation()
    frame = archived(rows_between(spark, owner.log, kind, topic, first, last), kind)
    frame = frame.observe(observation, *total_columns(kind)).coalesce(max(1, -(-rows // ROWS_OF_A_FILE)))
    written = store.write(frame, begun, escaped(owner.name))
    observed = as_totals(observation.get)
    store.finish(begun, whole, written)
    listed = [file_of(f"{whole}/{name}", first, last, topic) for name in written]
    read_back = totals_of(store.read(spark, kind, listed), kind)
    if not (observed == read_back and (rows, total) == (read_back.rows, read_back.total)):
        raise SegmentDiffers(
            f"{kind} {first}-{last} of {topic}: the database holds {rows} rows (sum {total}), Spark read {observed}, "
            f"and the files hold {read_back}"
        )
    return written, read_back


def _run(owner: Archivist) -> str:
    return f"{escaped(owner.topic)}/{escaped(owner.name)}"
