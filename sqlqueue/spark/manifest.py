"""What the archive's files say of themselves: the folder's identity, and each segment's manifest. No database is needed
to know what an archive holds."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST, IDENTITY = "_manifest.json", "_archive.json"  # readers of Parquet pass over names that begin with _


class DamagedArchive(Exception):
    """Segments or files of the archive are missing, or are not what the manifests say."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A segment as its own manifest tells it. place: its folder; files: their names and sizes; archive: the identity of
    the folder that it was written for; log: whose messages these are."""

    place: Path
    kind: str
    topic: str
    first: int
    last: int
    rows: int
    checksum: str
    log: str
    archive: str
    files: dict[str, int]

    def damages(self) -> list[str]:
        """Return what is wrong with the files, as far as their names and sizes tell."""
        said = []
        for name, size in self.files.items():
            path = self.place / name
            if not path.is_file():
                said.append(f"{path} is missing")
            elif path.stat().st_size != size:
                said.append(f"{path} has {path.stat().st_size:,} bytes, not {size:,}")
        return said


def identity(root: Path, create: bool = False) -> str:
    """Return an archive's identity; "" if its folder has none. create: give it one then."""
    path = root / IDENTITY
    if create and not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{IDENTITY}.{uuid.uuid4().hex}")
        fresh.write_text(json.dumps({"archive": uuid.uuid4().hex}) + "\n")
        sync_path(fresh)
        with suppress(FileExistsError):  # another run was quicker
            os.link(fresh, path)
        fresh.unlink()
        sync_path(root)
    return str(json.loads(path.read_text())["archive"]) if path.exists() else ""


def write_manifest(segment: Path, content: dict[str, Any]) -> None:
    """Describe a segment, with its files' names and sizes, in the segment itself."""
    files = {str(file.relative_to(segment)): file.stat().st_size for file in parquet_files(segment)}
    (segment / MANIFEST).write_text(json.dumps({**content, "files": files}, indent=1) + "\n")


def manifest_of(place: Path) -> Manifest | None:
    """Return the manifest of a segment's folder; None if there is none."""
    path = place / MANIFEST
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_text())
        names = ("kind", "topic", "first", "last", "rows", "checksum", "log")
        values = {name: said[name] for name in names}
        return Manifest(place, **values, archive=said.get("archive", ""), files=said["files"])
    except (ValueError, KeyError) as error:
        raise DamagedArchive(f"{path} cannot be read: {error!r}") from error


def manifests(root: Path, kind: str = "*", topic: str = "*") -> Iterator[Manifest]:
    """Yield the manifests of the segments in a folder; topic as folders' names spell it."""
    for place in root.glob(f"{kind}/segment=*/topic={topic}"):
        found = manifest_of(place)
        if found is None:
            raise DamagedArchive(f"{place} has no {MANIFEST}")
        yield found


def without_gaps(found: Sequence[Manifest], first: int, last: int | None) -> list[Manifest]:
    """Return the segments that hold the offsets from `first` to `last`, oldest first.

    Raises DamagedArchive if some of these offsets are in no segment, or in two.
    """
    ordered = sorted(found, key=lambda manifest: manifest.first)
    wanted = [each for each in ordered if each.last >= first and (last is None or each.first <= last)]
    reached = first - 1 if wanted and wanted[0].first <= first else 0
    for each in wanted:
        if each.first > reached + 1:
            raise DamagedArchive(
                f"the archive of {each.topic} has no segment with the offsets {reached + 1}-{each.first - 1}: what "
                "there is besides can be named by --from and --to"
            )
        if each.first <= reached and each is not wanted[0]:
            raise DamagedArchive(f"{each.place} overlaps the segment before it, which ends at {reached}")
        reached = each.last
    return wanted


def parquet_files(segment: Path) -> Iterator[Path]:
    """Yield a segment's data files."""
    yield from sorted(segment.rglob("*.parquet"))


def sync_path(path: Path) -> None:
    """Return when a file, or a folder's list of names, would survive a power cut."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
