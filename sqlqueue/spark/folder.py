"""The archive's folder: a segment is moved into it by one rename, and what killed runs have left is removed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from sqlqueue.exceptions import ConfigurationError
from sqlqueue.spark.manifest import Manifest, identity, manifest_of, manifests, sync_path


class ForeignSegment(Exception):
    """The folder is not this database's archive, or not the one that holds its last segments."""


class CommittedSegment(Protocol):
    """A committed segment, as the database records it."""

    topic: str
    first_offset: int
    last_offset: int
    row_count: int
    checksum: str
    path: str


class Folder:
    """An archive's folder; `partial` is the folder within it in which segments are written until they are complete.

    It must be on one file system with an atomic rename, which the driver and all executors see under the same path: a
    local disk, or a POSIX network file system.
    """

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
    def staging(self, topic: str, run: str) -> Iterator[Path]:
        """Yield a folder in which one run, and no other process, writes a topic's segments; remove it at the end."""
        staging = self.partial / escaped(topic) / escaped(run)
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            with suppress(OSError):  # another run has a folder there
                staging.parent.rmdir()

    def segment(self, kind: str, topic: str, first: int, last: int) -> Path:
        """Return the path of a segment's folder."""
        return self.root / kind / f"segment={first}-{last}" / f"topic={escaped(topic)}"

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
        committed = (segment.first_offset, segment.last_offset, segment.row_count, segment.checksum)
        return (manifest.first, manifest.last, manifest.rows, manifest.checksum) == committed

    def refuse_elsewhere(self, ends: Collection[CommittedSegment], topic: str, begin: bool = False) -> None:
        """Raise ForeignSegment unless this folder holds the last segments of a topic.

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
        """Raise ForeignSegment if the folder has a segment of another log than these.

        For a database without committed segments: segments of its own logs are what a killed run has left.
        """
        for manifest in manifests(self.root):
            if manifest.log not in logs:
                raise ForeignSegment(_foreign(manifest.path))

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
                raise ForeignSegment(_foreign(path))
        staging_folders = self.partial / escaped(topic)
        for number, path in enumerate(left):  # by a rename, too: a reader sees the whole segment or nothing
            (staging_folders / "left").mkdir(parents=True, exist_ok=True)
            path.rename(staging_folders / "left" / f"{kind}-{number}")
        # Of former owners: one that still writes there has lost the topic, and its run fails.
        shutil.rmtree(staging_folders, ignore_errors=True)
        return [self.relative(path) for path in left]


def existing(root: str | Path) -> Folder:
    """Return an archive's folder; raise ConfigurationError if it does not exist."""
    folder = Folder(root)
    if not folder.root.is_dir():
        raise ConfigurationError(f"there is no folder {folder.root}: is its file system mounted?")
    return folder


def written(staging: Path, topic: str) -> Path:
    """Return the folder of a topic that Spark has written into a staging folder."""
    return staging / f"topic={escaped(topic)}"


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


def escaped(name: str) -> str:
    """Return a topic's name as Spark escapes it in the name of a folder."""
    return name.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")


def _foreign(path: Path) -> str:
    return (
        f"{path} is not in this database's manifest: another database's archive, or one from after a backup that was "
        "restored? Nothing was archived or removed: give another folder, or move it away"
    )
