"""The archive's folder: a segment is moved into it by one rename, and what killed runs have left is removed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.exceptions import ConfigurationError
from sqlqueue.spark.archive_rows import read_parquet, schema, write_parquet
from sqlqueue.spark.manifest import (
    CommittedSegment,
    Manifest,
    damages,
    escaped,
    foreign,
    identity,
    manifest_of,
    manifests,
    parquet_files,
    refuse_elsewhere,
    sync_path,
    write_manifest,
)

Draft = Callable[[str, int, int], "FolderDraft"]  # of a kind, from an offset to another one


class Folder:
    """An archive's folder; `partial` is the folder within it in which segments are written until they are complete.

    It must be on one file system with an atomic rename, which the driver and all executors see under the same path: a
    local disk, or a POSIX network file system.
    """

    absent = "is its file system mounted?"

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.partial = self.root / "_partial"

    def prepare(self, kind: str, topic: str) -> str:
        """Make the folder ready for a topic's segments, and return its identity.

        Raises ConfigurationError, before any work is done, if the topic's name is too long for a folder's name, or if
        no rename leads from `partial` to the folder of this kind.
        """
        name, destination = f"topic={escaped(topic)}", self.root / kind
        destination.mkdir(parents=True, exist_ok=True)
        longest = os.pathconf(destination, "PC_NAME_MAX")
        if len(os.fsencode(name)) > longest:
            raise ConfigurationError(
                f"topic {topic!r} cannot be archived: its folder {name!r} would have more than {longest} characters"
            )
        self.partial.mkdir(exist_ok=True)
        probe = self.partial / f"probe-{uuid.uuid4().hex}"
        moved = destination / f"_{probe.name}"
        try:
            probe.touch()
            os.rename(probe, moved)
        except OSError as error:
            raise ConfigurationError(
                f"nothing can be moved from {self.partial} to {destination}, which must be on one file system: {error}"
            ) from error
        finally:
            probe.unlink(missing_ok=True)
            moved.unlink(missing_ok=True)
        return identity(self.root, create=True)

    @contextmanager
    def drafting(self, topic: str, run: str, token: int) -> Iterator[Draft]:
        """Yield a function that gives segments which one run, and no other process, writes; remove at the end what is
        left of them. token: the run's fencing token, which a rename does not need."""
        staging = self.partial / escaped(topic) / escaped(run)
        try:
            yield lambda kind, first, last: FolderDraft(self, staging, kind, topic, first, last)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            with suppress(OSError):  # another run has a folder there
                staging.parent.rmdir()

    def segment(self, kind: str, topic: str, first: int, last: int) -> Path:
        """Return the path of a segment's folder."""
        return self.root / kind / f"segment={first}-{last}" / f"topic={escaped(topic)}"

    def exists(self) -> bool:
        """Tell whether the folder exists."""
        return self.root.is_dir()

    def folders(self) -> list[str]:
        """Return the names of the folders in it."""
        return [path.name for path in self.root.iterdir() if path.is_dir()] if self.exists() else []

    def has(self, kind: str) -> bool:
        """Tell whether there are segments of a kind."""
        return (self.root / kind).is_dir()

    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest of a committed segment by its path; None if it is not there. Raises DamagedArchive."""
        return manifest_of(self.root / path)

    def damages(self, manifest: Manifest) -> list[str]:
        """Return a text for each file of a segment that is missing or has another size."""
        segment = Path(manifest.path)

        def size_of(name: str) -> int | None:
            return (segment / name).stat().st_size if (segment / name).is_file() else None

        return damages(manifest, size_of, segment)

    def files(self, manifest: Manifest) -> list[str]:
        """Return the paths of a segment's files."""
        return [str(file) for file in parquet_files(Path(manifest.path))]

    def read(
        self,
        spark: SparkSession,
        kind: str,
        files: Sequence[str] | None = None,
        topic: str = "",
        days: tuple[str, str] | None = None,
    ) -> DataFrame:
        """Return the rows of all segments of a kind, or of some files or segments; of one topic, if it is named; days:
        the first and the last date that is wanted."""
        rows = read_parquet(spark, str(self.root), kind, files)
        rows = rows.where(F.col("topic") == topic) if topic else rows
        return rows if days is None else rows.where(F.col("date").between(*days))  # Spark reads only their folders

    def unknown(self, kind: str, topic: str, known: Collection[str]) -> list[str]:
        """Return the paths of what the database does not have of a topic's segments. known: the paths that it has."""
        return [path for path in map(self.relative, self.segment_paths(kind, topic)) if path not in known]

    def relative(self, path: Path) -> str:
        """Return a path relative to the archive, as the database records it."""
        return str(path.relative_to(self.root))

    def segment_paths(self, kind: str, topic: str) -> list[Path]:
        """Return the folders of a topic's segments, sorted."""
        return sorted((self.root / kind).glob(f"segment=*/topic={escaped(topic)}"))

    def of_topic(self, kind: str, topic: str) -> list[Manifest]:
        """Return the manifests of a topic's segments. Raises DamagedArchive."""
        return list(manifests(self.root, kind, escaped(topic)))

    def holds(self, segment: CommittedSegment) -> bool:
        """Tell whether a committed segment is in this folder, by its manifest."""
        manifest = manifest_of(self.root / segment.path)
        if manifest is None or manifest.archive not in ("", identity(self.root)):
            return False
        return manifest.describes(segment)

    def refuse_elsewhere(self, ends: Collection[CommittedSegment], topic: str, begin: bool = False) -> None:
        """Raise ForeignSegment unless this folder holds the last segments of a topic, see manifest.refuse_elsewhere."""
        refuse_elsewhere(str(self.root), self.holds, ends, topic, begin)

    def refuse_foreign(self, logs: Collection[str]) -> None:
        """Raise ForeignSegment if the folder has a segment of another log than these.

        For a database without committed segments: segments of its own logs are what a killed run has left.
        """
        for manifest in manifests(self.root):
            if manifest.log not in logs:
                raise foreign(manifest.path)

    def sweep(self, kind: str, topic: str, log: str, known: Collection[str], first: int) -> list[str]:
        """Remove what an earlier run has left of a topic and a kind; return the removed paths, relative to the archive.

        known: the paths of the committed segments; first: where the next segment begins, since an earlier run can have
        left only that one; log: the log that the archive belongs to. The caller must own the topic, and must have read
        these values as its owner. Raises ForeignSegment, and removes nothing, if another segment is not committed.
        """
        left = [path for path in self.segment_paths(kind, topic) if self.relative(path) not in known]
        for path in left:
            manifest = manifest_of(path)
            if not path.parent.name.startswith(f"segment={first}-") or manifest is None or manifest.log != log:
                raise foreign(path)
        staging_folders = self.partial / escaped(topic)
        for number, path in enumerate(left):  # by a rename, too: a reader sees the whole segment or nothing
            (staging_folders / "left").mkdir(parents=True, exist_ok=True)
            path.rename(staging_folders / "left" / f"{kind}-{number}")
        # Of former owners: one that still writes there has lost the topic, and its run fails.
        shutil.rmtree(staging_folders, ignore_errors=True)
        return [self.relative(path) for path in left]


class FolderDraft:
    """A segment that is written by Spark in a place of its own, and moved to its destination by one rename."""

    def __init__(self, folder: Folder, staging: Path, kind: str, topic: str, first: int, last: int) -> None:
        self._staging, self._kind = staging / f"{kind}-{first}", kind
        self._complete = self._staging / f"topic={escaped(topic)}"
        self._destination = folder.segment(kind, topic, first, last)
        self.path = folder.relative(self._destination)
        self.sizes: list[int] = []

    def write(self, rows: DataFrame) -> None:
        """Write the rows."""
        write_parquet(rows, str(self._staging), "topic", "date")

    def read_back(self, spark: SparkSession) -> DataFrame:
        """Return what was written."""
        return spark.read.schema(schema(self._kind)).parquet(str(self._staging))

    def complete(self, content: dict[str, Any]) -> None:
        """Add the manifest, and write everything to stable storage. content: without the files."""
        self.sizes = [file.stat().st_size for file in parquet_files(self._complete)]
        write_manifest(self._complete, content)
        sync(self._complete)

    def publish(self) -> None:
        """Move the segment to its destination. A second call changes nothing."""
        move(self._complete, self._destination)


def sync(segment: Path) -> None:
    """Write a segment's files to stable storage: collection may delete their rows from the database soon."""
    for path in sorted(segment.rglob("*")):
        sync_path(path)
    sync_path(segment)


def move(complete: Path, destination: Path) -> None:
    """Move a complete segment to its destination by one rename. A second call changes nothing."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    if complete.exists() or not destination.exists():
        os.rename(complete, destination)
    for folder in list(destination.parents)[:3]:
        sync_path(folder)
