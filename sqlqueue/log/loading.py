"""Loading: messages by their offsets, with their rows of delivery state. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import COUNTED, FetchedMessage, StoredRow
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.database.statements import dialect
from sqlqueue.log.portions import COLUMNS, MESSAGE, light, message_of, portions, withheld, withholding
from sqlqueue.log.proof import select

# Messages by their offsets, each with the row that an operator may have written for it. Index: the log's primary key;
# the states' unique key.
GATHER = """
    SELECT s.acked, s.in_flight, s.retry_count, {remaining}, {columns} FROM sqlqueue_message m
    LEFT JOIN sqlqueue_delivery_state s ON s.topic = m.topic AND s.consumer_group = %s
    AND s."partition" = m."partition" AND s.priority = m.priority AND s.message_offset = m."offset"
    WHERE m."offset" IN ({marks})
"""
# Rows of delivery state with their messages. Index: the unique (topic, group, partition, priority, offset); the message
# by its primary key.
LOAD = """
    SELECT s.message_offset, s.acked, s.in_flight, s.retry_count, {remaining}, {columns}
    FROM sqlqueue_delivery_state s LEFT JOIN sqlqueue_message m ON m."offset" = s.message_offset
    WHERE s.topic = %s AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s
    AND s.message_offset IN ({marks})
"""


def gather(
    alias: str, ref: PartitionRef, offsets: Sequence[int], server: ServerIdentity | None = None, size: int | None = None
) -> tuple[dict[int, tuple[StoredRow | None, FetchedMessage]], int]:
    """Return the messages at the first of these offsets of an assigned partition, each with its delivery-state row, if
    it has one; and how many offsets these are: as many as have messages of `size` bytes together, one at least.
    Messages that are no longer in the log are left out."""
    rows, moment = _select(alias, GATHER, (ref.group,), offsets, server, size, 4, 4)
    states = {row[4]: row[:4] for row in rows}
    messages, count = _portion(alias, {row[4]: message_of(row[4:], moment) for row in rows}, offsets, server, size)
    result: dict[int, tuple[StoredRow | None, FetchedMessage]] = {}
    for offset, message in messages.items():
        acked, in_flight, attempts, remaining = states[offset]
        row = None
        if acked is not None:
            values_of = (offset, bool(acked), in_flight, max(0, attempts), float(remaining), message.key)
            row = StoredRow(*values_of, message.headers if acked and in_flight != COUNTED else None)
        result[offset] = (row, message)
    return result, count


def load(
    alias: str, ref: PartitionRef, offsets: Sequence[int], server: ServerIdentity | None = None, size: int | None = None
) -> tuple[dict[int, tuple[StoredRow, FetchedMessage | None]], int]:
    """Return the delivery-state rows at the first of these offsets of an assigned partition, with their messages (None:
    no longer in the log); and how many offsets these are: as many as have messages of `size` bytes together, one at
    least."""
    stream = (ref.topic, ref.group, ref.partition, ref.priority)
    rows, moment = _select(alias, LOAD, stream, offsets, server, size, 5, 0)
    found = {row[0]: message_of(row[5:], moment) for row in rows if row[5] is not None}
    messages, count = _portion(alias, found, offsets, server, size)
    looked_at = set(offsets[:count])
    result: dict[int, tuple[StoredRow, FetchedMessage | None]] = {}
    for offset, acked, in_flight, attempts, remaining, _, key, *_ in rows:
        if offset in looked_at:
            row = StoredRow(offset, bool(acked), in_flight, max(0, attempts), float(remaining), key or "")
            result[offset] = (row, messages.get(offset))
    return result, count


def _select(
    alias: str,
    text: str,
    of: Sequence[object],
    offsets: Sequence[int],
    server: ServerIdentity | None,
    size: int | None,
    before: int,
    at: int,
) -> tuple[Sequence[Any], float]:
    """Run a statement for these offsets; return its rows, and a moment after it. before: how many columns it has before
    the message's; at: the place of an offset."""
    syntax = dialect(alias)
    columns = withholding(syntax, COLUMNS, "m.")
    text = text.replace("{columns}", columns).replace("{remaining}", syntax.remaining("s.invisible_until"))
    text = text.replace("{marks}", ", ".join(["%s"] * len(offsets)))
    most = [light(size, len(offsets))] * columns.count("%s")
    rows = select(alias, text, (*most, *of, *offsets), server, before + MESSAGE, at)
    return rows, time.monotonic()


def _portion(
    alias: str,
    messages: Mapping[int, FetchedMessage],
    offsets: Sequence[int],
    server: ServerIdentity | None,
    size: int | None,
) -> tuple[Mapping[int, FetchedMessage], int]:
    """Return those of the messages at the first offsets that fit, whole, and how many offsets these are."""
    asked = [messages[offset] for offset in offsets if offset in messages]
    if not withheld(asked):
        return messages, len(offsets)
    (portion,) = portions(alias, [(asked, size)], server)
    taken = {message.offset: message for message in portion.messages}
    if not portion.cut:
        return taken, len(offsets)
    return taken, offsets.index(asked[len(portion.messages) + len(portion.gone)].offset)
