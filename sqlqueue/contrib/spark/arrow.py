"""Rows of the database as Arrow batches, with exactly the types that Spark expects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from sqlqueue.contrib.spark.tables import BINARY, INT, JSON, LONG, TIME, Column

ROWS = 10_000
BYTES = 8 * 1024 * 1024

TIMESTAMP = pa.timestamp("us", tz="UTC")
TYPES = {LONG: pa.int64(), INT: pa.int32(), TIME: TIMESTAMP, BINARY: pa.binary()}


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
            yield _batch(rows, columns, schema)
            rows, weight = [], 0
    if rows:
        yield _batch(rows, columns, schema)


def _batch(rows: list[tuple[Any, ...]], columns: Sequence[Column], schema: Any) -> Any:
    arrays = [_array(values, column) for values, column in zip(zip(*rows), columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], column: Column) -> Any:
    if column.kind == TIME:
        return pa.array(values, pa.int64()).cast(TIMESTAMP)
    return pa.array(values, TYPES.get(column.kind, pa.string()))
