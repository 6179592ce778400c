"""The writers: rows are published in bulk through the gate; ids keep a repeated task from publishing them twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database.dbapi import Access, Connection
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.validation import check_storable, log_row
from sqlqueue.database.weight import LIGHT, weight
from sqlqueue.exceptions import ConfigurationError, InvalidMessage, lifetime, seconds
from sqlqueue.spark.options import SourceOptions
from sqlqueue.spark.plain_json import headers_of, payload_of
from sqlqueue.spark.published_topics import PublishedTopics, ShardConnections
from sqlqueue.spark.topics import Topics

COLUMNS = ("topic", "payload", "body", "key", "id", "headers", "priority", "delay", "expires", "target_group")


NOTHING = "null"


def _nothing(value: None) -> str:
    return NOTHING


@dataclass
class Written(WriterCommitMessage):
    """The result of a task: how many rows it got, and how many of them were new messages."""

    rows: int = 0
    created: int = 0


class Publishing:
    """Publishes rows. It holds no connection, since it is sent to other machines. accesses: by shard."""

    def __init__(
        self,
        accesses: Mapping[str, Access],
        topics: Topics,
        options: SourceOptions,
        columns: Sequence[str],
        most_bytes: int,
    ):
        refuse_columns(columns, options)
        self._accesses, self._topics, self._options = dict(accesses), topics, options
        self._most_bytes = most_bytes

    def publish(self, batches: Iterator[Any]) -> Written:
        """Publish the rows of Arrow batches, over one connection to each shard that they belong to, in statements of at
        most 1,000 rows and 1 MB each, each committed by itself."""
        written = Written()
        batch = next(batches, None)
        if batch is None:
            return written
        with ShardConnections(self._accesses) as shards:
            task = _Task(shards, PublishedTopics(shards, self._topics), self._options, self._most_bytes, written)
            while batch is not None:
                task.take(batch)
                batch = next(batches, None)
            task.flush()
        return written


class _Pending:
    """The rows of one task and one shard that wait for the next INSERT."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self.rows: list[LogRow] = []
        self.weight = 0


class _Task:
    """The rows of one task."""

    def __init__(
        self,
        shards: ShardConnections,
        topics: PublishedTopics,
        options: SourceOptions,
        most_bytes: int,
        written: Written,
    ):
        self._shards, self._topics, self._options, self._written = shards, topics, options, written
        self._most_bytes = most_bytes
        self._dialect = DIALECTS[shards.vendor]
        self._topic = next(iter(options.topics), None)
        self._pending: dict[str, _Pending] = {}

    def take(self, batch: Any) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names}
        kinds = {name: column.type for name, column in columns.items()}
        payload = payload_of(kinds["payload"]) if "payload" in kinds else _nothing
        headers = headers_of(kinds["headers"]) if "headers" in kinds else None
        nothing = [None] * batch.num_rows
        lists = (columns[name].to_pylist() if name in columns else nothing for name in COLUMNS)
        for topic, value, body, key, id, head, priority, delay, expires, group in zip(*lists):
            if id is None and self._options.ids == "column":
                raise InvalidMessage("a row has no id, so that a repeated task would publish it again: " + IDS)
            placed = self._topics.placed(topic or self._topic)
            text = payload(value)
            if body is not None and text != NOTHING:
                raise InvalidMessage("a row has a payload and a body (bytes): leave one of them null")
            message = NewMessage(None, key=key or "", id=id, priority=priority or 0, delay=delay, group=group or "")
            row = log_row(self._dialect, placed.info, message, text, headers(head) if headers else None)
            row = row if body is None else row._replace(body=bytes(body))
            row = row if expires is None else row._replace(expires=round(lifetime(expires) * 1_000_000))
            pending = self._of_shard(self._topics.shard(placed, message.key, id))
            check_storable(row, self._most_bytes, pending.connection.deepest_json)
            if message.delay is not None:
                self._schedule(pending.connection, row, seconds(message.delay))
            else:
                self._add(pending, row)
        self._written.rows += batch.num_rows

    def flush(self) -> None:
        """Publish what waits."""
        for pending in self._pending.values():
            self._flush(pending)

    def _of_shard(self, shard: str) -> _Pending:
        pending = self._pending.get(shard)
        if pending is None:
            pending = self._pending[shard] = _Pending(self._shards.to(shard))
        return pending

    def _add(self, pending: _Pending, row: LogRow) -> None:
        bytes_of_row = weight(row)
        if bytes_of_row > LIGHT:
            pending.connection.check_sendable(bytes_of_row)
        full = len(pending.rows) >= self._dialect.rows_of_one_insert
        if full or pending.weight + bytes_of_row > pending.connection.statement_bytes():
            self._flush(pending)
        pending.rows.append(row)
        pending.weight += bytes_of_row

    def _flush(self, pending: _Pending) -> None:
        if pending.rows:
            self._written.created += pending.connection.insert(pending.rows, self._options.ids == "column")
            pending.rows, pending.weight = [], 0

    def _schedule(self, connection: Connection, row: LogRow, delay: float) -> None:
        connection.check_sendable(weight(row))
        self._written.created += connection.schedule(row, delay)


IDS = "give the rows a column id with a fixed id for each, or set the option ids=none if duplicates do no harm"


def refuse_columns(columns: Sequence[str], options: SourceOptions) -> None:
    """Raise ConfigurationError for columns that cannot become messages, before a row is written."""
    for name in columns:
        if name not in COLUMNS:
            raise ConfigurationError(f"sqlqueue cannot write a column {name!r}.{did_you_mean(name, COLUMNS)}")
    if "payload" not in columns and "body" not in columns:
        raise ConfigurationError(
            "sqlqueue needs a column payload to write: JSON text, or a struct, map or array; or a column body: bytes"
        )
    if "topic" not in columns and not options.topics:
        raise ConfigurationError(
            "sqlqueue needs a topic to publish to: set the option topic, or give the rows a column topic"
        )
    if len(options.topics) > 1:
        raise ConfigurationError(
            "the option topic names one topic to write to; for several give the rows a column topic"
        )
    if "id" not in columns and options.ids == "column":
        raise ConfigurationError("without ids a repeated task publishes its rows again: " + IDS)


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("sqlqueue").mode("append")`."""

    def __init__(self, publishing: Publishing):
        self._publishing = publishing

    def write(self, iterator: Iterator[Any]) -> Written:
        """Publish a task's rows."""
        return self._publishing.publish(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("sqlqueue")`: a repeated batch has the same ids, and publishes nothing twice."""

    def __init__(self, publishing: Publishing):
        self._publishing = publishing

    def write(self, iterator: Iterator[Any]) -> Written:
        """Publish a task's rows."""
        return self._publishing.publish(iterator)

    def commit(self, messages: Any, batchId: int) -> None:
        """Do nothing: each statement has committed by itself."""

    def abort(self, messages: Any, batchId: int) -> None:
        """Do nothing: the batch is repeated, and the database knows the ids that it has published."""
