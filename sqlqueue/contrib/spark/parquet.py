"""The archive's files, as Spark's tasks write and read them through pyarrow."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from sqlqueue.contrib.spark.store import Store

ROWS_OF_A_BATCH = 10_000
BYTES_OF_A_ROW_GROUP = 128 * 1024 * 1024  # in memory: of all dates that a task writes
WRITTEN = "name string, bytes long"
ZONE = "UTC"  # the session's


class _Files:
    """The files that one attempt of a task writes, one for each date, under names of its own. Spark gives the driver
    those of the attempts that count; what others have left is listed nowhere."""

    def __init__(self, store: Store, folder: str, run: str):
        self._store, self._folder, self._run = store, folder, run
        self._writers: dict[str, tuple[str, Any, Any]] = {}
        self._waiting: dict[str, list[Any]] = {}
        self._bytes = 0

    def add(self, table: Any) -> None:
        for date in pa.compute.unique(table.column("date")).to_pylist():
            rows = table.filter(pa.compute.equal(table.column("date"), date)).drop_columns(["topic", "date"])
            self._waiting.setdefault(date, []).append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= BYTES_OF_A_ROW_GROUP:
            self._flush()

    def close(self) -> Iterator[tuple[str, int]]:
        """Write the rest; yield each file's name and size."""
        self._flush()
        for name, writer, stream in self._writers.values():
            writer.close()
            size = stream.tell()
            stream.close()  # the object is there from now on
            yield name, size

    def _flush(self) -> None:
        for date, tables in self._waiting.items():
            rows = pa.concat_tables(tables)
            if date not in self._writers:
                name = f"date={date}/part-{self._run}-{uuid.uuid4().hex}.parquet"
                stream = self._store.created(f"{self._folder}/{name}")
                self._writers[date] = name, pa.parquet.ParquetWriter(stream, rows.schema, compression="zstd"), stream
            self._writers[date][1].write_table(rows)  # as one row group
        self._waiting, self._bytes = {}, 0


def write(store: Store, folder: str, run: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Write a task's rows, divided by date; yield the names and sizes of its files, which lack topic and date."""
    files = _Files(store, folder, run)
    for batch in batches:
        files.add(pa.Table.from_batches([batch]))
    for name, size in files.close():
        yield pa.RecordBatch.from_pydict({"name": [name], "bytes": [size]})


def read(store: Store, columns: StructType, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows of the files that batches name."""
    target = to_arrow_schema(columns, timezone=ZONE)
    for listed in batches:
        for file in listed.to_pylist():
            with store.opened(file["path"]) as source:
                for batch in pa.parquet.ParquetFile(source).iter_batches(ROWS_OF_A_BATCH):
                    yield _completed(batch, file, target)


def _completed(batch: Any, file: dict[str, str], target: Any) -> Any:
    """Return a batch with the columns of the schema, some of which are the file's."""
    of_file = {name: pa.array([value] * batch.num_rows) for name, value in file.items()}
    columns = {**of_file, **{name: batch.column(name) for name in batch.schema.names}}
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in target], schema=target)
