"""Verifying: the archive's files are read again and compared with the manifest; what is damaged is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from sqlqueue.spark.archive import Figures, as_figures, figures, figures_of, read_archive
from sqlqueue.spark.archiving import FAILURES
from sqlqueue.spark.folder import Folder
from sqlqueue.spark.manifest import DamagedArchive, manifest_of, parquet_files

if TYPE_CHECKING:  # Django, of which nothing in here knows
    from sqlqueue.models import ArchiveSegment


def differences(spark: SparkSession, segments: Sequence[ArchiveSegment], folder: Folder, kind: str) -> list[str]:
    """Read all segments of a topic again, and say what is different; a damaged one keeps no other from being read."""
    said: list[str] = []
    whole = {}
    for segment in segments:
        wrong = _damages(folder.root / segment.path)
        said += [f"{segment}: {damage}" for damage in wrong]
        if not wrong:
            whole[f"{segment.first_offset}-{segment.last_offset}"] = segment
    places = {name: folder.root / segment.path for name, segment in whole.items()}
    found, unreadable = _figures(spark, folder, kind, places)
    for name, segment in whole.items():
        if name in unreadable:
            said += [f"{segment}: {file}" for file in unreadable[name]]
            continue
        wanted = (segment.row_count, segment.lowest, segment.highest, segment.checksum)
        there = found.get(name)
        if there is None or (there.rows, there.lowest, there.highest, there.checksum) != wanted:
            said.append(f"{segment}: the manifest says {wanted}, the files hold {there}")
    return said


def strangers(topic: str, segments: Iterable[ArchiveSegment], folder: Folder, kind: str) -> list[str]:
    """Say which segments of a topic the folder holds that the manifest does not know."""
    known = {segment.path for segment in segments}
    there = (folder.relative(place) for place in folder.places(kind, topic))
    return [f"{path} is in no manifest" for path in there if path not in known]


def _damages(place: Path) -> list[str]:
    try:
        manifest = manifest_of(place)
    except DamagedArchive as error:
        return [str(error)]
    return [f"{place} is missing, or has no manifest"] if manifest is None else manifest.damages()


def _figures(
    spark: SparkSession, folder: Folder, kind: str, places: dict[str, Path]
) -> tuple[dict[str, Figures], dict[str, list[str]]]:
    """Compute the figures of segments, all at once; one by one if that fails, to find which files cannot be read: these
    come second, by segment."""
    if not places:
        return {}, {}
    try:
        rows = read_archive(spark, str(folder.root), kind, [str(place) for place in places.values()])
        grouped = rows.groupBy("segment").agg(*figures(kind)).collect()  # a row a segment
        return {row["segment"]: as_figures(row.asDict()) for row in grouped}, {}
    except FAILURES:
        found: dict[str, Figures] = {}
        unreadable: dict[str, list[str]] = {}
        for name, place in places.items():
            try:
                found[name] = figures_of(read_archive(spark, str(folder.root), kind, [str(place)]), kind)
            except FAILURES:
                unreadable[name] = _unreadable(spark, folder, kind, place)
        return found, unreadable


def _unreadable(spark: SparkSession, folder: Folder, kind: str, place: Path) -> list[str]:
    said = []
    for file in parquet_files(place):
        try:
            figures_of(read_archive(spark, str(folder.root), kind, [str(file)]), kind)
        except FAILURES as error:
            said.append(f"{file} cannot be read: {str(error).strip().splitlines()[0]}")
    return said
