"""The archive in an object store, which has no rename and no folders: manifests alone say what it holds.

A segment's files are written in their place, under names of their run. Its manifest, which names each of them and its
size, is one object, put last, inside the transaction that adds the segment's row: while it lasts, only the topic's
owner can come so far. So files that no manifest names are not part of the archive: a killed run, or an attempt of a
task that does not count, has left them.

An owner that was frozen before it put its manifest may do so late, when the database has long given the topic to
another one. Each manifest has its owner's fencing token: of two that overlap, the one with the higher token counts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from pyarrow.fs import FileSelector, FileType
from pyspark.sql import DataFrame, SparkSession

from sqlqueue.spark.archive_rows import schema
from sqlqueue.spark.manifest import (
    CommittedSegment,
    Manifest,
    damages,
    escaped,
    foreign,
    parsed,
    refuse_elsewhere,
    standing,
)
from sqlqueue.spark.object_files import ListedFile, opened, read_files, write_files

IDENTITIES, MANIFESTS = "_archive", "_manifests"
OF_TOKEN = 20  # digits: names sort as tokens do


class ObjectFolder:
    """An archive in an object store, by a URI that pyarrow knows: s3://bucket/lake."""

    absent = "nothing in the store is there"

    def __init__(self, uri: str) -> None:
        self.root = uri
        self._files, self._path = opened(uri)

    def prepare(self, kind: str, topic: str) -> str:
        """Return the archive's identity; a new archive gets one. Two runs may give it one at a time: both stay, and
        count."""
        identities = self._identities()
        if not identities:
            self.put(f"{IDENTITIES}/{uuid.uuid4().hex}.json", "{}\n")
            identities = self._identities()
        return min(identities)

    @contextmanager
    def drafting(self, topic: str, run: str, token: int) -> Iterator[Callable[[str, int, int], ObjectDraft]]:
        """Yield a function that gives segments which one run writes. token: the run's highest fencing token."""
        yield lambda kind, first, last: ObjectDraft(self, kind, topic, first, last, escaped(run), token)

    def exists(self) -> bool:
        """Tell whether there is anything."""
        return bool(self._files.get_file_info(self._path).type != FileType.NotFound)

    def folders(self) -> list[str]:
        """Return the names of what would be folders in it."""
        found = self._files.get_file_info(FileSelector(self._path, allow_not_found=True))
        return [info.base_name for info in found if info.type == FileType.Directory]

    def has(self, kind: str) -> bool:
        """Tell whether there are segments of a kind."""
        return any(True for _ in self._paths(f"{MANIFESTS}/{kind}"))

    def of_topic(self, kind: str, topic: str) -> list[Manifest]:
        """Return the manifests of a topic's segments. Raises DamagedArchive."""
        return standing(self._manifests(f"{MANIFESTS}/{kind}/topic={escaped(topic)}"))

    def manifest(self, path: str) -> Manifest | None:
        """Return the manifest of a committed segment by its path; None if it is not there. Raises DamagedArchive."""
        text = self.text(path)
        return None if text is None else parsed(text, PurePosixPath(path))

    def damages(self, manifest: Manifest) -> list[str]:
        """Return a text for each file of a segment that is missing or has another size."""
        sizes = self._sizes(_data(manifest.kind, manifest.topic, manifest.first, manifest.last))
        return damages(manifest, sizes.get, PurePosixPath())

    def files(self, manifest: Manifest) -> list[str]:
        """Return the paths of a segment's files."""
        return sorted(manifest.files)

    def read(
        self,
        spark: SparkSession,
        kind: str,
        files: Sequence[str] | None = None,
        topic: str = "",
        days: tuple[str, str] | None = None,
    ) -> DataFrame:
        """Return the rows of all segments of a kind, or of some files or segments; of one topic, if it is named; days:
        the first and the last date that is wanted."""
        manifests = self.of_topic(kind, topic) if topic else standing(self._manifests(f"{MANIFESTS}/{kind}"))
        listed = [_listed(path, manifest) for manifest in manifests for path in self.files(manifest)]
        if files is not None:
            wanted = set(files)
            of = {path: str(manifest.path) for manifest in manifests for path in manifest.files}
            listed = [file for file in listed if file.path in wanted or of[file.path] in wanted]
        if days is not None:
            listed = [file for file in listed if days[0] <= file.date <= days[1]]
        return read_files(spark, self.root, kind, listed)

    def holds(self, segment: CommittedSegment) -> bool:
        """Tell whether a committed segment is here, by its manifest."""
        manifest = self.manifest(segment.path)
        if manifest is None or manifest.archive not in self._identities():
            return False
        return manifest.describes(segment)

    def refuse_elsewhere(self, ends: Collection[CommittedSegment], topic: str, begin: bool = False) -> None:
        """Raise ForeignSegment unless this archive holds a topic's last segments, see manifest.refuse_elsewhere."""
        refuse_elsewhere(self.root, self.holds, ends, topic, begin)

    def refuse_foreign(self, logs: Collection[str]) -> None:
        """Raise ForeignSegment if the archive has a segment of another log than these."""
        for manifest in self._manifests(MANIFESTS):
            if manifest.log not in logs:
                raise foreign(manifest.path)

    def sweep(self, kind: str, topic: str, log: str, known: Collection[str], first: int) -> list[str]:
        """Remove what earlier runs have left of a topic and a kind; return the removed paths.

        known: the paths of the committed segments' manifests; first: where the next segment begins; log: the log that
        the archive belongs to. The caller must own the topic, and must have read these values as its owner. Raises
        ForeignSegment, and removes nothing, if another segment is not committed.
        """
        found = list(self._manifests(f"{MANIFESTS}/{kind}/topic={escaped(topic)}"))
        left = [manifest for manifest in found if str(manifest.path) not in known]
        committed = [manifest for manifest in found if str(manifest.path) in known]
        for manifest in left:
            late = any(each.overlaps(manifest) and each.token > manifest.token for each in committed)
            if manifest.log != log or not (manifest.first == first or late):
                raise foreign(manifest.path)
        named = {path for manifest in committed for path in manifest.files}
        files = {*self._begun(kind, topic, first), *(path for manifest in left for path in manifest.files)}
        begun = sorted(path for path in files - named if self._files.get_file_info(self._at(path)).is_file)
        removed = [str(manifest.path) for manifest in left] + begun  # a manifest before what it names
        for path in removed:
            self._files.delete_file(self._at(path))
        return removed

    def unknown(self, kind: str, topic: str, known: Collection[str]) -> list[str]:
        """Return the paths of what the database does not have of a topic's segments: manifests, and files that none of
        its own names. known: the paths of its manifests."""
        mine = f"topic={escaped(topic)}"
        manifests = list(self._manifests(f"{MANIFESTS}/{kind}/{mine}"))
        named = {path for manifest in manifests if str(manifest.path) in known for path in manifest.files}
        files = [path for path in self._paths(kind) if f"/{mine}/" in path and path not in named]
        return [str(each.path) for each in manifests if str(each.path) not in known] + files

    def put(self, path: str, text: str) -> None:
        """Put one object: a reader sees all of it or nothing."""
        with self._files.open_output_stream(self._at(path)) as stream:
            stream.write(text.encode())

    def text(self, path: str) -> str | None:
        """Return an object's text; None if there is none."""
        if self._files.get_file_info(self._at(path)).type != FileType.File:
            return None
        with self._files.open_input_stream(self._at(path)) as stream:
            return str(stream.read().decode())

    def _identities(self) -> set[str]:
        return {PurePosixPath(path).stem for path in self._paths(IDENTITIES)}

    def _manifests(self, folder: str) -> Iterator[Manifest]:
        for path in self._paths(folder):
            text = self.text(path)
            if text is not None:  # the topic's owner may have removed it since
                yield parsed(text, PurePosixPath(path))

    def _begun(self, kind: str, topic: str, first: int) -> list[str]:
        """Return the files of segments that begin with an offset."""
        selector = FileSelector(self._at(kind), allow_not_found=True)
        folders = [info.base_name for info in self._files.get_file_info(selector) if info.type == FileType.Directory]
        mine = [name for name in folders if name.startswith(f"segment={first}-")]
        return [path for name in mine for path in self._paths(f"{kind}/{name}/topic={escaped(topic)}")]

    def _paths(self, folder: str) -> list[str]:
        return sorted(self._sizes(folder))

    def _sizes(self, folder: str) -> dict[str, int]:
        selector = FileSelector(self._at(folder), recursive=True, allow_not_found=True)
        found = (info for info in self._files.get_file_info(selector) if info.type == FileType.File)
        return {info.path.removeprefix(f"{self._path}/"): info.size for info in found}

    def _at(self, path: str) -> str:
        return f"{self._path}/{path}"


class ObjectDraft:
    """A segment whose files are in their place, and count once its manifest is put."""

    def __init__(
        self, folder: ObjectFolder, kind: str, topic: str, first: int, last: int, run: str, token: int
    ) -> None:
        self._folder, self._kind, self._run, self._token = folder, kind, run, token
        self._topic, self._range = topic, (first, last)
        self._data = _data(kind, topic, first, last)
        self.path = f"{MANIFESTS}/{kind}/topic={escaped(topic)}/{first}-{last}-{token:0{OF_TOKEN}}.json"
        self._files: dict[str, int] = {}
        self._text = ""

    @property
    def sizes(self) -> list[int]:
        """The files' sizes in bytes."""
        return list(self._files.values())

    def write(self, rows: DataFrame) -> None:
        """Write the rows."""
        self._files = write_files(rows, self._folder.root, self._data, self._run)

    def read_back(self, spark: SparkSession) -> DataFrame:
        """Return what was written."""
        first, last = self._range
        listed = [ListedFile(path, f"{first}-{last}", self._topic, _date(path)) for path in self._files]
        return read_files(spark, self._folder.root, self._kind, listed).select(schema(self._kind).names)

    def complete(self, content: dict[str, Any]) -> None:
        """Make the manifest. content: without the files."""
        self._text = json.dumps({**content, "token": self._token, "files": self._files}, indent=1) + "\n"

    def publish(self) -> None:
        """Put the manifest. A second call changes nothing."""
        self._folder.put(self.path, self._text)


def _data(kind: str, topic: str, first: int, last: int) -> str:
    return f"{kind}/segment={first}-{last}/topic={escaped(topic)}"


def _date(path: str) -> str:
    return PurePosixPath(path).parent.name.removeprefix("date=")


def _listed(path: str, manifest: Manifest) -> ListedFile:
    return ListedFile(path, f"{manifest.first}-{manifest.last}", manifest.topic, _date(path))
