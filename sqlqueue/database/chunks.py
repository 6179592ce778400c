"""Chunks: rows divided into statements that the server takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlqueue.database import weight
from sqlqueue.database.dialects import Composed
from sqlqueue.database.limits import statement_bytes
from sqlqueue.database.log import Log

Row = TypeVar("Row", bound=Sequence[Any])


def in_chunks(
    log: Log, rows: Sequence[Row], most_rows: int | None = None, weigh: Callable[[Row], float] = weight.weight
) -> Iterator[Sequence[Row]]:
    """Yield rows, those of one statement at a time: bounded in rows, and in bytes by the server's own limit."""
    most = log.dialect.rows_of_one_insert if most_rows is None else most_rows
    return weight.chunks(rows, most, partial(statement_bytes, log), weigh)


def insert_all(log: Log, into: str, row: str, ending: str, rows: Sequence[Sequence[object]], most_rows: int) -> None:
    """Insert rows of values, in as few statements as the server takes. row: the marks of one, in parentheses."""
    sql = log.dialect.sql  # of the parts: of the whole there are as many as there are numbers of rows
    before, marks, after = sql(f"INSERT INTO {into} VALUES "), sql(row), sql(f" {ending}")
    for some in in_chunks(log, rows, most_rows):
        text = Composed(f"{before}{', '.join([marks] * len(some))}{after}")
        log.execute(text, [value for values in some for value in values])
