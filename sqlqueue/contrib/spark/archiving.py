"""Archiving of a topic: each segment is written, read back, compared, published, and then committed. Verification reads
the files again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession

from sqlqueue.contrib.spark.archive_rows import (
    SCHEMA_VERSION,
    SegmentTotals,
    archived,
    as_totals,
    rows_between,
    total_columns,
    totals_of,
)
from sqlqueue.contrib.spark.manifest import DamagedArchive
from sqlqueue.contrib.spark.storage import Archive, Draft

if TYPE_CHECKING:  # needs Django, which this module does without
    from sqlqueue.contrib.spark.archivist import Archivist
    from sqlqueue.contrib.spark.models import ArchiveSegment

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
    folder: Archive,
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
    identity = folder.prepare(kind, owner.topic)
    for path in owner.as_owner(lambda: _sweep(owner, folder, kind)):
        say(f"removed {path}, which an earlier run had not finished")
    with folder.drafting(owner.topic, owner.name, owner.token) as draft_of:
        while within := owner.next_range(kind, segment_rows, receipts_to):
            draft = draft_of(kind, within.first, within.last)
            yield _archive_segment(spark, owner, draft, identity, kind, within.first, within.last)


def differences(spark: SparkSession, segments: Sequence[ArchiveSegment], folder: Archive, kind: str) -> list[str]:
    """Read each segment of a topic again, and return a line for each difference; go on after a damaged segment."""
    return [f"{segment}: {wrong}" for segment in segments for wrong in _differences(spark, segment, folder, kind)]


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


def unknown_segments(topic: str, segments: Iterable[ArchiveSegment], folder: Archive, kind: str) -> list[str]:
    """Return a line for each segment of a topic in the folder that the manifest does not have."""
    known = {segment.path for segment in segments}
    return [f"{path} is in no manifest" for path in folder.unknown(kind, topic, known)]


def _differences(spark: SparkSession, segment: ArchiveSegment, folder: Archive, kind: str) -> list[str]:
    try:
        manifest = folder.manifest(segment.path)
        if manifest is None:
            return [f"{segment.path} is missing from {folder.root}, or has no manifest"]
        if damages := folder.damages(manifest):
            return damages
        files = [manifest.file(path) for path in folder.files(manifest)]
        found = totals_of(folder.read_files(spark, kind, files), kind)
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
    spark: SparkSession, owner: Archivist, draft: Draft, identity: str, kind: str, first: int, last: int
) -> Segment:
    topic = owner.topic
    rows, total = owner.held_in(kind, first, last)
    source = rows_between(spark, owner.log, kind, topic, first, last)
    observation = Observation()
    frame = archived(source, kind).observe(observation, *total_columns(kind))
    draft.write(frame.coalesce(max(1, -(-rows // ROWS_OF_A_FILE))))
    observed = as_totals(observation.get)
    read_back = totals_of(draft.read_back(spark), kind)
    if not (observed == read_back and (rows, total) == (read_back.rows, read_back.total)):
        raise SegmentDiffers(
            f"{kind} {first}-{last} of {topic}: the database holds {rows} rows (sum {total}), Spark read {observed}, "
            f"and the files hold {read_back}"
        )
    content = {
        "schema_version": SCHEMA_VERSION,
        "archive": identity,
        "log": owner.identity,
        "kind": kind,
        "topic": topic,
    }
    draft.complete({**content, "first": first, "last": last, **asdict(read_back)})
    owner.commit(
        kind,
        first,
        last,
        draft.publish,
        row_count=read_back.rows,
        lowest=read_back.lowest,
        highest=read_back.highest,
        checksum=read_back.checksum,
        schema_version=SCHEMA_VERSION,
        path=draft.path,
        files=len(draft.sizes),
        bytes=sum(draft.sizes),
    )
    return Segment(kind, topic, first, last, read_back, len(draft.sizes), sum(draft.sizes))
