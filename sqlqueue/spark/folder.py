"""The archive's folder: segments appear in it whole, by one rename, and what no manifest names is swept out."""

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
    """The folder is not this database's archive, or not the one where it ended."""


class Counted(Protocol):
    """A segment that counts, as the database's manifest has it."""

    topic: str
    first_offset: int
    last_offset: int
    row_count: int
    checksum: str
    path: str


class Folder:
    """An archive's folder, and within it the one in which segments are written until they are whole.

    It must be on one file system, which the driver and all executors see under the same path, and whose rename is
    atomic: a local disk, or a POSIX network file system.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.partial = self.root / "_partial"

    def prepare(self, kind: str, topic: str) -> str:
        """Make the folder ready for a topic's segments, and return its identity; refuse, before any work is done, a
        name that is too long for a folder, and a place to which no rename leads."""
        name, place = f"topic={escaped(topic)}", self.root / kind
        place.mkdir(parents=True, exist_ok=True)
        longest = os.pathconf(place, "PC_NAME_MAX")
        if len(os.fsencode(name)) > longest:
            raise ConfigurationError(
                f"topic {topic!r} cannot be archived: its folder {name!r} would have more than {longest} characters"
            )
        self.partial.mkdir(exist_ok=True)
        probe = self.partial / f"probe-{uuid.uuid4().hex}"
        moved = place / f"_{probe.name}"
        try:
            probe.touch()
            os.rename(probe, moved)
        except OSError as error:
            raise ConfigurationError(
                f"nothing can be moved from {self.partial} to {place}, which must be on one file system: {error}"
            ) from error
        finally:
            probe.unlink(missing_ok=True)
            moved.unlink(missing_ok=True)
        return identity(self.root, create=True)

    @contextmanager
    def workshop(self, topic: str, run: str) -> Iterator[Path]:
        """Give one run a place to write a topic's segments, in which nobody else ever writes; remove it at the end."""
        place = self.partial / escaped(topic) / escaped(run)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):  # somebody else works there, too
                place.parent.rmdir()

    def segment(self, kind: str, topic: str, first: int, last: int) -> Path:
        """Return where a segment belongs."""
        return self.root / kind / f"segment={first}-{last}" / f"topic={escaped(topic)}"

    def relative(self, path: Path) -> str:
        """Return a path as the manifest names it."""
        return str(path.relative_to(self.root))

    def places(self, kind: str, topic: str) -> list[Path]:
        """Return the folders of a topic's segments."""
        return sorted((self.root / kind).glob(f"segment=*/topic={escaped(topic)}"))

    def of_topic(self, kind: str, topic: str) -> list[Manifest]:
        """Return the manifests of a topic's segments. Raises DamagedArchive."""
        return list(manifests(self.root, kind, escaped(topic)))

    def holds(self, segment: Counted) -> bool:
        """Tell whether a segment that counts is here, by its manifest."""
        found = manifest_of(self.root / segment.path)
        if found is None or found.archive not in ("", identity(self.root)):
            return False
        counted = (segment.first_offset, segment.last_offset, segment.row_count, segment.checksum)
        return (found.first, found.last, found.rows, found.checksum) == counted

    def refuse_elsewhere(self, ends: Collection[Counted], topic: str, begin: bool = False) -> None:
        """Raise ForeignSegment unless this is where the archive of a topic goes on: the folder that holds its last
        segments. ends: the last segments of all topics; a topic that has none goes where others are. begin: it may
        begin in another folder."""
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
        """Raise ForeignSegment if there is a segment of a log other than these. For a database that knows no segments
        yet: what is here of its own logs is what a killed run has left."""
        for found in manifests(self.root):
            if found.log not in logs:
                raise ForeignSegment(_foreign(found.place))

    def sweep(self, kind: str, topic: str, log: str, known: Collection[str], first: int) -> list[str]:
        """Remove what an earlier run has left of a topic and a kind; return what it was, as a manifest would name it.

        known: the paths of the segments that count; first: where the next one begins, for only that one can have been
        left; log: whose archive it is. To be called only while nobody else can own the topic, with what was read then.
        Raises ForeignSegment, and removes nothing, if there is any other segment that does not count.
        """
        left = [place for place in self.places(kind, topic) if self.relative(place) not in known]
        for place in left:
            found = manifest_of(place)
            if not place.parent.name.startswith(f"segment={first}-") or found is None or found.log != log:
                raise ForeignSegment(_foreign(place))
        workshops = self.partial / escaped(topic)
        for number, place in enumerate(left):  # by a rename as well: a reader sees all of it, or nothing
            (workshops / "left").mkdir(parents=True, exist_ok=True)
            place.rename(workshops / "left" / f"{kind}-{number}")
        # Those of former owners: one that still writes there has lost the topic, and finds its work gone.
        shutil.rmtree(workshops, ignore_errors=True)
        return [self.relative(place) for place in left]


def existing(root: str | Path) -> Folder:
    """Return an archive's folder; refuse one that there is not."""
    folder = Folder(root)
    if not folder.root.is_dir():
        raise ConfigurationError(f"there is no folder {folder.root}: is its file system mounted?")
    return folder


def written(workshop: Path, topic: str) -> Path:
    """Return the folder of a topic that Spark has written into a workshop."""
    return workshop / f"topic={escaped(topic)}"


def sync(segment: Path) -> None:
    """Return when a segment's files would survive a power cut: what they hold may be deleted from the database soon."""
    for path in sorted(segment.rglob("*")):
        sync_path(path)
    sync_path(segment)


def move(whole: Path, place: Path) -> None:
    """Put a whole segment into its place, by one rename. To do it again changes nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if whole.exists() or not place.exists():
        os.rename(whole, place)
    for folder in (place.parent, place.parent.parent, place.parent.parent.parent):
        sync_path(folder)


def escaped(name: str) -> str:
    """Return a topic's name as Spark spells it in the name of a folder."""
    return name.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")


def _foreign(place: Path) -> str:
    return (
        f"{place} is not in this database's manifest: another database's archive, or one from after a backup that was "
        "restored? Nothing was archived or removed: give another folder, or move it away"
    )
