"""The tables that can be read, and their columns under the names of the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlqueue.core.keys import did_you_mean
from sqlqueue.exceptions import ConfigurationError

LONG, INT, STRING, TIME, JSON, BINARY = "bigint", "int", "string", "timestamp", "json", "binary"


class Column(NamedTuple):
    """A column: its name for users, its kind, and its quoted name in the database; "" for the database's name."""

    name: str
    kind: str
    stored: str

    @property
    def ddl(self) -> str:
        """Spark's name of the column's type. JSON is read as text."""
        return STRING if self.kind == JSON else self.kind


DATABASE = Column("database", STRING, "")


@dataclass(frozen=True)
class Table:
    """A table for users. offset_column: the column that divides it among tasks (empty: one task reads it);
    offset_index, partition_index: the indexes to read a range of it with, by this column alone, and by topic and
    partition first; condition: which rows of the stored table it has; time: the column of when a row was written."""

    name: str
    stored: str
    columns: tuple[Column, ...]
    offset_column: str = ""
    offset_index: str = ""
    partition_index: str = ""
    condition: str = ""
    time: str = "created_at"

    @property
    def in_log(self) -> bool:
        """Whether its rows are messages of the log."""
        return self.stored == "sqlqueue_message"

    def chosen(self, names: Sequence[str], several: bool = False) -> tuple[Column, ...]:
        """Return the columns of these names in this order, or all if `names` is empty. several: there is a column
        `database`, the last one. Raises ConfigurationError."""
        columns = (*self.columns, DATABASE) if several else self.columns
        known = {column.name: column for column in columns}
        for name in names:
            if name not in known:
                raise ConfigurationError(f"table {self.name!r} has no column {name!r}.{did_you_mean(name, known)}")
        return tuple(known[name] for name in names) or columns


def _columns(text: Iterable[str]) -> tuple[Column, ...]:
    """Return the columns of lines such as "key string partition_key": name, kind, and the stored name if it differs."""
    parts = (line.split() for line in text)
    return tuple(Column(name, kind, f'"{stored[0]}"' if stored else f'"{name}"') for name, kind, *stored in parts)


_MESSAGE = (
    "offset bigint",
    "topic string",
    "partition int",
    "priority int",
    "key string partition_key",
    "id string message_id",
    "payload json",
    "headers json",
    "created_at timestamp",
    "target_group string",
    "body binary",
)
_FAILURE = (
    "failed_at timestamp",
    "failure_count int",
    "last_error string",
    "original_topic string",
    "original_offset bigint",
    "failed_group string",
    "fingerprint string",
)
_RECEIPT = (
    "id bigint",
    "group string consumer_group",
    "topic string",
    "partition int",
    "offset bigint message_offset",
    "outcome string",
    "attempts int",
    "worker string",
    "started_at timestamp",
    "finished_at timestamp",
)
_OFFSET = (
    "group string consumer_group",
    "topic string",
    "partition int",
    "priority int",
    "position bigint",
    "offset_acked bigint",
    "claimed_to bigint",
    "fencing_token bigint",
    "updated_at timestamp",
)
MESSAGES = Table("messages", "sqlqueue_message", _columns(_MESSAGE), '"offset"', "{by_offset}", "{by_stream}")
DEAD_LETTERS = Table(
    "dead_letters",
    "sqlqueue_message",
    _columns(_MESSAGE + _FAILURE),
    '"offset"',
    "{by_offset}",
    "{by_stream}",
    "failed_group <> ''",
)
RECEIPTS = Table(
    "receipts",
    "sqlqueue_receipt",
    _columns(_RECEIPT),
    '"message_offset"',
    "{by_receipt}",
    "{by_receipt}",
    time="finished_at",
)
# {by_offset}: the primary key.
RECEIPTS_BY_ID = replace(RECEIPTS, offset_column='"id"', offset_index="{by_offset}", partition_index="{by_offset}")
OFFSETS = Table("offsets", "sqlqueue_offset", _columns(_OFFSET), time="updated_at")
TABLES = {table.name: table for table in (MESSAGES, DEAD_LETTERS, RECEIPTS, OFFSETS)}
