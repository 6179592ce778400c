"""Verification: read the archive's files again, and compare them with the manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from sqlqueue.contrib.spark.archive_rows import SegmentTotals, as_totals, total_columns, totals_of
from sqlqueue.contrib.spark.archiving import FAILURES
from sqlqueue.contrib.spark.manifest import DamagedArchive, SegmentFile
from sqlqueue.contrib.spark.storage import Archive

if TYPE_CHECKING:  # needs Django, which this module does without
    from sqlqueue.contrib.spark.models import ArchiveSegment


def differences(spark: SparkSession, segments: Sequence[ArchiveSegment], folder: Archive, kind: str) -> list[str]:
    """Read all segments of a topic again, and return a line for each difference; go on after a damaged segment."""
    lines: list[str] = []
    complete: dict[str, ArchiveSegment] = {}
    for segment in segments:
        wrong = _damages(folder, segment.path)
        lines += [f"{segment}: {damage}" for damage in wrong]
        if not wrong:
            complete[f"{segment.first_offset}-{segment.last_offset}"] = segment
    found: dict[str, SegmentTotals] = {}
    unreadable: dict[str, list[str]] = {}
    for version in {segment.schema_version for segment in complete.values()}:
        of_version = {name: each for name, each in complete.items() if each.schema_version == version}
        paths = {name: segment.path for name, segment in of_version.items()}
        totals, broken = _totals(spark, folder, kind, paths, version)
        found |= totals
        unreadable |= broken
    for name, segment in complete.items():
        if name in unreadable:
            lines += [f"{segment}: {file}" for file in unreadable[name]]
            continue
        expected = (segment.row_count, segment.lowest, segment.highest, segment.checksum)
        actual = found.get(name)
        if actual is None or (actual.rows, actual.lowest, actual.highest, actual.checksum) != expected:
            lines.append(f"{segment}: the manifest says {expected}, the files hold {actual}")
    return lines


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


def _damages(folder: Archive, path: str) -> list[str]:
    try:
        manifest = folder.manifest(path)
    except DamagedArchive as error:
        return [str(error)]
    if manifest is None:
        return [f"{path} is missing from {folder.root}, or has no manifest"]
    return folder.damages(manifest)


def _files(folder: Archive, path: str) -> list[SegmentFile]:
    manifest = folder.manifest(path)
    return [] if manifest is None else list(map(manifest.file, folder.files(manifest)))


def _totals(
    spark: SparkSession, folder: Archive, kind: str, paths: dict[str, str], version: int
) -> tuple[dict[str, SegmentTotals], dict[str, list[str]]]:
    """Return the totals of segments by name, and the unreadable files by segment. version: of their schema.

    One query reads all segments; if it fails, each is read by itself to find the files that cannot be read.
    """
    try:
        rows = folder.read_files(spark, kind, [file for path in paths.values() for file in _files(folder, path)])
        grouped = rows.groupBy("segment").agg(*total_columns(kind, version)).collect()  # a row a segment
        return {row["segment"]: as_totals(row.asDict()) for row in grouped}, {}
    except FAILURES:
        found: dict[str, SegmentTotals] = {}
        unreadable: dict[str, list[str]] = {}
        for name, path in paths.items():
            try:
                found[name] = totals_of(folder.read_files(spark, kind, _files(folder, path)), kind, version)
            except FAILURES:
                unreadable[name] = _unreadable(spark, folder, kind, path)
        return found, unreadable


def _unreadable(spark: SparkSession, folder: Archive, kind: str, path: str) -> list[str]:
    lines = []
    for file in _files(folder, path):
        try:
            totals_of(folder.read_files(spark, kind, [file]), kind)
        except FAILURES as error:
            lines.append(f"{folder.shown(file.path)} cannot be read: {str(error).strip().splitlines()[0]}")
    return lines
