"""Where an archive is: a place in an object store, or a folder.

An object store has no rename and no folders: an object is there as a whole, or not at all. A folder must be on one file
system with an atomic rename, which the driver and all executors see under the same path: a local disk, or a POSIX
network file system. Paths are within the place.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyspark.sql import DataFrame, SparkSession

from sqlqueue.contrib.spark.archive_rows import WRITTEN, read_files, schema, write_files
from sqlqueue.contrib.spark.manifest import SegmentFile, escaped
from sqlqueue.exceptions import ConfigurationError

PARTIAL = "_partial"  # readers of Parquet pass over names that begin with _
MOST_TASKS = 1_000  # of one read
LISTED = "path string, segment string, topic string, date string"
DELAYED = "allow_delayed_open"


class Store:
    """A place in an object store, by a URI that pyarrow knows: s3://bucket/lake. Its files are written in place."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._files, path = FileSystem.from_uri(_put_by_one_request(root))
        self._path = path.rstrip("/")

    def exists(self) -> bool:
        """Tell whether there is anything."""
        return bool(self._files.get_file_info(self._path).type == FileType.Directory)

    def folders(self, path: str = "") -> list[str]:
        """Return the names of the folders in a folder."""
        found = self._files.get_file_info(FileSelector(self._at(path), allow_not_found=True))
        return [info.base_name for info in found if info.type == FileType.Directory]

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the sizes in bytes of all files below a folder, by path."""
        selector = FileSelector(self._at(path), recursive=True, allow_not_found=True)
        found = (info for info in self._files.get_file_info(selector) if info.type == FileType.File)
        return {info.path.removeprefix(f"{self._path}/"): info.size for info in found}

    def text(self, path: str) -> str | None:
        """Return a file's text; None if there is none."""
        if not self._files.get_file_info(self._at(path)).is_file:
            return None
        with self.opened(path) as file:
            return str(file.read().decode())

    def opened(self, path: str) -> Any:
        """Return a file to read."""
        return self._files.open_input_file(self._at(path))

    def created(self, path: str) -> Any:
        """Return a new file to write."""
        return self._files.open_output_stream(self._at(path))

    def delete(self, path: str) -> None:
        """Delete a file if it is there."""
        with suppress(FileNotFoundError):
            self._files.delete_file(self._at(path))

    def put(self, path: str, text: str, run: str) -> None:
        """Put a small file: a reader sees all of it or nothing. run: what writes it."""
        with self.created(path) as stream:
            stream.write(text.encode())

    def require(self, kind: str, topic: str) -> None:
        """Raise ConfigurationError if segments of a topic cannot be put here."""

    def drafts(self, folder: str, run: str) -> tuple[str, str]:
        """Return where a run's tasks write the files of a folder, and where the finished ones are until they are
        published."""
        return folder, folder

    def finish(self, begun: str, whole: str, names: Iterable[str]) -> None:
        """Take the files that count from where tasks have written them; they are on stable storage afterwards."""

    def publish(self, whole: str, folder: str) -> None:
        """Let finished files be in their place, all at once. A second call changes nothing."""

    def withdraw(self, folder: str, run: str) -> None:
        """Remove a folder with all its files: a reader sees all of them or none, where the store can do that."""
        for path in self.sizes(folder):
            self.delete(path)

    def end(self, run: str) -> None:
        """Remove what a run has written elsewhere than in place; a topic: what all its runs have."""

    def write(self, rows: DataFrame, folder: str, run: str) -> dict[str, int]:
        """Write rows of one topic, divided by date; return the names below the folder, and the sizes, of the files."""
        files = rows.mapInArrow(partial(write_files, self, folder, run), WRITTEN)
        return {row["name"]: row["bytes"] for row in files.collect()}

    def read(self, spark: SparkSession, kind: str, files: Sequence[SegmentFile]) -> DataFrame:
        """Return the rows of files."""
        columns = schema(kind, segments=True)
        listed = spark.createDataFrame(list(files), LISTED).repartition(max(1, min(len(files), MOST_TASKS)))
        return listed.mapInArrow(partial(read_files, self, columns), columns)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process open it with the keys of its own environment."""
        return type(self), (self.root,)

    def _at(self, path: str) -> str:
        return f"{self._path}/{path}" if path else self._path


class Folder(Store):
    """A folder. A segment is written in the folder PARTIAL, and moved into its place by one rename: whatever reads
    Parquet sees whole segments only."""

    def __init__(self, root: str) -> None:
        super().__init__(str(Path(root).absolute()))
        self._folder = Path(self.root)

    def created(self, path: str) -> Any:
        """Return a new file to write, in a folder that may be new."""
        (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
        return super().created(path)

    def put(self, path: str, text: str, run: str) -> None:
        """Write a small file, and move it into its place once it is on stable storage."""
        draft = f"{PARTIAL}/{run}/{uuid.uuid4().hex}"
        super().put(draft, text, run)
        sync_path(self._folder / draft)
        self._move(draft, path)

    def require(self, kind: str, topic: str) -> None:
        """Raise ConfigurationError if the topic's name is too long for a folder's, or if no rename leads from PARTIAL
        to the folder of this kind."""
        name, destination = f"topic={escaped(topic)}", self._folder / kind
        destination.mkdir(parents=True, exist_ok=True)
        longest = os.pathconf(destination, "PC_NAME_MAX")
        if len(os.fsencode(name)) > longest:
            raise ConfigurationError(
                f"topic {topic!r} cannot be archived: its folder {name!r} would have more than {longest} characters"
            )
        probe = self._folder / PARTIAL / f"probe-{uuid.uuid4().hex}"
        probe.parent.mkdir(exist_ok=True)
        moved = destination / f"_{probe.name}"
        try:
            probe.touch()
            os.rename(probe, moved)
        except OSError as error:
            raise ConfigurationError(
                f"nothing can be moved from {probe.parent} to {destination}, which must be on one file system: {error}"
            ) from error
        finally:
            probe.unlink(missing_ok=True)
            moved.unlink(missing_ok=True)

    def drafts(self, folder: str, run: str) -> tuple[str, str]:
        """Return folders of the run's own: an attempt of a task that does not count may still write in the first."""
        return f"{PARTIAL}/{run}/begun/{folder}", f"{PARTIAL}/{run}/whole/{folder}"

    def finish(self, begun: str, whole: str, names: Iterable[str]) -> None:
        """Move the files that count into a folder of theirs, and write all of it to stable storage."""
        for name in names:
            (self._folder / whole / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(self._folder / begun / name, self._folder / whole / name)
        for path in (*(self._folder / whole).rglob("*"), self._folder / whole):
            sync_path(path)

    def publish(self, whole: str, folder: str) -> None:
        """Move the folder to its place by one rename. A second call changes nothing."""
        if (self._folder / whole).exists() or not (self._folder / folder).exists():
            self._move(whole, folder)

    def withdraw(self, folder: str, run: str) -> None:
        """Move a folder out of the readers' sight by one rename; end() deletes it."""
        self._move(folder, f"{PARTIAL}/{run}/left/{uuid.uuid4().hex}")

    def end(self, run: str) -> None:
        """Delete what a run has written in PARTIAL; a topic: what all its runs have."""
        written = self._folder / PARTIAL / run
        shutil.rmtree(written, ignore_errors=True)
        if written.parent.name != PARTIAL:
            with suppress(OSError):  # another run has a folder there
                written.parent.rmdir()

    def write(self, rows: DataFrame, folder: str, run: str) -> dict[str, int]:
        """Write rows by Spark's own writer, which takes half the time. Times are written with their time zone, as every
        reader knows them; this is a setting of the whole Spark session."""
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        rows.drop("topic").write.option("compression", "zstd").partitionBy("date").parquet(f"{self.root}/{folder}")
        found = {path.removeprefix(f"{folder}/"): size for path, size in self.sizes(folder).items()}
        return {name: size for name, size in found.items() if name.endswith(".parquet")}

    def read(self, spark: SparkSession, kind: str, files: Sequence[SegmentFile]) -> DataFrame:
        """Return the rows of files by Spark's own reader, which reads the columns that are asked for."""
        columns = schema(kind, segments=True)
        if not files:
            return spark.createDataFrame([], columns)
        base = files[0].path.partition("/segment=")[0]  # the folders below it have names such as date=2013-01-31
        reader = spark.read.schema(columns).option("basePath", f"{self.root}/{base}")
        return reader.parquet(*(f"{self.root}/{file.path}" for file in files))

    def _move(self, path: str, to: str) -> None:
        target = self._folder / to
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self._folder / path, target)
        for parent in target.parents:
            if parent.is_relative_to(self._folder):
                sync_path(parent)


def opened(root: str) -> Store:
    """Return a folder, or with a URI such as s3://bucket/lake a place in an object store.

    Raises ConfigurationError for a URI that pyarrow does not know.
    """
    text = str(root)
    if "://" not in text:
        return Folder(text)
    if text.startswith("file:"):
        raise ConfigurationError(f"{text} is a folder: give its path, without file://")
    if urlsplit(text).password is not None:
        raise ConfigurationError("an archive's keys are not for its URI: let the environment have them")
    try:
        return Store(text)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{text} cannot be opened: {error}") from error


def below(root: str, path: str) -> str:
    """Return the root of what is at a path below another one."""
    parts = urlsplit(str(root)) if "://" in str(root) else None
    return f"{root}/{path}" if parts is None else urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{path}"))


def sync_path(path: Path) -> None:
    """Write a file, or a folder's list of names, to stable storage."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_by_one_request(root: str) -> str:
    """Return a URI of S3 such that an object that fits into one request is put by one."""
    parts = urlsplit(root)
    if parts.scheme != "s3" or DELAYED in parts.query:
        return root
    return urlunsplit(parts._replace(query="&".join(filter(None, [parts.query, f"{DELAYED}=true"]))))
