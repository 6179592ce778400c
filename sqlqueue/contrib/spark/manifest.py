"""The archive's own description: each segment's manifest. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # needs Django, which this module does without
    from sqlqueue.contrib.spark.models import ArchiveSegment

KINDS = MESSAGES, RECEIPTS = "messages", "receipts"
MANIFESTS = "_manifests"
OF_TOKEN = 20  # digits: names sort as tokens do


class DamagedArchive(Exception):
    """Segments or files of the archive are missing, or are not what the manifests say."""


class ForeignSegment(Exception):
    """The archive is not this database's, or not the one that holds its last segments."""


class SegmentFile(NamedTuple):
    """A file of a segment, and what its rows have in common. path: within the archive."""

    path: str
    segment: str
    topic: str
    date: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A segment's manifest. path: as the database records it, within the archive; files: paths within the archive, and
    sizes in bytes; archive: the identity of the archive that it was written for; log: the identity of the log that its
    messages are from; token: the archivist's highest fencing token."""

    path: str
    kind: str
    topic: str
    first: int
    last: int
    rows: int
    checksum: str
    log: str
    archive: str
    token: int
    files: Mapping[str, int]

    def overlaps(self, other: Manifest) -> bool:
        """Tell whether both hold the same offsets of the same log, some at least."""
        mine, its = (self.log, self.kind, self.topic), (other.log, other.kind, other.topic)
        return mine == its and self.first <= other.last and other.first <= self.last

    def describes(self, segment: ArchiveSegment) -> bool:
        """Tell whether this is the manifest of a committed segment."""
        committed = (segment.first_offset, segment.last_offset, segment.row_count, segment.checksum)
        return (self.first, self.last, self.rows, self.checksum) == committed

    def parts(self) -> list[SegmentFile]:
        """Return the segment's files."""
        return [file_of(path, self.first, self.last, self.topic) for path in sorted(self.files)]


def parsed(text: str, path: str) -> Manifest:
    """Return the manifest in a text. Raises DamagedArchive if it cannot be read."""
    try:
        content = json.loads(text)
        return Manifest(path, *(content[field.name] for field in fields(Manifest)[1:]))
    except (ValueError, KeyError) as error:
        raise DamagedArchive(f"{path} cannot be read: {error!r}") from error


def standing(found: Iterable[Manifest]) -> list[Manifest]:
    """Return the manifests that count: of two that overlap, the one with the higher fencing token."""
    kept: dict[tuple[str, str, str], list[Manifest]] = {}
    for manifest in sorted(found, key=lambda manifest: -manifest.token):
        others = kept.setdefault((manifest.log, manifest.kind, manifest.topic), [])
        if not any(each.token > manifest.token and each.overlaps(manifest) for each in others):
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


def data_folder(kind: str, topic: str, first: int, last: int) -> str:
    """Return the path of a segment's files; below it they are divided by date."""
    return f"{kind}/segment={first}-{last}/topic={escaped(topic)}"


def manifest_folder(kind: str, topic: str = "") -> str:
    """Return the path of a topic's manifests (or of all)."""
    return f"{MANIFESTS}/{kind}" + (f"/topic={escaped(topic)}" if topic else "")


def manifest_path(kind: str, topic: str, first: int, last: int, token: int) -> str:
    """Return the path of a segment's manifest."""
    return f"{manifest_folder(kind, topic)}/{first}-{last}-{token:0{OF_TOKEN}}.json"


def file_of(path: str, first: int, last: int, topic: str) -> SegmentFile:
    """Return what is known of a file of a segment."""
    return SegmentFile(path, f"{first}-{last}", topic, PurePosixPath(path).parent.name.removeprefix("date="))


def escaped(name: str) -> str:
    """Return a topic's name as Spark escapes it in the name of a folder."""
    return name.replace("%", "%25").replace("/", "%2F").replace(":", "%3A")
