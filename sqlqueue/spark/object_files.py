"""Parquet files in an object store, written and read by Spark's tasks through pyarrow, without a rename.

Each attempt of a task writes files of its own names and returns them; Spark gives the driver those of the attempts that
count. What other attempts have left is listed nowhere.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from pyarrow.fs import FileSystem
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sqlqueue.spark.archive_rows import schema

ROWS_OF_A_BATCH = 10_000
MOST_TASKS = 1_000  # of one read
WRITTEN = "path string, bytes long"
LISTED = "path string, segment string, topic string, date string"
ZONE = "UTC"  # the session's
DELAYED = "allow_delayed_open"


class ListedFile(NamedTuple):
    """A file of a segment, and what its rows have in common. path: within the archive."""

    path: str
    segment: str
    topic: str
    date: str


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


def write_files(rows: DataFrame, uri: str, folder: str, run: str) -> dict[str, int]:
    """Write the rows of one topic into a folder of an archive, divided by date; return the files' sizes in bytes by
    path. uri: the archive's; run: begins the files' names."""
    columns = [name for name in rows.columns if name not in ("topic", "date")]
    write = partial(_write, uri, folder, run, columns)
    return {row["path"]: row["bytes"] for row in rows.mapInArrow(write, WRITTEN).collect()}  # a row a file


def read_files(spark: SparkSession, uri: str, kind: str, files: Sequence[ListedFile]) -> DataFrame:
    """Return the rows of files, with the columns that their folders' names say."""
    wanted = schema(kind, segments=True)
    if not files:
        return spark.createDataFrame([], wanted)
    tasks = min(len(files), MOST_TASKS)
    listed = spark.createDataFrame([tuple(file) for file in files], LISTED).repartition(tasks)
    return listed.mapInArrow(partial(_read, uri, wanted), wanted)


def _write(uri: str, folder: str, run: str, columns: list[str], batches: Iterator[Any]) -> Iterator[Any]:
    files, root = opened(uri)
    writers: dict[str, tuple[str, Any]] = {}
    for batch in batches:
        table = pa.Table.from_batches([batch])
        for date in pa.compute.unique(table.column("date")).to_pylist():
            rows = table.filter(pa.compute.equal(table.column("date"), date)).select(columns)
            if date not in writers:
                path = f"{folder}/date={date}/part-{run}-{uuid.uuid4().hex}.parquet"
                target = files.open_output_stream(f"{root}/{path}")
                writers[date] = path, (pa.parquet.ParquetWriter(target, rows.schema, compression="zstd"), target)
            writers[date][1][0].write_table(rows)
    for path, (writer, target) in writers.values():
        writer.close()
        target.close()  # the object is there from now on
        size = files.get_file_info(f"{root}/{path}").size
        yield pa.RecordBatch.from_pydict({"path": [path], "bytes": [size]})


def _read(uri: str, wanted: StructType, batches: Iterator[Any]) -> Iterator[Any]:
    files, root = opened(uri)
    target = to_arrow_schema(wanted, timezone=ZONE)
    for listed in batches:
        for file in listed.to_pylist():
            with files.open_input_file(f"{root}/{file['path']}") as source:
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
