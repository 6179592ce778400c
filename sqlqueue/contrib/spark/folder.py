"""An archive in a folder: a segment is moved into it by one rename, and what killed runs have left is removed.

The folder must be on one file system with an atomic rename, which the driver and all executors see under the same path:
a local disk, or a POSIX network file system. Whatever reads Parquet sees whole segments only.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.contrib.spark.archive_rows import read_parquet, schema, write_parquet
from sqlqueue.contrib.spark.manifest import Manifest, SegmentFile, data_folder, escaped, parsed
from sqlqueue.contrib.spark.storage import Archive, DraftOf
from sqlqueue.exceptions import ConfigurationError

MANIFEST, IDENTITY = "_manifest.json", "_archive.json"  # readers of Parquet pass over names that begin with _


class Folder(Archive):
    """An archive's folder; `partial` is the folder within it in which segments are written until they are complete."""

    absent = "is its file system mounted?"

    def __init__(self, root: str | Path) -> None:
        self.path = Path(root).absolute()
        self.root = str(self.path)
        self.partial = self.path / "_partial"

    def folders(self) -> list[str]:
        return [path.name for path in self.path.iterdir() if path.is_dir()] if self.exists() else []

    def exists(self) -> bool:
        return self.path.is_dir()

    def identities(self) -> set[str]:
        path = self.path / IDENTITY
        return {str(json.loads(path.read_text())["archive"])} if path.exists() else set()

    def prepare(self, kind: str, topic: str) -> str:
        """Make the folder ready. A topic's name may be too long for a folder's name, and no rename may lead from
        `partial` to the folder of this kind."""
        name, destination = f"topic={escaped(topic)}", self.path / kind
        destination.mkdir(parents=True, exist_ok=True)
        longest = os.pathconf(destination, "PC_NAME_MAX")
        if len(os.fsencode(name)) > longest:
            raise ConfigurationError(
                f"topic {topic!r} cannot be archived: its folder {name!r} would have more than {longest} characters"
            )
        self.partial.mkdir(exist_ok=True)
        self._try_rename(destination)
        if not self.identities():
            self._identify()
        (identity,) = self.identities()
        return identity

    @contextmanager
    def drafting(self, topic: str, run: str, token: int) -> Iterator[DraftOf]:
        staging = self.partial / escaped(topic) / escaped(run)
        try:
            yield lambda kind, first, last: FolderDraft(self, staging, kind, topic, first, last)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            with suppress(OSError):  # another run has a folder there
                staging.parent.rmdir()

    def paths(self, kind: str, topic: str) -> list[str]:
        found = (self.path / kind).glob(f"segment=*/topic={escaped(topic) or '*'}")
        return sorted(str(path.relative_to(self.path)) for path in found)

    def manifest(self, path: str) -> Manifest | None:
        file = self.path / path / MANIFEST
        return parsed(file.read_text(), path, below=path) if file.is_file() else None

    def sizes(self, folder: str) -> dict[str, int]:
        found = sorted((self.path / folder).rglob("*.parquet"))
        return {str(file.relative_to(self.path)): file.stat().st_size for file in found}

    def files(self, manifest: Manifest) -> list[str]:
        """Return the paths of what is in the segment's folder: others may have added files, which are read, too."""
        return list(self.sizes(manifest.path))

    def shown(self, path: str) -> str:
        return f"{self.root}/{path}"

    def read(self, spark: SparkSession, kind: str, topic: str = "", days: tuple[str, str] | None = None) -> DataFrame:
        rows = read_parquet(spark, self.root, kind)
        rows = rows.where(F.col("topic") == topic) if topic else rows
        return rows if days is None else rows.where(F.col("date").between(*days))  # Spark reads only their folders

    def read_files(self, spark: SparkSession, kind: str, files: Sequence[SegmentFile]) -> DataFrame:
        return read_parquet(spark, self.root, kind, [self.shown(file.path) for file in files])

    def discard(self, kind: str, topic: str, first: int, left: Sequence[Manifest]) -> list[str]:
        staging_folders = self.partial / escaped(topic)
        for number, manifest in enumerate(left):  # by a rename, too: a reader sees the whole segment or nothing
            (staging_folders / "left").mkdir(parents=True, exist_ok=True)
            (self.path / manifest.path).rename(staging_folders / "left" / f"{kind}-{number}")
        # Of former owners: one that still writes there has lost the topic, and its run fails.
        shutil.rmtree(staging_folders, ignore_errors=True)
        return [manifest.path for manifest in left]

    def _try_rename(self, destination: Path) -> None:
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

    def _identify(self) -> None:
        fresh = self.path / f"{IDENTITY}.{uuid.uuid4().hex}"
        fresh.write_text(json.dumps({"archive": uuid.uuid4().hex}) + "\n")
        sync_path(fresh)
        with suppress(FileExistsError):  # another run has created it
            os.link(fresh, self.path / IDENTITY)
        fresh.unlink()
        sync_path(self.path)


class FolderDraft:
    """A segment that is written by Spark in a place of its own, and moved to its destination by one rename."""

    def __init__(self, folder: Folder, staging: Path, kind: str, topic: str, first: int, last: int) -> None:
        self._staging, self._kind = staging / f"{kind}-{first}", kind
        self._complete = self._staging / f"topic={escaped(topic)}"
        self.path = data_folder(kind, topic, first, last)
        self._destination = folder.path / self.path
        self.sizes: list[int] = []

    def write(self, rows: DataFrame) -> None:
        """Write the rows."""
        write_parquet(rows, str(self._staging), "topic", "date")

    def read_back(self, spark: SparkSession) -> DataFrame:
        """Return what was written."""
        return spark.read.schema(schema(self._kind)).parquet(str(self._staging))

    def complete(self, content: dict[str, Any]) -> None:
        """Add the manifest, and write everything to stable storage: collection may delete the rows soon."""
        found = sorted(self._complete.rglob("*.parquet"))
        files = {str(file.relative_to(self._complete)): file.stat().st_size for file in found}
        self.sizes = list(files.values())
        (self._complete / MANIFEST).write_text(json.dumps({**content, "files": files}, indent=1) + "\n")
        for path in (*sorted(self._complete.rglob("*")), self._complete):
            sync_path(path)

    def publish(self) -> None:
        """Move the segment to its destination. A second call changes nothing."""
        self._destination.parent.mkdir(parents=True, exist_ok=True)
        if self._complete.exists() or not self._destination.exists():
            os.rename(self._complete, self._destination)
        for folder in list(self._destination.parents)[:3]:
            sync_path(folder)


def sync_path(path: Path) -> None:
    """Write a file, or a folder's list of names, to stable storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
