"""The archive's rows: the columns of its files, days and hours in UTC whatever the session's time zone is, totals by
which two DataFrames are compared, and how Spark's tasks write and read the files through pyarrow."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from sqlqueue.contrib.spark.manifest import MESSAGES, RECEIPTS
from sqlqueue.database.log import Log

if TYPE_CHECKING:
    from sqlqueue.contrib.spark.store import Store

HOUR = 3_600_000_000  # microseconds
DAY = 24 * HOUR
SCHEMA_VERSION: Final = 1
ROWS_OF_A_BATCH = 10_000
BYTES_OF_A_ROW_GROUP = 128 * 1024 * 1024  # in memory: of all dates that a task writes
WRITTEN = "name string, bytes long"
ZONE = "UTC"  # the session's

_LONG, _INT, _TEXT, _AT = LongType(), IntegerType(), StringType(), TimestampType()
_COLUMNS = {
    MESSAGES: {
        "offset": _LONG,
        "partition": _INT,
        "priority": _INT,
        "key": _TEXT,
        "id": _TEXT,
        "payload": _TEXT,
        "headers": _TEXT,
        "created_at": _AT,
        "target_group": _TEXT,
        "body": BinaryType(),
    },
    RECEIPTS: {
        "id": _LONG,
        "group": _TEXT,
        "partition": _INT,
        "offset": _LONG,
        "outcome": _TEXT,
        "attempts": _INT,
        "worker": _TEXT,
        "started_at": _AT,
        "finished_at": _AT,
    },
}
# The columns that are in folders' names: topic=flights/date=2013-01-31.
_FOLDERS = {"topic": _TEXT, "date": _TEXT}
OFFSET_COLUMN = {MESSAGES: "offset", RECEIPTS: "id"}
TIME_COLUMN = {MESSAGES: "created_at", RECEIPTS: "finished_at"}


@dataclass(frozen=True, slots=True)
class SegmentTotals:
    """Totals of a segment's rows. lowest, highest: offsets (or ids of receipts); total: their sum; checksum: of all
    values of all rows, in any order, as 16 hexadecimal digits."""

    rows: int
    lowest: int
    highest: int
    total: int
    checksum: str


def schema(kind: str = MESSAGES, segments: bool = False) -> StructType:
    """Return the archive's schema of messages or receipts; segments: with the name of the segment's folder."""
    columns = {**_COLUMNS[kind], **({"segment": _TEXT} if segments else {}), **_FOLDERS}
    return StructType([StructField(name, type_) for name, type_ in columns.items()])


def archived(rows: DataFrame, kind: str = MESSAGES) -> DataFrame:
    """Return messages or receipts with the archive's columns, among them the UTC date that partitions the files."""
    date = utc_day(TIME_COLUMN[kind]).alias("date")
    columns = [F.col(name).cast(type_).alias(name) for name, type_ in _COLUMNS[kind].items()]
    return rows.select(*columns, F.col("topic"), date)


def total_columns(kind: str = MESSAGES) -> list[Column]:
    """Return the aggregates that SegmentTotals consists of."""
    offset = F.col(OFFSET_COLUMN[kind])
    values = [column for name in _COLUMNS[kind] for column in (F.col(name), F.col(name).isNull())]
    checksum = F.sum(F.xxhash64(*values, F.col("topic"), F.col("date")).cast("decimal(20,0)"))
    return [
        F.count(F.lit(1)).alias("rows"),
        F.min(offset).alias("lowest"),
        F.max(offset).alias("highest"),
        F.sum(offset.cast("decimal(20,0)")).alias("total"),
        checksum.alias("checksum"),
    ]


def as_totals(values: dict[str, Any]) -> SegmentTotals:
    """Return the aggregates' values as SegmentTotals."""
    return SegmentTotals(
        rows=int(values["rows"] or 0),
        lowest=int(values["lowest"] or 0),
        highest=int(values["highest"] or 0),
        total=int(values["total"] or 0),
        checksum=format(int(values["checksum"] or 0) % 2**64, "016x"),
    )


def totals_of(rows: DataFrame, kind: str = MESSAGES) -> SegmentTotals:
    """Compute the totals of archived rows."""
    (row,) = rows.agg(*total_columns(kind)).collect()  # one row
    return as_totals(row.asDict())


def rows_between(
    spark: SparkSession, log: Log, table: str, topic: str, first: int, last: int | None, **options: str
) -> DataFrame:
    """Return a topic's messages (or dead letters) in the database with offsets from `first` to `last`, or its receipts
    with ids in that range, both ends included. options: further ones of the data source."""
    low, high = ("fromId", "toId") if table == RECEIPTS else ("from", "to")
    reader = (
        spark.read.format("sqlqueue")
        .option("table", table)
        .option("topic", topic)
        .option("database", log.alias)
        .options(**options)
    )
    reader = reader.option(low, first)
    return (reader if last is None else reader.option(high, last)).load()


def utc_hour(column: str) -> Column:
    """Return the hours that times lie in, as times."""
    return F.timestamp_micros(_floor(column, HOUR))


def utc_day(column: str) -> Column:
    """Return the days that times lie in, as YYYY-MM-DD."""
    return F.date_from_unix_date((_floor(column, DAY) / F.lit(DAY)).cast("int")).cast("string")


def _floor(column: str, unit: int) -> Column:
    at = F.unix_micros(F.col(column))
    return at - F.pmod(at, F.lit(unit))


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


def write_files(store: Store, folder: str, run: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Write a task's rows, divided by date; yield the names and sizes of its files, which lack topic and date."""
    files = _Files(store, folder, run)
    for batch in batches:
        files.add(pa.Table.from_batches([batch]))
    for name, size in files.close():
        yield pa.RecordBatch.from_pydict({"name": [name], "bytes": [size]})


def read_files(store: Store, columns: StructType, batches: Iterator[Any]) -> Iterator[Any]:
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
