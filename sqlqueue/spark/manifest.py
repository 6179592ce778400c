"""The archive's own description: the folder's identity and each segment's manifest. Reading it needs no database."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Protocol

MANIFEST, IDENTITY = "_manifest.json", "_archive.json"  # readers of Parquet pass over names that begin with _


class DamagedArchive(Exception):
    """Segments or files of the archive are missing, or are not what the manifests say."""


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


@dataclass(frozen=True, slots=True)
class Manifest:
    """A segment's manifest. path: the segment's folder, or the object that holds the manifest; files: names and sizes
    in bytes; archive: the identity of the folder that it was written for; log: the identity of the log that its
    messages are from; token: the archivist's highest fencing token."""

    path: PurePath
    kind: str
    topic: str
    first: int
    last: int
    rows: int
    checksum: str
    log: str
    archive: str
    files: dict[str, int]
    token: int = 0

    def overlaps(self, other: Manifest) -> bool:
        """Tell whether both hold the same offsets of the same log, some at least."""
        mine, its = (self.log, self.kind, self.topic), (other.log, other.kind, other.topic)
        return mine == its and self.first <= other.last and other.first <= self.last

    def describes(self, segment: CommittedSegment) -> bool:
        """Tell whether this is the manifest of a committed segment."""
        committed = (segment.first_offset, segment.last_offset, segment.row_count, segment.checksum)
        return (self.first, self.last, self.rows, self.checksum) == committed


def damages(manifest: Manifest, size_of: Callable[[str], int | None], base: PurePath) -> list[str]:
    """Return a text for each file that is missing or has another size. size_of: tells that of a file, None if there is
    none; base: where the files' names begin."""
    texts = []
    for name, size in manifest.files.items():
        found = size_of(name)
        if found is None:
            texts.append(f"{base / name} is missing")
        elif found != size:
            texts.append(f"{base / name} has {found:,} bytes, not {size:,}")
    return texts


def parsed(text: str, path: PurePath) -> Manifest:
    """Return the manifest in a text. Raises DamagedArchive if it cannot be read."""
    try:
        content = json.loads(text)
        names = ("kind", "topic", "first", "last", "rows", "checksum", "log")
        values = {name: content[name] for name in names}
        archive, token = content.get("archive", ""), content.get("token", 0)
        return Manifest(path, **values, archive=archive, files=content["files"], token=token)
    except (ValueError, KeyError) as error:
        raise DamagedArchive(f"{path} cannot be read: {error!r}") from error


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
    return replace(parsed(path.read_text(), path), path=segment)


def manifests(root: Path, kind: str = "*", topic: str = "*") -> Iterator[Manifest]:
    """Yield the manifests of the segments in a folder; topic: as escaped() returns it. Raises DamagedArchive."""
    for segment in root.glob(f"{kind}/segment=*/topic={topic}"):
        manifest = manifest_of(segment)
        if manifest is None:
            raise DamagedArchive(f"{segment} has no {MANIFEST}")
        yield manifest


def standing(found: Iterable[Manifest]) -> list[Manifest]:
    """Return the manifests that count: of two that overlap, the one with the higher fencing token."""
    kept: dict[tuple[str, str, str], list[Manifest]] = {}
    for manifest in sorted(found, key=lambda manifest: -manifest.token):
        others = kept.setdefault((manifest.log, manifest.kind, manifest.topic), [])
        if not any(map(manifest.overlaps, others)):
            others.append(manifest)
    return [manifest for some in kept.values() for manifest in sorted(some, key=lambda manifest: manifest.first)]


def without_gaps(found: Sequence[Manifest], first: int, last: int | None) -> list[Manifest]:
    """Return the segments that hold the offsets from `first` to `last`, oldest first.

    Raises DamagedArchive if some of these offsets are in no segment (also behind the last one), or in two.
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
    if ordered and last is not None and (end := ordered[-1].last) < last:
        raise DamagedArchive(
            f"the archive of {ordered[-1].topic} ends at offset {end}: it has no segment with the offsets "
            f"{max(first, end + 1)}-{last}: name a range without them by --to"
        )
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


def refuse_elsewhere(
    root: str, holds: Callable[[Any], bool], ends: Collection[CommittedSegment], topic: str, begin: bool = False
) -> None:
    """Raise ForeignSegment unless an archive holds the last segments of a topic.

    holds: tells whether it has a committed segment; ends: the last segments of all topics. A topic without segments
    must begin where others are, unless `begin`.
    """
    mine = [segment for segment in ends if segment.topic == topic]
    if mine:
        missing = next((segment for segment in mine if not holds(segment)), None)
        if missing is not None:
            raise ForeignSegment(
                f"{root} is not where the archive of {topic} ended: its last segment, {missing.path}, is not there. "
                "Another folder, or a file system that is not mounted? Nothing was archived"
            )
    elif ends and not begin and not any(map(holds, ends)):
        raise ForeignSegment(
            f"{root} is not where this database's archive is: it holds no topic's last segment. Another folder, or a "
            f"file system that is not mounted? If {topic} is to have an archive here: --new-folder"
        )


def foreign(path: object) -> ForeignSegment:
    """Return the error for a segment that the database does not know."""
    return ForeignSegment(
        f"{path} is not in this database's manifest: another database's archive, or one from after a backup that was "
        "restored? Nothing was archived or removed: give another folder, or move it away"
    )


def escaped(name: str) -> str:
    """Return a topic's name as Spark escapes it in the name of a folder."""
    return name.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")
