"""The archive's folder: segments appear in it whole, by one rename, and what no manifest names is swept out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MANIFEST = "_manifest.json"  # readers of Parquet pass over names that begin with _


class ForeignSegment(Exception):
    """The folder holds segments which are not this database's."""


class Folder:
    """An archive's folder, and the sibling in which segments are written until they are whole.

    Both must be on one file system, which the driver and all executors see under the same path, and whose rename is
    atomic: a local disk, or a POSIX network file system.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.partial = self.root.with_name(f"{self.root.name}.partial")

    @contextmanager
    def workshop(self, topic: str, run: str) -> Iterator[Path]:
        """Give one run a place to write a topic's segments, in which nobody else ever writes; remove it at the end."""
        place = self.partial / _escaped(topic) / _escaped(run)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
            for parent in (place.parent, self.partial):
                with suppress(OSError):  # somebody else works there, too
                    parent.rmdir()

    def segment(self, kind: str, topic: str, first: int, last: int) -> Path:
        """Return where a segment belongs."""
        return self.root / kind / f"segment={first}-{last}" / f"topic={_escaped(topic)}"

    def relative(self, path: Path) -> str:
        """Return a path as the manifest names it."""
        return str(path.relative_to(self.root))

    def sweep(self, kind: str, topic: str, log: str, known: Collection[str], first: int) -> list[str]:
        """Remove what an earlier run has left of a topic and a kind; return what it was, as a manifest would name it.

        known: the paths of the segments that count; first: where the next one begins, for only that one can have been
        left; log: whose archive it is. To be called only while nobody else can own the topic, with what was read then.
        Raises ForeignSegment, and removes nothing, if there is any other segment that does not count.
        """
        places = sorted((self.root / kind).glob(f"segment=*/topic={_escaped(topic)}"))
        left = [place for place in places if self.relative(place) not in known]
        for place in left:
            if not place.parent.name.startswith(f"segment={first}-") or _log_of(place) != log:
                raise ForeignSegment(
                    f"{place} is not in this database's manifest: another database's archive, or one from after a "
                    "backup that was restored? Nothing was archived or removed: give another folder, or move it away"
                )
        workshops = self.partial / _escaped(topic)
        for number, place in enumerate(left):  # by a rename as well: a reader sees all of it, or nothing
            (workshops / "left").mkdir(parents=True, exist_ok=True)
            place.rename(workshops / "left" / f"{kind}-{number}")
        # Those of former owners: one that still writes there has lost the topic, and finds its work gone.
        shutil.rmtree(workshops, ignore_errors=True)
        return [self.relative(place) for place in left]


def written(workshop: Path, topic: str) -> Path:
    """Return the folder of a topic that Spark has written into a workshop."""
    return workshop / f"topic={_escaped(topic)}"


def write_manifest(segment: Path, content: dict[str, Any]) -> None:
    """Describe a segment, with its files' names and sizes, in the segment itself: no database is needed to check it."""
    files = {str(file.relative_to(segment)): file.stat().st_size for file in parquet_files(segment)}
    (segment / MANIFEST).write_text(json.dumps({**content, "files": files}, indent=1) + "\n")


def parquet_files(segment: Path) -> Iterator[Path]:
    """Yield a segment's data files."""
    yield from sorted(segment.rglob("*.parquet"))


def sync(segment: Path) -> None:
    """Return when a segment's files would survive a power cut: what they hold may be deleted from the database soon."""
    for path in sorted(segment.rglob("*")):
        _sync(path)
    _sync(segment)


def move(whole: Path, place: Path) -> None:
    """Put a whole segment into its place, by one rename. To do it again changes nothing."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if whole.exists() or not place.exists():
        os.rename(whole, place)
    for folder in (place.parent, place.parent.parent, place.parent.parent.parent):
        _sync(folder)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _log_of(segment: Path) -> str:
    return str(json.loads((segment / MANIFEST).read_text())["log"])


def _escaped(name: str) -> str:
    """Return a topic's name as Spark spells it in the name of a folder."""
    return name.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")
