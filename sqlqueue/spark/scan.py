"""The read of one task. Executors import this module, which needs no Django."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from sqlqueue.database.dbapi import Access, Connection
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.database.server_session import Session
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.spark import arrow
from sqlqueue.spark.tables import JSON, TIME, Column, Table

PROVEN, REFUTED = 1, 2
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
    """A batch of a Spark stream on one shard. end: its last offset; checkpoint: the identity of the query's."""

    group: str
    topics: tuple[str, ...]
    end: int
    checkpoint: str


class Portion(InputPartition):
    """The rows of one task: ranges (low, high, index), each read by one statement, and the conditions of all rows.
    shard: where they are; "" without SHARDS; server: the identity of the server for which this was planned; "" if it is
    not compared; batch: of a stream, whose group the task tells that it was read."""

    def __init__(
        self,
        conditions: Sequence[Condition],
        ranges: Sequence[tuple[int, int, str]],
        shard: str = "",
        server: str = "",
        batch: StreamBatch | None = None,
    ):
        super().__init__(len(ranges))
        self.conditions, self.ranges, self.shard, self.server = tuple(conditions), tuple(ranges), shard, server
        self.batch = batch

    def on(self, shard: str, server: str, batch: StreamBatch | None = None) -> Portion:
        """Return the same of a shard, on a server, in a batch."""
        return Portion(self.conditions, self.ranges, shard, server, batch)


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


def note_read(connection: Connection, batch: StreamBatch) -> None:
    """Let a group know that a task reads its last batch. Only the first task of a batch writes."""
    text = NOTE_READ.replace("{topics}", ", ".join(["%s"] * len(batch.topics)))
    values = (True, *batch.topics, batch.group, batch.end, batch.checkpoint, False)
    connection.again(connection.execute, text, values)


class OtherServer(SqlqueueError):
    """A task's connection leads to another server than the one for which the read was planned."""

    def __init__(self) -> None:
        super().__init__(
            "the database server was started again since this read was planned, or the connection leads to another "
            "one, which may lack rows: nothing of it is used. If it fails again, plan it anew: load() a batch again, "
            "and start a stream again, which goes on from its checkpoint"
        )


def accepted(chunks: Iterable[list[tuple[Any, ...]]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a proven SELECT without the one that says which server has run it. Raises OtherServer at the
    end if it was another one, or if nothing said so."""
    said = 0
    for chunk in chunks:
        if any(row[-1] for row in chunk):
            said = max(row[-1] for row in chunk)
            yield [row for row in chunk if not row[-1]]
        else:
            yield chunk
    if said != PROVEN:
        raise OtherServer


class TableScan:
    """Reads a table's columns. It holds no connection, since it is sent to other machines. accesses: by shard."""

    def __init__(self, accesses: Mapping[str, Access], table: Table, columns: Sequence[Column]):
        self.accesses, self.table, self.columns = dict(accesses), table, tuple(columns)

    def read(self, portion: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches, over one connection that is closed at the end.

        Each statement proves that the server runs it for which the portion was planned: another one may lack rows, and
        have given their offsets to others. Raises OtherServer.
        """
        with Connection(self.accesses[portion.shard]) as connection:
            server = connection.server() if portion.server else Session("")
            if server.identity != portion.server:
                raise OtherServer
            if portion.batch is not None:
                note_read(connection, portion.batch)
            for low, high, index in portion.ranges:
                rows = connection.stream(*self._select(portion, low, high, index, server))
                yield from arrow.batches(accepted(rows) if server.text else rows, self.columns)

    def _select(self, portion: Any, low: int, high: int, index: str, server: Session) -> tuple[str, list[Any]]:
        conditions = list(portion.conditions)
        if self.table.offset_column:
            conditions.append(between(self.table, low, high))
        text, values = where(conditions)
        dialect = DIALECTS[self.accesses[portion.shard].vendor]
        chosen = []
        for column in self.columns:
            if not column.stored:
                chosen.append("%s")
                values.insert(0, portion.shard)
            elif column.kind == TIME:
                chosen.append(dialect.microseconds(column.stored))
            else:
                chosen.append(dialect.json_text(column.stored) if column.kind == JSON else column.stored)
        source = f"FROM {self.table.stored}{index} WHERE {text}"
        if not server.text:
            return f"SELECT {', '.join(chosen)} {source}", values
        # A row more says which server has run it, in a column more, which is 0 in all others.
        said = f"CASE WHEN {server.text} THEN {PROVEN} ELSE {REFUTED} END"
        nothing = "NULL, " * len(chosen)
        text = f"SELECT {', '.join(chosen)}, 0 {source} UNION ALL SELECT {nothing}{said}"
        return text, [*values, *server.values]
