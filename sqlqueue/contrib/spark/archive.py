"""An archive: which segments count, are this database's, are complete, or were left by killed runs.

A segment is its files, and a manifest that names each of them and its size. The manifest is put last, inside the
transaction that adds the segment's row: while that lasts, only the topic's owner can come so far. So files that no
manifest names are not part of the archive: a killed run, or an attempt of a task that does not count, has left them.

An owner that was frozen before it put its manifest may do so late, when the database has long given the topic to
another one. Each manifest has its owner's fencing token: of two that overlap, the one with the higher token counts.

Of several databases each has offsets and segments of its own, so its archive is one of its own, in `database=NAME`.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from functools import reduce
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.contrib.spark.manifest import (
    KINDS,
    MESSAGES,
    ForeignSegment,
    Manifest,
    data_folder,
    escaped,
    manifest_folder,
    parsed,
    standing,
)
from sqlqueue.contrib.spark.store import below, opened
from sqlqueue.exceptions import ConfigurationError

if TYPE_CHECKING:  # needs Django, which this module does without
    from sqlqueue.contrib.spark.models import ArchiveSegment

IDENTITIES = "_archive"
DATABASE = "database="


class Archive:
    """An archive in a folder or an object store. Paths are within it; segments are known by their manifests' paths."""

    def __init__(self, root: str) -> None:
        self.store = opened(root)
        self.root = self.store.root

    def has(self, kind: str) -> bool:
        """Tell whether there is anything of a kind."""
        return kind in self.store.folders()

    def identities(self) -> set[str]:
        """Return its identities: mostly one. Two runs may give a new archive one at a time: both stay, and count."""
        return {PurePosixPath(path).stem for path in self.store.sizes(IDENTITIES)}

    def prepare(self, kind: str, topic: str) -> str:
        """Make it ready for a topic's segments, and return its identity. Raises ConfigurationError, before any work is
        done, for what cannot be archived there."""
        self.store.require(kind, topic)
        if not self.identities():
            self.store.put(f"{IDENTITIES}/{uuid.uuid4().hex}.json", "{}\n", escaped(topic))
        return min(self.identities())

    def paths(self, kind: str, topic: str = "") -> list[str]:
        """Return the paths of a topic's segments (or of all)."""
        return sorted(self.store.sizes(manifest_folder(kind, topic)))

    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest at a path; None if it is not there. Raises DamagedArchive."""
        text = self.store.text(path)
        return None if text is None else parsed(text, path)

    def manifests(self, kind: str, topic: str = "") -> Iterator[Manifest]:
        """Yield the manifests of a topic's segments (or of all). Raises DamagedArchive."""
        for path in self.paths(kind, topic):
            if manifest := self.manifest(path):
                yield manifest

    def of_topic(self, kind: str, topic: str = "") -> list[Manifest]:
        """Return the manifests of a topic's segments (or of all) that count. Raises DamagedArchive."""
        return standing(self.manifests(kind, topic))

    def read(self, spark: SparkSession, kind: str, topic: str = "", days: tuple[str, str] | None = None) -> DataFrame:
        """Return the rows of all segments of a kind; of one topic, if it is named; days: the first and the last date
        that is wanted. Other files are not read."""
        files = [file for manifest in self.of_topic(kind, topic) for file in manifest.parts()]
        wanted = [file for file in files if days is None or days[0] <= file.date <= days[1]]
        return self.store.read(spark, kind, wanted)

    def damages(self, manifest: Manifest) -> list[str]:
        """Return a text for each file of a segment that is missing or has another size."""
        there = self.store.sizes(data_folder(manifest.kind, manifest.topic, manifest.first, manifest.last))
        missing = [f"{name} is missing" for name in manifest.files if name not in there]
        return missing + [
            f"{name} has {there[name]:,} bytes, not {size:,}"
            for name, size in manifest.files.items()
            if there.get(name, size) != size
        ]

    def unknown(self, kind: str, topic: str, known: Collection[str]) -> list[str]:
        """Return the paths of what the database does not have of a topic: segments, and files that are in none. known:
        the paths of the segments that it has."""
        named = {path for each in self.manifests(kind, topic) if each.path in known for path in each.files}
        files = (path for path in self.store.sizes(kind) if f"/topic={escaped(topic)}/" in path)
        return [path for path in self.paths(kind, topic) if path not in known] + sorted({*files} - named)

    def holds(self, segment: ArchiveSegment) -> bool:
        """Tell whether a committed segment is here, by its manifest."""
        manifest = self.manifest(segment.path)
        return manifest is not None and manifest.archive in self.identities() and manifest.describes(segment)

    def refuse_elsewhere(self, ends: Collection[ArchiveSegment], topic: str, begin: bool = False) -> None:
        """Raise ForeignSegment unless this archive holds the last segments of a topic.

        ends: the last segments of all topics. A topic without segments must begin where others are, unless `begin`.
        """
        mine = [segment for segment in ends if segment.topic == topic]
        if missing := [segment for segment in mine if not self.holds(segment)]:
            raise ForeignSegment(
                f"{self.root} is not where the archive of {topic} ended: its last segment, {missing[0].path}, is not "
                "there. Another folder, or a file system that is not mounted? Nothing was archived"
            )
        if ends and not mine and not begin and not any(map(self.holds, ends)):
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
                raise _foreign(manifest)

    def sweep(self, kind: str, topic: str, log: str, known: Collection[str], first: int) -> list[str]:
        """Remove what earlier runs have left of a topic and a kind; return the removed paths.

        known: the paths of the committed segments; first: where the next segment begins, since an earlier run can have
        left only that one (or one that overlaps a committed one of a higher token: its owner was frozen meanwhile);
        log: the log that the archive belongs to. The caller must own the topic, and must have read these values as its
        owner. Raises ForeignSegment, and removes nothing, if another segment is not committed.
        """
        paths = self.paths(kind, topic)
        left = [manifest for path in paths if path not in known and (manifest := self.manifest(path))]
        late = [manifest for manifest in left if manifest.first != first]
        committed = [manifest for path in paths if late and path in known and (manifest := self.manifest(path))]
        overlapped = [
            manifest
            for manifest in late
            if any(each.overlaps(manifest) and each.token > manifest.token for each in committed)
        ]
        for manifest in left:
            if manifest.log != log or (manifest in late and manifest not in overlapped):
                raise _foreign(manifest)
        return self._discard(kind, topic, first, left)

    def _discard(self, kind: str, topic: str, first: int, left: Sequence[Manifest]) -> list[str]:
        """Remove uncommitted segments, and what runs have begun of the segment that begins at `first`."""
        for manifest in left:  # before what it names
            self.store.delete(manifest.path)
        names = (name for name in self.store.folders(kind) if name.startswith(f"segment={first}-"))
        folders = (f"{kind}/{name}/topic={escaped(topic)}" for name in names)
        begun = {folder: files for folder in folders if (files := sorted(self.store.sizes(folder)))}
        for folder in begun:
            self.store.withdraw(folder, escaped(topic))
        removed = [path for files in begun.values() for path in files]
        late = [path for manifest in left for path in manifest.files if path not in removed]
        for path in late:
            self.store.delete(path)
        # Of former owners: one that still writes there has lost the topic, and its run fails.
        self.store.end(escaped(topic))
        return [*(manifest.path for manifest in left), *removed, *late]


def existing(root: str) -> Archive:
    """Return an archive; raise ConfigurationError if it does not exist."""
    archive = Archive(root)
    if not archive.store.exists():
        raise ConfigurationError(f"there is nothing at {archive.root}: is its file system mounted?")
    return archive


def of_database(root: str, database: str) -> Archive:
    """Return the part of an archive that is a database's; database: "" if there is one log only."""
    return Archive(below(root, DATABASE + database) if database else root)


def parts(root: str) -> dict[str, Archive]:
    """Return an archive's parts by database; "" if it is of one log only. Raises ConfigurationError if it is both."""
    whole = Archive(root)
    names = sorted(name.removeprefix(DATABASE) for name in whole.store.folders() if name.startswith(DATABASE))
    if not names:
        return {"": whole}
    if any(map(whole.has, KINDS)):
        raise ConfigurationError(
            f"{root} has segments beside its parts {DATABASE}…: move its folders and files, which are of the time "
            "before there were several databases, into the part of the database that they are of"
        )
    return {name: of_database(root, name) for name in names}


def read_archive(
    spark: SparkSession, folder: str, kind: str = MESSAGES, topic: str = "", days: tuple[str, str] | None = None
) -> DataFrame:
    """Return the messages or receipts in an archive: a folder, or a URI of an object store. topic: of this one only;
    days: the first and the last date that is wanted, as YYYY-MM-DD: other files are not read.

    An archive of several databases has a column `database`.
    """
    found = {name: part for name, part in parts(folder).items() if not name or part.has(kind)}
    return with_databases({database: part.read(spark, kind, topic, days) for database, part in found.items()})


def with_databases(rows: dict[str, DataFrame]) -> DataFrame:
    """Return rows by database as one DataFrame, with a column `database`; without it if there is one log only."""
    if "" in rows:
        return rows[""]
    return reduce(DataFrame.unionByName, (each.withColumn("database", F.lit(name)) for name, each in rows.items()))


def _foreign(manifest: Manifest) -> ForeignSegment:
    """Return the error for a segment that the database does not know."""
    return ForeignSegment(
        f"{manifest.path} is not in this database's manifest: another database's archive, or one from after a backup "
        "that was restored? Nothing was archived or removed: give another folder, or move it away"
    )
