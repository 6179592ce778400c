"""An archive in an object store, which has no rename and no folders: manifests alone say what it holds.

A segment's files are written in their place, under names of their run, by Spark's tasks through pyarrow. Its manifest,
which names each of them and its size, is one object, put last, inside the transaction that adds the segment's row:
while it lasts, only the topic's owner can come so far. So files that no manifest names are not part of the archive: a
killed run, or an attempt of a task that does not count, has left them.

An owner that was frozen before it put its manifest may do so late, when the database has long given the topic to
another one. Each manifest has its owner's fencing token: of two that overlap, the one with the higher token counts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from pyarrow.fs import FileSelector, FileSystem, FileType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sqlqueue.contrib.spark.archive_rows import schema
from sqlqueue.contrib.spark.manifest import Manifest, SegmentFile, data_folder, escaped, file_of, parsed
from sqlqueue.contrib.spark.storage import Archive, DraftOf

IDENTITIES, MANIFESTS = "_archive", "_manifests"
OF_TOKEN = 20  # digits: names sort as tokens do
ROWS_OF_A_BATCH = 10_000
BYTES_OF_A_ROW_GROUP = 128 * 1024 * 1024  # in memory: of all dates that a task writes
MOST_TASKS = 1_000  # of one read
WRITTEN = "path string, bytes long"
LISTED = "path string, segment string, topic string, date string"
ZONE = "UTC"  # the session's
DELAYED = "allow_delayed_open"


class ObjectStore(Archive):
    """An archive's place in an object store, by a URI that pyarrow knows: s3://bucket/lake."""

    absent = "nothing in the store is there"

    def __init__(self, uri: str) -> None:
        self.root = uri
        self._store, self._path = opened(uri)

    def folders(self) -> list[str]:
        return self._folders("")

    def exists(self) -> bool:
        return bool(self._store.get_file_info(self._path).type != FileType.NotFound)

    def identities(self) -> set[str]:
        return {PurePosixPath(path).stem for path in self.sizes(IDENTITIES)}

    def prepare(self, kind: str, topic: str) -> str:
        """Return the archive's identity; a new archive gets one. Two runs may give it one at a time: both stay, and
        count."""
        if not self.identities():
            self.put(f"{IDENTITIES}/{uuid.uuid4().hex}.json", "{}\n")
        return min(self.identities())

    @contextmanager
    def drafting(self, topic: str, run: str, token: int) -> Iterator[DraftOf]:
        yield lambda kind, first, last: ObjectDraft(self, kind, topic, first, last, escaped(run), token)

    def paths(self, kind: str, topic: str) -> list[str]:
        return sorted(self.sizes(f"{MANIFESTS}/{kind}" + (f"/topic={escaped(topic)}" if topic else "")))

    def manifest(self, path: str) -> Manifest | None:
        text = self.text(path)
        return None if text is None else parsed(text, path)

    def sizes(self, folder: str) -> dict[str, int]:
        selector = FileSelector(self.at(folder), recursive=True, allow_not_found=True)
        found = (info for info in self._store.get_file_info(selector) if info.type == FileType.File)
        return {info.path.removeprefix(f"{self._path}/"): info.size for info in found}

    def strays(self, kind: str, topic: str, known: Collection[str]) -> list[str]:
        named = {path for each in self.manifests(kind, topic) if each.path in known for path in each.files}
        return sorted(path for path in self.sizes(kind) if f"/topic={escaped(topic)}/" in path and path not in named)

    def read(self, spark: SparkSession, kind: str, topic: str = "", days: tuple[str, str] | None = None) -> DataFrame:
        files = (each.file(path) for each in self.of_topic(kind, topic) for path in self.files(each))
        wanted = [file for file in files if days is None or days[0] <= file.date <= days[1]]
        return self.read_files(spark, kind, wanted)

    def read_files(self, spark: SparkSession, kind: str, files: Sequence[SegmentFile]) -> DataFrame:
        wanted = schema(kind, segments=True)
        if not files:
            return spark.createDataFrame([], wanted)
        tasks = min(len(files), MOST_TASKS)
        listed = spark.createDataFrame([tuple(file) for file in files], LISTED).repartition(tasks)
        return listed.mapInArrow(partial(_read, self.root, wanted), wanted)

    def discard(self, kind: str, topic: str, first: int, left: Sequence[Manifest]) -> list[str]:
        begun = [name for name in self._folders(kind) if name.startswith(f"segment={first}-")]
        files = {path for name in begun for path in self.sizes(f"{kind}/{name}/topic={escaped(topic)}")}
        named = {path for manifest in left for path in manifest.files} - files
        files |= {path for path in named if self._store.get_file_info(self.at(path)).is_file}
        removed = [manifest.path for manifest in left] + sorted(files)  # a manifest before what it names
        for path in removed:
            self._store.delete_file(self.at(path))
        return removed

    def put(self, path: str, text: str) -> None:
        """Put one object: a reader sees all of it or nothing."""
        with self._store.open_output_stream(self.at(path)) as stream:
            stream.write(text.encode())

    def text(self, path: str) -> str | None:
        """Return an object's text; None if there is none."""
        if self._store.get_file_info(self.at(path)).type != FileType.File:
            return None
        with self._store.open_input_stream(self.at(path)) as stream:
            return str(stream.read().decode())

    def at(self, path: str) -> str:
        """Return a path within the store."""
        return f"{self._path}/{path}" if path else self._path

    def _folders(self, folder: str) -> list[str]:
        found = self._store.get_file_info(FileSelector(self.at(folder), allow_not_found=True))
        return [info.base_name for info in found if info.type == FileType.Directory]


class ObjectDraft:
    """A segment whose files are in their place, and count once its manifest is put."""

    def __init__(self, store: ObjectStore, kind: str, topic: str, first: int, last: int, run: str, token: int) -> None:
        self._store, self._kind, self._run, self._token = store, kind, run, token
        self._file = partial(file_of, first=first, last=last, topic=topic)
        self._data = data_folder(kind, topic, first, last)
        self.path = f"{MANIFESTS}/{kind}/topic={escaped(topic)}/{first}-{last}-{token:0{OF_TOKEN}}.json"
        self._files: dict[str, int] = {}
        self.sizes: list[int] = []
        self._text = ""

    def write(self, rows: DataFrame) -> None:
        """Write the rows, divided by date."""
        columns = [name for name in rows.columns if name not in ("topic", "date")]
        written = rows.mapInArrow(partial(_write, self._store.root, self._data, self._run, columns), WRITTEN)
        self._files = {row["path"]: row["bytes"] for row in written.collect()}  # a row a file
        self.sizes = list(self._files.values())

    def read_back(self, spark: SparkSession) -> DataFrame:
        """Return what was written."""
        listed = list(map(self._file, self._files))
        return self._store.read_files(spark, self._kind, listed).select(schema(self._kind).names)

    def complete(self, content: dict[str, Any]) -> None:
        """Make the manifest. content: without the files."""
        self._text = json.dumps({**content, "token": self._token, "files": self._files}, indent=1) + "\n"

    def publish(self) -> None:
        """Put the manifest. A second call changes nothing."""
        self._store.put(self.path, self._text)


def below(uri: str, path: str) -> str:
    """Return the URI of what is at a path below another one."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{path}"))


def opened(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path there. An object of S3 that fits into one request is put by one."""
    parts = urlsplit(uri)
    if parts.scheme == "s3" and DELAYED not in parts.query:
        uri = urlunsplit(parts._replace(query="&".join(filter(None, [parts.query, f"{DELAYED}=true"]))))
    files, path = FileSystem.from_uri(uri)
    return files, path.rstrip("/")


class _Files:
    """The files that one attempt of a task writes, one for each date, under names of its own. Spark gives the driver
    those of the attempts that count; what others have left is listed nowhere."""

    def __init__(self, uri: str, folder: str, run: str):
        self._store, self._root = opened(uri)
        self._folder, self._run = folder, run
        self._writers: dict[str, tuple[str, Any, Any]] = {}
        self._waiting: dict[str, list[Any]] = {}
        self._bytes = 0

    def add(self, table: Any, columns: list[str]) -> None:
        for date in pa.compute.unique(table.column("date")).to_pylist():
            rows = table.filter(pa.compute.equal(table.column("date"), date)).select(columns)
            self._waiting.setdefault(date, []).append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= BYTES_OF_A_ROW_GROUP:
            self._flush()

    def close(self) -> Iterator[tuple[str, int]]:
        """Write the rest; yield each file's path and size."""
        self._flush()
        for path, writer, stream in self._writers.values():
            writer.close()
            stream.close()  # the object is there from now on
            yield path, self._store.get_file_info(f"{self._root}/{path}").size

    def _flush(self) -> None:
        for date, tables in self._waiting.items():
            rows = pa.concat_tables(tables)
            if date not in self._writers:
                path = f"{self._folder}/date={date}/part-{self._run}-{uuid.uuid4().hex}.parquet"
                stream = self._store.open_output_stream(f"{self._root}/{path}")
                self._writers[date] = path, pa.parquet.ParquetWriter(stream, rows.schema, compression="zstd"), stream
            self._writers[date][1].write_table(rows)  # as one row group
        self._waiting, self._bytes = {}, 0


def _write(uri: str, folder: str, run: str, columns: list[str], batches: Iterator[Any]) -> Iterator[Any]:
    files = _Files(uri, folder, run)
    for batch in batches:
        files.add(pa.Table.from_batches([batch]), columns)
    for path, size in files.close():
        yield pa.RecordBatch.from_pydict({"path": [path], "bytes": [size]})


def _read(uri: str, wanted: StructType, batches: Iterator[Any]) -> Iterator[Any]:
    store, root = opened(uri)
    target = to_arrow_schema(wanted, timezone=ZONE)
    for listed in batches:
        for file in listed.to_pylist():
            with store.open_input_file(f"{root}/{file['path']}") as source:
                parquet = pa.parquet.ParquetFile(source)
                for batch in parquet.iter_batches(ROWS_OF_A_BATCH):
                    yield _completed(batch, file, target)


def _completed(batch: Any, file: dict[str, str], target: Any) -> Any:
    """Return a batch with the columns of the schema; those that are in no file of its time are NULL."""
    arrays = []
    for field in target:
        if field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
        elif field.name in file:
            arrays.append(pa.array([file[field.name]] * batch.num_rows, field.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=target)
