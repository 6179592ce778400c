"""What a task reads, and how. Executors import this: no Django."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from sqlqueue.database.plain import Access, Plain
from sqlqueue.database.words import DIALECTS
from sqlqueue.spark import arrow
from sqlqueue.spark.tables import JSON, TIME, Column, Table


class Condition(NamedTuple):
    """A part of a WHERE, in the words of the dialects, and its parameters."""

    text: str
    values: tuple[Any, ...]


class Portion(InputPartition):
    """What one task reads: ranges of offsets, each with one statement, and what is true of all its rows."""

    def __init__(self, conditions: Sequence[Condition], ranges: Sequence[tuple[int, int, str]]):
        super().__init__(len(ranges))
        self.conditions, self.ranges = tuple(conditions), tuple(ranges)


def where(conditions: Sequence[Condition]) -> tuple[str, list[Any]]:
    """Return conditions as one, and its parameters."""
    text = " AND ".join(condition.text for condition in conditions) or "1 = 1"
    return text, [value for condition in conditions for value in condition.values]


def one_of(stored: str, values: Sequence[Any]) -> Condition:
    """Return the condition that a column has one of these values."""
    return Condition(f"{stored} IN ({', '.join(['%s'] * len(values))})", tuple(values))


def between(table: Table, low: int, high: int) -> Condition:
    """Return the condition that a row stands in a range of offsets."""
    return Condition(f"{table.place} >= %s AND {table.place} <= %s", (low, high))


class Scan:
    """What a task needs to read its portion. It holds no connection: it is sent to other machines."""

    def __init__(self, access: Access, table: Table, columns: Sequence[Column]):
        self.access, self.table, self.columns = access, table, tuple(columns)

    def read(self, portion: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches, over one connection that is closed at the end."""
        with Plain(self.access) as connection:
            for low, high, index in portion.ranges:
                yield from arrow.batches(connection.stream(*self._select(portion, low, high, index)), self.columns)

    def _select(self, portion: Any, low: int, high: int, index: str) -> tuple[str, list[Any]]:
        conditions = list(portion.conditions)
        if self.table.place:
            conditions.append(between(self.table, low, high))
        text, values = where(conditions)
        words = DIALECTS[self.access.vendor]
        chosen = []
        for column in self.columns:
            if column.kind == TIME:
                chosen.append(words.microseconds(column.stored))
            else:
                chosen.append(words.json_text(column.stored) if column.kind == JSON else column.stored)
        return f"SELECT {', '.join(chosen)} FROM {self.table.stored}{index} WHERE {text}", values
