"""Publishing rows, in bulk and through the gate: what a task has written twice is there once, told by its ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from sqlqueue.core.keys import checked_topic, did_you_mean
from sqlqueue.database.admission import (
    CREATE_TOPIC,
    SCHEDULE_LATER,
    STORED_TOPIC,
    TopicInfo,
    check_storable,
    log_row,
    scheduled,
)
from sqlqueue.database.entry import LogRow
from sqlqueue.database.plain import Access, Plain
from sqlqueue.database.weight import LIGHT, weight
from sqlqueue.database.words import DIALECTS
from sqlqueue.exceptions import ConfigurationError, InvalidMessage, seconds
from sqlqueue.spark.options import Options
from sqlqueue.spark.plain_json import headers_of, payload_of
from sqlqueue.spark.topics import Topics

COLUMNS = ("topic", "payload", "key", "id", "headers", "priority", "delay", "target_group")


@dataclass
class Written(WriterCommitMessage):
    """What a task has done: rows that it was given, and messages that were new."""

    rows: int = 0
    created: int = 0


class Publishing:
    """What a task needs to publish rows. It holds no connection: it is sent to other machines."""

    def __init__(self, access: Access, topics: Topics, options: Options, columns: Sequence[str], most_bytes: int):
        refuse_columns(columns, options)
        self._access, self._topics, self._options, self._most_bytes = access, topics, options, most_bytes

    def publish(self, batches: Iterator[Any]) -> Written:
        """Publish the rows of Arrow batches, over one connection, in statements of at most 1,000 rows and 1 MB each,
        each committed by itself."""
        written = Written()
        batch = next(batches, None)
        if batch is None:
            return written
        with Plain(self._access) as connection:
            task = _Task(connection, self._access.vendor, self._topics, self._options, self._most_bytes, written)
            while batch is not None:
                task.take(batch)
                batch = next(batches, None)
            task.flush()
        return written


class _Task:
    """One task's rows on their way into the log."""

    def __init__(
        self, connection: Plain, vendor: str, topics: Topics, options: Options, most_bytes: int, written: Written
    ):
        self._connection, self._topics, self._options, self._written = connection, topics, options, written
        self._most_bytes = most_bytes
        self._words = DIALECTS[vendor]
        self._topic = next(iter(options.topics), None)
        self._known: dict[str, TopicInfo] = {}
        self._rows: list[LogRow] = []
        self._weight = 0

    def take(self, batch: Any) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names}
        kinds = {name: column.type for name, column in columns.items()}
        payload = payload_of(kinds["payload"])
        headers = headers_of(kinds["headers"]) if "headers" in kinds else None
        nothing = [None] * batch.num_rows
        lists = (columns[name].to_pylist() if name in columns else nothing for name in COLUMNS)
        for topic, body, key, id, head, priority, delay, group in zip(*lists):
            if id is None and self._options.ids == "column":
                raise InvalidMessage(
                    "a row has no id, so that a task which is run again would publish it again: " + IDS
                )
            info, text = self._info(topic or self._topic), payload(body)
            row = log_row(
                self._words, info, text, key or "", id, headers(head) if headers else None, priority or 0, group or ""
            )
            check_storable(row, self._most_bytes, self._connection.deepest_json)
            if delay is not None:
                self._schedule(row, seconds(delay))
            else:
                self._add(row)
        self._written.rows += batch.num_rows

    def _add(self, row: LogRow) -> None:
        heavy = weight(row)
        if heavy > LIGHT:
            self._connection.check_sendable(heavy)
        full = len(self._rows) >= self._words.rows_of_one_insert
        if full or self._weight + heavy > self._connection.statement_bytes():
            self.flush()
        self._rows.append(row)
        self._weight += heavy

    def flush(self) -> None:
        if self._rows:
            self._written.created += self._connection.insert(self._rows, self._options.ids == "column")
            self._rows, self._weight = [], 0

    def _schedule(self, row: LogRow, delay: float) -> None:
        """It enters the log when it is due, and there its id counts; until then a repeated row is kept twice."""
        self._connection.check_sendable(weight(row))
        values = (*scheduled(row), round(delay * 1_000_000))
        self._connection.again(self._connection.execute, SCHEDULE_LATER, values)
        self._written.created += 1

    def _info(self, name: str | None) -> TopicInfo:
        if name is None:
            raise InvalidMessage("a row has no topic: fill the column topic, or name one with the option topic")
        info = self._known.get(name)
        if info is None:
            checked_topic(name)
            found = self._stored(name)
            if found is None:
                text = CREATE_TOPIC + self._words.ignore("name")
                self._connection.again(self._connection.execute, text, self._topics.values(name))
                found = self._stored(name)
            assert found is not None
            info = self._known[name] = TopicInfo(*found)
        return info

    def _stored(self, name: str) -> Any:
        return self._connection.execute(STORED_TOPIC, (name,)).fetchone()


IDS = "give the rows a column id that is theirs for good, or say option ids=none if twice is no harm"


def refuse_columns(columns: Sequence[str], options: Options) -> None:
    """Refuse rows that cannot become messages, before any is written."""
    for name in columns:
        if name not in COLUMNS:
            raise ConfigurationError(f"sqlqueue cannot write a column {name!r}.{did_you_mean(name, COLUMNS)}")
    if "payload" not in columns:
        raise ConfigurationError("sqlqueue needs a column payload to write: JSON text, or a struct, map or array")
    if "topic" not in columns and not options.topics:
        raise ConfigurationError("sqlqueue needs to know where to publish: option topic, or a column topic")
    if len(options.topics) > 1:
        raise ConfigurationError("sqlqueue writes to one topic by option; for several give the rows a column topic")
    if "id" not in columns and options.ids == "column":
        raise ConfigurationError("without ids a task that is run again publishes its rows again: " + IDS)


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("sqlqueue").mode("append")`."""

    def __init__(self, publishing: Publishing):
        self._publishing = publishing

    def write(self, iterator: Iterator[Any]) -> Written:
        """Publish a task's rows."""
        return self._publishing.publish(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("sqlqueue")`: a batch that is run again has the same ids, and publishes nothing twice."""

    def __init__(self, publishing: Publishing):
        self._publishing = publishing

    def write(self, iterator: Iterator[Any]) -> Written:
        """Publish a task's rows."""
        return self._publishing.publish(iterator)

    def commit(self, messages: Any, batchId: int) -> None:
        """Nothing is left to do: each statement has committed by itself."""

    def abort(self, messages: Any, batchId: int) -> None:
        """Nothing can be undone, nor need be: the batch is run again, and its ids are known."""
