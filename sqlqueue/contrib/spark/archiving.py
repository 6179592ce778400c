"""Archiving of a topic: each segment is written, read back, compared, published, and then committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    total_columns,
    totals_of,
)
from sqlqueue.contrib.spark.storage import Archive, Draft
from sqlqueue.contrib.spark.topic_rows import rows_between

if TYPE_CHECKING:  # needs Django, which this module does without
    from sqlqueue.contrib.spark.archivist import Archivist

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
