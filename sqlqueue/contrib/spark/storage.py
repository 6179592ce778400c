"""An archive, wherever it is: which segments count, are this database's, are complete, or were left by killed runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from sqlqueue.contrib.spark.archive_rows import KINDS
from sqlqueue.contrib.spark.manifest import (
    CommittedSegment,
    DamagedArchive,
    ForeignSegment,
    Manifest,
    SegmentFile,
    data_folder,
    standing,
)


class Draft(Protocol):
    """A segment on its way into the archive. path: as the database will record it; sizes: of its files, in bytes."""

    path: str
    sizes: list[int]

    def write(self, rows: DataFrame) -> None:
        """Write the rows."""

    def read_back(self, spark: SparkSession) -> DataFrame:
        """Return what was written."""

    def complete(self, content: dict[str, Any]) -> None:
        """Make the manifest, and have everything on stable storage. content: without the files."""

    def publish(self) -> None:
        """Let the segment be part of the archive. A second call changes nothing."""


DraftOf = Callable[[str, int, int], Draft]  # of a kind, from an offset to another one


class Archive(ABC):
    """An archive. What depends on where it is, a folder or an object store, is in its subclasses. Paths are within
    it."""

    root: str
    absent: str  # why it may not be there

    def has(self, kind: str) -> bool:
        """Tell whether there is anything of a kind."""
        return kind in self.folders()

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the names of the folders in it."""

    @abstractmethod
    def exists(self) -> bool:
        """Tell whether there is anything."""

    @abstractmethod
    def identities(self) -> Collection[str]:
        """Return its identities: mostly one."""

    @abstractmethod
    def prepare(self, kind: str, topic: str) -> str:
        """Make it ready for a topic's segments, and return its identity. Raises ConfigurationError, before any work is
        done, for what cannot be archived there."""

    @abstractmethod
    def drafting(self, topic: str, run: str, token: int) -> AbstractContextManager[DraftOf]:
        """Yield a function that gives segments which one run, and no other process, writes; remove at the end what is
        left of them. token: the run's highest fencing token."""

    @abstractmethod
    def paths(self, kind: str, topic: str) -> list[str]:
        """Return the paths of a topic's segments (topic "": of all), as the database records them."""

    @abstractmethod
    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest of a segment by its path; None if it is not there. Raises DamagedArchive."""

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes in bytes of all data files below a folder, by path."""

    @abstractmethod
    def read(self, spark: SparkSession, kind: str, topic: str = "", days: tuple[str, str] | None = None) -> DataFrame:
        """Return the rows of all segments of a kind; of one topic, if it is named; days: the first and the last date
        that is wanted. Other files are not read."""

    @abstractmethod
    def read_files(self, spark: SparkSession, kind: str, files: Sequence[SegmentFile]) -> DataFrame:
        """Return the rows of some files."""

    @abstractmethod
    def discard(self, kind: str, topic: str, first: int, left: Sequence[Manifest]) -> list[str]:
        """Remove uncommitted segments, and what runs have begun of the segment that begins at `first`; return the
        removed paths."""

    def files(self, manifest: Manifest) -> list[str]:
        """Return the paths of a segment's files."""
        return sorted(manifest.files)

    def strays(self, kind: str, topic: str, known: Collection[str]) -> list[str]:
        """Return the data files that no manifest names, of those with these paths."""
        return []

    def shown(self, path: str) -> str:
        """Return a path as messages say it."""
        return path

    def manifests(self, kind: str, topic: str = "") -> Iterator[Manifest]:
        """Yield the manifests of a topic's segments (or all). Raises DamagedArchive."""
        for path in self.paths(kind, topic):
            manifest = self.manifest(path)
            if manifest is None:
                raise DamagedArchive(f"{self.shown(path)} has no manifest")
            yield manifest

    def of_topic(self, kind: str, topic: str) -> list[Manifest]:
        """Return the manifests of a topic's segments that count. Raises DamagedArchive."""
        return standing(self.manifests(kind, topic))

    def damages(self, manifest: Manifest) -> list[str]:
        """Return a text for each file of a segment that is missing or has another size."""
        there = self.sizes(data_folder(manifest.kind, manifest.topic, manifest.first, manifest.last))
        texts = []
        for name, size in manifest.files.items():
            if name not in there:
                texts.append(f"{self.shown(name)} is missing")
            elif there[name] != size:
                texts.append(f"{self.shown(name)} has {there[name]:,} bytes, not {size:,}")
        return texts

    def unknown(self, kind: str, topic: str, known: Collection[str]) -> list[str]:
        """Return the paths of what the database does not have of a topic's segments. known: the paths that it has."""
        return [path for path in self.paths(kind, topic) if path not in known] + self.strays(kind, topic, known)

    def holds(self, segment: CommittedSegment) -> bool:
        """Tell whether a committed segment is here, by its manifest."""
        manifest = self.manifest(segment.path)
        if manifest is None or manifest.archive not in ("", *self.identities()):
            return False
        return manifest.describes(segment)

    def refuse_elsewhere(self, ends: Collection[CommittedSegment], topic: str, begin: bool = False) -> None:
        """Raise ForeignSegment unless this archive holds the last segments of a topic.

        ends: the last segments of all topics. A topic without segments must begin where others are, unless `begin`.
        """
        mine = [segment for segment in ends if segment.topic == topic]
        if mine:
            missing = next((segment for segment in mine if not self.holds(segment)), None)
            if missing is not None:
                raise ForeignSegment(
                    f"{self.root} is not where the archive of {topic} ended: its last segment, {missing.path}, is not "
                    "there. Another folder, or a file system that is not mounted? Nothing was archived"
                )
        elif ends and not begin and not any(map(self.holds, ends)):
            raise ForeignSegment(
                f"{self.root} is not where this database's archive is: it holds no topic's last segment. Another "
                f"folder, or a file system that is not mounted? If {topic} is to have an archive here: --new-folder"
            )

    def refuse_foreign(self, logs: Collection[str]) -> None:
        """Raise ForeignSegment if there is a segment of another log than these.

        For a database without committed segments: segments of its own logs are what a killed run has left.
        """
        for manifest in (each for kind in KINDS for each in self.manifests(kind)):
            if manifest.log not in logs:
                raise self.foreign(manifest.path)

    def sweep(self, kind: str, topic: str, log: str, known: Collection[str], first: int) -> list[str]:
        """Remove what earlier runs have left of a topic and a kind; return the removed paths.

        known: the paths of the committed segments; first: where the next segment begins, since an earlier run can have
        left only that one (or one that overlaps a committed one of a higher token: its owner was frozen meanwhile);
        log: the log that the archive belongs to. The caller must own the topic, and must have read these values as its
        owner. Raises ForeignSegment, and removes nothing, if another segment is not committed.
        """
        paths = self.paths(kind, topic)
        left: list[Manifest] = []
        for path in paths:
            if path not in known:
                manifest = self.manifest(path)
                if manifest is None or manifest.log != log:
                    raise self.foreign(path)
                left.append(manifest)
        later = [manifest for manifest in left if manifest.first != first]
        committed = [found for path in paths if later and path in known and (found := self.manifest(path))]
        for manifest in later:
            if not any(each.overlaps(manifest) and each.token > manifest.token for each in committed):
                raise self.foreign(manifest.path)
        return self.discard(kind, topic, first, left)

    def foreign(self, path: str) -> ForeignSegment:
        """Return the error for a segment that the database does not know."""
        return ForeignSegment(
            f"{self.shown(path)} is not in this database's manifest: another database's archive, or one from after a "
            "backup that was restored? Nothing was archived or removed: give another folder, or move it away"
        )
