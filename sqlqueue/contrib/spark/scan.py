"""The read of one task: rows of the database as Arrow batches, with exactly the types that Spark expects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sqlqueue.contrib.spark.tables import BINARY, INT, JSON, LONG, TIME, Column, Table
from sqlqueue.database import retries
from sqlqueue.database.driver import allow_slow_reads, streamed
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import PROVEN, ServerIdentity
from sqlqueue.exceptions import SqlqueueError

ROWS = 10_000  # of an Arrow batch
BYTES = 8 * 1024 * 1024  # of JSON and bytes in one

TIMESTAMP = pa.timestamp("us", tz="UTC")
TYPES = {LONG: pa.int64(), INT: pa.int32(), TIME: TIMESTAMP, BINARY: pa.binary()}
# A task reads a batch, if that is the group's last one. Index: (topic, consumer_group).
NOTE_READ = (
    "UPDATE sqlqueue_consumer_group SET streamed_read = %s WHERE topic IN ({topics}) AND consumer_group = %s"
    " AND streamed_to = %s AND streamed_by = %s AND streamed_read = %s"
)


class Condition(NamedTuple):
    """A part of a WHERE clause in the dialects' common SQL, and its parameters."""

    text: str
    values: tuple[Any, ...]


class StreamBatch(NamedTuple):
    """A batch of a Spark stream on one database. end: its last offset; checkpoint: the identity of the query's."""

    group: str
    topics: tuple[str, ...]
    end: int
    checkpoint: str


@dataclass(frozen=True)
class Portion(InputPartition):
    """The rows of one task: the conditions of all rows, and ranges (low, high, index), each read by one statement.
    server: the identity of the server for which this was planned, "" on SQLite; database: where they are; batch: of a
    stream, whose group the task tells that it was read."""

    conditions: Sequence[Condition]
    ranges: Sequence[tuple[int, int, str]]
    server: str = ""
    database: str = ""
    batch: StreamBatch | None = None


def where(conditions: Sequence[Condition]) -> tuple[str, list[Any]]:
    """Return the conditions joined by AND, and their parameters."""
    text = " AND ".join(condition.text for condition in conditions) or "1 = 1"
    return text, [value for condition in conditions for value in condition.values]


def one_of(stored: str, values: Sequence[Any]) -> Condition:
    """Return the condition that a column has one of these values."""
    return Condition(f"{stored} IN ({', '.join(['%s'] * len(values))})", tuple(values))


def between(table: Table, low: int, high: int) -> Condition:
    """Return the condition that a row's offset lies from `low` to `high`, both included."""
    return Condition(f"{table.offset_column} >= %s AND {table.offset_column} <= %s", (low, high))


def note_read(log: Log, batch: StreamBatch) -> None:
    """Let a group know that a task reads its last batch. Only the first task of a batch writes."""
    text = NOTE_READ.replace("{topics}", ", ".join(["%s"] * len(batch.topics)))
    values = (True, *batch.topics, batch.group, batch.end, batch.checkpoint, False)
    retries.run_statement(log, log.execute, text, values)


class OtherServer(SqlqueueError):
    """A task's connection leads to another server than the one for which the read was planned."""

    def __init__(self) -> None:
        super().__init__(
            "the database server was started again since this read was planned, or the connection leads to another "
            "one, which may lack rows: nothing of it is used. If it fails again, plan it anew: load() a batch again, "
            "and start a stream again, which goes on from its checkpoint"
        )


def accepted(chunks: Iterable[list[tuple[Any, ...]]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a proven SELECT without the one that says which server has run it, in the last column. Raises
    OtherServer at the end if it was another one, or if nothing said so."""
    said = 0
    for chunk in chunks:
        if any(row[-1] for row in chunk):
            said = next(row[-1] for row in chunk if row[-1])
            yield [row for row in chunk if not row[-1]]
        else:
            yield chunk
    if said != PROVEN:
        raise OtherServer


def batches(chunks: Iterable[list[tuple[Any, ...]]], columns: Sequence[Column]) -> Iterator[Any]:
    """Yield a batch for every 10,000 rows or 8 MB of JSON and bytes, whichever is reached first."""
    schema = pa.schema([(column.name, TYPES.get(column.kind, pa.string())) for column in columns])
    heavy = [index for index, column in enumerate(columns) if column.kind in (JSON, BINARY)]
    rows: list[tuple[Any, ...]] = []
    weight = 0
    for chunk in chunks:
        rows += chunk
        weight += sum(len(row[index] or "") for row in chunk for index in heavy)
        if len(rows) >= ROWS or weight >= BYTES:
            yield _batch(rows, schema)
            rows, weight = [], 0
    if rows:
        yield _batch(rows, schema)


def _batch(rows: list[tuple[Any, ...]], schema: Any) -> Any:
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows), schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class TableScan:
    """Reads a table's columns. It holds no connection, since it is sent to other machines."""

    def __init__(self, table: Table, columns: Sequence[Column]):
        self.table, self.columns = table, tuple(columns)

    def read(self, log: Log, portion: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches.

        Each statement proves that the server runs it for which the portion was planned: another one may lack rows, and
        have given their offsets to others. Raises OtherServer.
        """
        server = ServerIdentity(log)
        if server.identity != portion.server:
            raise OtherServer
        allow_slow_reads(log)
        if portion.batch is not None:
            note_read(log, portion.batch)
        for low, high, index in portion.ranges:
            rows = streamed(log, *self._select(log, portion, low, high, index, server))
            yield from batches(accepted(rows) if portion.server else rows, self.columns)

    def _select(
        self, log: Log, portion: Any, low: int, high: int, index: str, server: ServerIdentity
    ) -> tuple[str, Sequence[Any]]:
        """Return the statement of a range, and its parameters. Its last column is that of the proof."""
        conditions = list(portion.conditions)
        if self.table.offset_column:
            conditions.append(between(self.table, low, high))
        text, values = where(conditions)
        chosen = []
        for column in self.columns:
            if not column.stored:
                chosen.append("%s")
                values.insert(0, portion.database)
            elif column.kind == TIME:
                chosen.append(log.dialect.microseconds(column.stored))
            else:
                chosen.append(log.dialect.json_text(column.stored) if column.kind == JSON else column.stored)
        source = f"FROM {self.table.stored}{index} WHERE {text}"
        return server.proven(f"SELECT {', '.join(chosen)}, 0 {source}", values, len(chosen) + 1, len(chosen))
