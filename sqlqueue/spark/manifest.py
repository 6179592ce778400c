"""The archive's own description: the folder's identity and each segment's manifest. Reading it needs no database."""

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
    """A segment's manifest. path: the segment's folder; files: names and sizes in bytes; archive: the identity of the
    folder that it was written for; log: the identity of the log that its messages are from."""

    path: Path
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
        """Return a text for each file that is missing or has another size."""
        damages = []
        for name, size in self.files.items():
            file = self.path / name
            if not file.is_file():
                damages.append(f"{file} is missing")
            elif file.stat().st_size != size:
                damages.append(f"{file} has {file.stat().st_size:,} bytes, not {size:,}")
        return damages


def identity(root: Path, create: bool = False) -> str:
    """Return an archive's identity, or "" if its folder has none; create: give the folder one if it has none."""
    path = root / IDENTITY
    if create and not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{IDENTITY}.{uuid.uuid4().hex}")
        fresh.write_text(json.dumps({"archive": uuid.uuid4().hex}) + "\n")
        sync_path(fresh)
        with suppress(FileExistsError):  # another run has created it
            os.link(fresh, path)
        fresh.unlink()
        sync_path(root)
    return str(json.loads(path.read_text())["archive"]) if path.exists() else ""


def write_manifest(segment: Path, content: dict[str, Any]) -> None:
    """Write a segment's manifest into its folder: `content`, and the names and sizes of its files."""
    files = {str(file.relative_to(segment)): file.stat().st_size for file in parquet_files(segment)}
    (segment / MANIFEST).write_text(json.dumps({**content, "files": files}, indent=1) + "\n")


def manifest_of(segment: Path) -> Manifest | None:
    """Return the manifest in a segment's folder, or None. Raises DamagedArchive if it cannot be read."""
    path = segment / MANIFEST
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        names = ("kind", "topic", "first", "last", "rows", "checksum", "log")
        values = {name: content[name] for name in names}
        return Manifest(segment, **values, archive=content.get("archive", ""), files=content["files"])
    except (ValueError, KeyError) as error:
        raise DamagedArchive(f"{path} cannot be read: {error!r}") from error


def manifests(root: Path, kind: str = "*", topic: str = "*") -> Iterator[Manifest]:
    """Yield the manifests of the segments in a folder; topic: as escaped() returns it. Raises DamagedArchive."""
    for segment in root.glob(f"{kind}/segment=*/topic={topic}"):
        manifest = manifest_of(segment)
        if manifest is None:
            raise DamagedArchive(f"{segment} has no {MANIFEST}")
        yield manifest


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
                f"the archive of {each.topic} has no segment with the offsets {reached + 1}-{each.first - 1}: name "
                "a range without them by --from and --to"
            )
        if each.first <= reached and each is not wanted[0]:
            raise DamagedArchive(f"{each.path} overlaps the segment before it, which ends at {reached}")
        reached = each.last
    return wanted


def parquet_files(segment: Path) -> Iterator[Path]:
    """Yield a segment's data files."""
    yield from sorted(segment.rglob("*.parquet"))


def sync_path(path: Path) -> None:
    """Write a file, or a folder's list of names, to stable storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
