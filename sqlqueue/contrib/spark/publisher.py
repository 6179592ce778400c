"""What a task of Spark's writes, as messages of the log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.writer import COLUMNS, IDS
from sqlqueue.core.codec import checked_json, encode_headers
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.gate import ids_scheduled, insert_many, row_size
from sqlqueue.database.ids import identity_of
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.limits import check_row
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.sizes import STATEMENT
from sqlqueue.exceptions import InvalidMessage, lifetime, seconds
from sqlqueue.log.conflicts import add_many
from sqlqueue.log.encoding import NOTHING
from sqlqueue.log.placement import destination
from sqlqueue.log.published_topic import log_row
from sqlqueue.log.topics import published_topic
from sqlqueue.payloads.versions import OF_PAYLOAD, OWN, refuse_reserved


class Publisher:
    """Publishes the rows of one task in statements of at most 1,000 rows and 2 MB each, each committed by itself."""

    def __init__(self, options: SourceOptions):
        self._ids, self._topic = options.ids, next(iter(options.topics), None)
        self._waiting: dict[Log, list[LogRow]] = {}
        self._sizes: dict[Log, float] = {}  # in bytes, of what waits

    def take(self, batch: Any) -> None:
        """Publish the rows of an Arrow batch, or let them wait for others. Raises InvalidMessage."""
        columns = {name: batch.column(name) for name in batch.schema.names}
        nothing = [None] * batch.num_rows
        lists = (columns[name].to_pylist() if name in columns else nothing for name in COLUMNS)
        for topic, value, body, key, id, head, priority, delay, expires, group in zip(*lists):
            if id is None and self._ids == "column":
                raise InvalidMessage("a row has no id, so that a repeated task would publish it again: " + IDS)
            text = NOTHING if value is None else checked_json(value)
            if body is not None and text != NOTHING:
                raise InvalidMessage("a row has a payload and a body (bytes): leave one of them null")
            message = NewMessage(None, key=key or "", id=id, priority=priority or 0, delay=delay, group=group or "")
            self._add(topic or self._topic, message, text, _headers(head), body, expires)

    def _add(
        self, topic: str | None, message: NewMessage, payload: str, headers: str | None, body: Any, expires: Any
    ) -> None:
        if topic is None:
            raise InvalidMessage("a row has no topic: fill the column topic, or set the option topic")
        log = home_log()
        if settings.several:
            log = destination(topic, message.key, message.id, relay=False).log
        row = log_row(published_topic(log, topic).info, message, payload, headers)
        if body is not None:
            row = row._replace(body=bytes(body))
        if expires is not None:
            row = row._replace(expires=round(lifetime(expires) * 1_000_000))
        check_row(log, row, settings.MAX_PAYLOAD_BYTES)
        delay = None if message.delay is None else seconds(message.delay)
        row = row._replace(scheduled_for=delay, named=message.id is not None)
        waiting, size = self._waiting.setdefault(log, []), row_size(row)
        if len(waiting) >= log.dialect.rows_of_one_insert or self._sizes.get(log, 0) + size > STATEMENT:
            self._flush(log)
        waiting.append(row)
        self._sizes[log] = self._sizes.get(log, 0) + size

    def flush(self) -> None:
        """Publish what waits."""
        for log in self._waiting:
            self._flush(log)

    def _flush(self, log: Log) -> None:
        retries.run_statement(log, _add, log, self._waiting[log])
        self._waiting[log].clear()
        self._sizes[log] = 0


def _add(log: Log, rows: Sequence[LogRow]) -> None:
    """Add messages, but those with ids that are taken. Which were new is not asked for plain ones."""
    if not all(row.named and row.scheduled_for is None for row in rows):
        add_many(log, rows)
        return
    known = ids_scheduled(log, rows)
    insert_many(log, [row for row in rows if identity_of(row) not in known], may_repeat=True)


def publish(options: SourceOptions, batches: Iterator[Any]) -> None:
    """Publish the rows of Arrow batches."""
    publisher = Publisher(options)
    for batch in batches:
        publisher.take(batch)
    publisher.flush()


def _headers(value: str | None) -> str | None:
    """Return headers, JSON text of an object, checked.

    Those of a message that was read keep what the queue said of its payload, but neither its batch nor the wish for a
    reply. Raises InvalidMessage for names that are the queue's, as publish() does.
    """
    if value is None:
        return None
    try:
        headers = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"headers are not JSON text: {error}") from None
    if isinstance(headers, dict):
        for name in OWN - OF_PAYLOAD:  # its batch has counted it, or is gone, and its caller has got the reply
            headers.pop(name, None)
        refuse_reserved(headers.keys() - OF_PAYLOAD)
    return encode_headers(headers)
