"""Sizes: how many bytes rows take in a statement, and rows divided into statements that the server takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from sqlqueue.database.dialects import Composed
from sqlqueue.database.log import Log

Row = TypeVar("Row", bound=Sequence[Any])

LIGHT = 64 * 1024  # any server takes a statement of so many bytes
STATEMENT = 4 * 1024 * 1024  # of many rows: longer ones save nothing
OVERHEAD = 4096  # of a statement's own text
VALUE = 32  # a number, a time, a mark; what stands between two values
ESCAPED_BYTES = b"\0\n\r\x1a\"'\\"  # MySQL's client sends two bytes for each
LONG = 16 * 1024  # characters of a text that are worth counting
DELETED_AT_ONCE = 500  # rows
# Bytes of a value: SQLITE_MAX_LENGTH; what an array or object of jsonb may hold (JENTRY_OFFLENMASK).
LONGEST = {"sqlite": 1_000_000_000, "postgresql": 0x0FFFFFFF}

_packets: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def size(values: Iterable[Any]) -> int:
    """Return how many bytes a row's values take in a statement at most; of long texts and of bytes just so many."""
    total = 0
    for value in values:
        if isinstance(value, str) and len(value) < LONG:
            total += (2 if value.isascii() else 4) * len(value)
        elif isinstance(value, (str, bytes)):
            sent = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            total += 2 * len(sent) - len(sent.translate(None, ESCAPED_BYTES))
        total += VALUE
    return total


def packet(log: Log) -> int:
    """Return how many bytes a statement may have on this connection. MySQL is asked once a connection, whose value
    never changes; it ends a connection that sends more."""
    connection = log.connection
    if connection.vendor != "mysql":
        return LONGEST[connection.vendor]
    connection.ensure_connection()
    driver = connection.connection
    if driver not in _packets:
        _packets[driver] = int(log.execute("SELECT @@SESSION.max_allowed_packet").fetchone()[0])
    return _packets[driver]


def chunks(
    log: Log, rows: Iterable[Row], most_rows: int | None = None, size_of: Callable[[Row], float] = size
) -> Iterator[list[Row]]:
    """Yield rows, those of one statement at a time: bounded in rows, and in bytes by the server's own limit, which is
    asked only where it matters. A row that is larger than a statement is alone."""
    most = log.dialect.rows_of_one_insert if most_rows is None else most_rows
    some: list[Row] = []
    total, most_bytes = 0.0, LIGHT
    for row in rows:
        of_row = size_of(row)
        total += of_row
        if total > most_bytes == LIGHT:
            most_bytes = min(STATEMENT, packet(log) - OVERHEAD)
        if some and (total > most_bytes or len(some) >= most):
            yield some
            some, total = [], of_row
        some.append(row)
    if some:
        yield some


def insert_all(log: Log, into: str, row: str, ending: str, rows: Sequence[Sequence[object]], most_rows: int) -> None:
    """Insert rows of values, in as few statements as the server takes. row: the marks of one, in parentheses."""
    sql = log.dialect.sql  # of the parts: of the whole there are as many as there are numbers of rows
    before, marks, after = sql(f"INSERT INTO {into} VALUES "), sql(row), sql(f" {ending}")
    for some in chunks(log, rows, most_rows):
        text = Composed(f"{before}{', '.join([marks] * len(some))}{after}")
        log.execute(text, [value for values in some for value in values])


def delete_all(
    log: Log, table: str, key: str, values: Sequence[object], of: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Delete rows by their unique keys, some with each statement. of: the columns that complete the key, with what all
    of the rows have in them."""
    for start in range(0, len(values), DELETED_AT_ONCE):
        some = values[start : start + DELETED_AT_ONCE]
        log.execute(log.dialect.delete(table, key, len(some), tuple(of)), (*some, *of.values()))
