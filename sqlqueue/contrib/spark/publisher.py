"""What a task of Spark's writes, as messages of the log."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.writer import IDS
from sqlqueue.core.codec import checked_json, encode_headers
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.gate import ids_scheduled, insert_new, row_size
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


def publish(options: SourceOptions, batches: Iterator[Any]) -> None:
    """Publish the rows of Arrow batches, in statements of at most 1,000 rows and 4 MB each, each committed by itself.
    Raises InvalidMessage."""
    waiting: defaultdict[Log, list[LogRow]] = defaultdict(list)
    sizes: defaultdict[Log, float] = defaultdict(float)  # in bytes, of what waits
    for values in (values for batch in batches for values in batch.to_pylist()):
        log, row = _row(options, **values)
        some, size = waiting[log], row_size(row)
        if len(some) >= log.dialect.rows_of_one_insert or sizes[log] + size > STATEMENT:
            retries.run_statement(log, _add, log, some)
            some.clear()
            sizes[log] = 0
        some.append(row)
        sizes[log] += size
    for log, some in waiting.items():
        retries.run_statement(log, _add, log, some)


def _row(
    options: SourceOptions,
    topic: str | None = None,
    payload: str | None = None,
    body: bytes | None = None,
    key: str | None = None,
    id: str | None = None,
    headers: str | None = None,
    priority: int | None = None,
    delay: float | None = None,
    expires: float | None = None,
    target_group: str | None = None,
) -> tuple[Log, LogRow]:
    """Return a message, checked, and the log that it belongs to. The values are those of writer.COLUMNS."""
    topic = topic or next(iter(options.topics), None)
    text = NOTHING if payload is None else checked_json(payload)
    if id is None and options.ids == "column":
        raise InvalidMessage("a row has no id, so that a repeated task would publish it again: " + IDS)
    if body is not None and text != NOTHING:
        raise InvalidMessage("a row has a payload and a body (bytes): leave one of them null")
    if topic is None:
        raise InvalidMessage("a row has no topic: fill the column topic, or set the option topic")
    message = NewMessage(None, key=key or "", id=id, priority=priority or 0, group=target_group or "")
    log = destination(topic, message.key, id, relay=False).log if settings.several else home_log()
    row = log_row(published_topic(log, topic).info, message, text, _headers(headers))
    row = row._replace(
        body=None if body is None else bytes(body),
        expires=None if expires is None else round(lifetime(expires) * 1_000_000),
    )
    check_row(log, row, settings.MAX_PAYLOAD_BYTES)
    return log, row._replace(scheduled_for=None if delay is None else seconds(delay), named=id is not None)


def _add(log: Log, rows: Sequence[LogRow]) -> None:
    """Add messages, but those with ids that are taken. Which were new is not asked for plain ones."""
    if not all(row.named and row.scheduled_for is None for row in rows):
        add_many(log, rows)
        return
    known = ids_scheduled(log, rows)
    insert_new(log, [row for row in rows if identity_of(row) not in known], tell=False)


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
