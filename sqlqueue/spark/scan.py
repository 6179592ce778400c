"""The read of one task. Executors import this module, which needs no Django."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from sqlqueue.database.dbapi import Access, Connection
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.spark import arrow
from sqlqueue.spark.tables import JSON, TIME, Column, Table


class Condition(NamedTuple):
    """A part of a WHERE clause in the dialects' common SQL, and its parameters."""

    text: str
    values: tuple[Any, ...]


class Portion(InputPartition):
    """The rows of one task: ranges (low, high, index), each read by one statement, and the conditions of all rows.
    shard: where they are; "" without SHARDS."""

    def __init__(self, conditions: Sequence[Condition], ranges: Sequence[tuple[int, int, str]], shard: str = ""):
        super().__init__(len(ranges))
        self.conditions, self.ranges, self.shard = tuple(conditions), tuple(ranges), shard

    def on(self, shard: str) -> Portion:
        """Return the same of a shard."""
        return Portion(self.conditions, self.ranges, shard)


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


class TableScan:
    """Reads a table's columns. It holds no connection, since it is sent to other machines. accesses: by shard."""

    def __init__(self, accesses: Mapping[str, Access], table: Table, columns: Sequence[Column]):
        self.accesses, self.table, self.columns = dict(accesses), table, tuple(columns)

    def read(self, portion: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches, over one connection that is closed at the end."""
        with Connection(self.accesses[portion.shard]) as connection:
            for low, high, index in portion.ranges:
                yield from arrow.batches(connection.stream(*self._select(portion, low, high, index)), self.columns)

    def _select(self, portion: Any, low: int, high: int, index: str) -> tuple[str, list[Any]]:
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
        return f"SELECT {', '.join(chosen)} FROM {self.table.stored}{index} WHERE {text}", values
