"""Loading: messages by their offsets, with their rows of delivery state. Reads only. One statement for many
partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import FetchedMessage, StoredRow
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.log.portions import COLUMNS, MESSAGE, light, message_of, portions, withheld, withholding
from sqlqueue.log.proof import select

AT_ONCE = 500  # messages of one statement, unless more of one partition are asked for
PARTITIONS_AT_ONCE = 100  # of one statement: SQLite takes 500 parts of a UNION, and the control thread waits for all
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


class Asked(NamedTuple):
    """What is to be read of an assigned partition: the messages at the first of these offsets that have `size` bytes
    together, one at least; None for all."""

    ref: PartitionRef
    offsets: Sequence[int]
    size: int | None = None


def gather(
    log: Log, asked: Sequence[Asked], server: ServerIdentity | None = None
) -> list[tuple[dict[int, tuple[StoredRow | None, FetchedMessage]], int]]:
    """Return for each that was asked the messages, each with its delivery-state row, if it has one; and how many of the
    offsets were looked at. Messages that are no longer in the log are left out."""
    result: list[tuple[dict[int, tuple[StoredRow | None, FetchedMessage]], int]] = [({}, 0)] * len(asked)
    for indexes in _together(asked):
        some = [asked[index] for index in indexes]
        offsets = [offset for one in some for offset in one.offsets]
        text, marks = _text(log, GATHER, len(offsets))
        most = min(light(one.size, len(one.offsets)) for one in some)
        values = (*[most] * marks, some[0].ref.group, *offsets)
        rows, moment = select(log, text, values, server, 4 + MESSAGE, 4), time.monotonic()
        states = {row[4]: row[:4] for row in rows}
        found = {row[4]: message_of(row[4:], moment) for row in rows}
        for index, one in zip(indexes, some):
            messages, count = _portion(log, found, one, server)
            rows_of = {offset: (_state(states[offset], message), message) for offset, message in messages.items()}
            result[index] = rows_of, count
    return result


def _state(values: Sequence[Any], message: FetchedMessage) -> StoredRow | None:
    acked, in_flight, attempts, remaining = values
    if acked is None:
        return None
    return StoredRow(message.offset, bool(acked), in_flight, max(0, attempts), float(remaining), message.key)


def load(
    log: Log, asked: Sequence[Asked], server: ServerIdentity | None = None
) -> list[tuple[dict[int, tuple[StoredRow, FetchedMessage | None]], int]]:
    """Return for each that was asked the delivery-state rows, with their messages (None: no longer in the log); and how
    many of the offsets were looked at."""
    result: list[tuple[dict[int, tuple[StoredRow, FetchedMessage | None]], int]] = [({}, 0)] * len(asked)
    for indexes in _together(asked):
        some = [asked[index] for index in indexes]
        texts: list[str] = []
        values: list[object] = []
        for ref, offsets, size in some:
            text, marks = _text(log, LOAD, len(offsets))
            texts.append(text)
            stream = (ref.topic, ref.group, ref.partition, ref.priority)
            values += (*[light(size, len(offsets))] * marks, *stream, *offsets)
        rows = select(log, " UNION ALL ".join(texts), values, server, 5 + MESSAGE, 0)
        moment = time.monotonic()
        states = {row[0]: row for row in rows}
        found = {row[0]: message_of(row[5:], moment) for row in rows if row[5] is not None}
        for index, one in zip(indexes, some):
            messages, count = _portion(log, found, one, server)
            rows_of: dict[int, tuple[StoredRow, FetchedMessage | None]] = {}
            for offset in one.offsets[:count]:
                if (state := states.get(offset)) is not None:
                    _, acked, in_flight, attempts, remaining, _, key, *_ = state
                    row = StoredRow(offset, bool(acked), in_flight, max(0, attempts), float(remaining), key or "")
                    rows_of[offset] = (row, messages.get(offset))
            result[index] = rows_of, count
    return result


def _together(asked: Sequence[Asked]) -> Iterator[list[int]]:
    """Yield the indexes of those for which one statement is run: of one group, of which no message is asked for
    twice."""
    of_group: dict[tuple[str, str], list[int]] = {}
    for index, one in enumerate(asked):
        of_group.setdefault((one.ref.group, one.ref.topic), []).append(index)
    for indexes in of_group.values():
        some: list[int] = []
        count = 0
        for index in indexes:
            count += len(asked[index].offsets)
            if some and (count > AT_ONCE or len(some) >= PARTITIONS_AT_ONCE):
                yield some
                some, count = [], len(asked[index].offsets)
            some.append(index)
        yield some


def _text(log: Log, text: str, offsets: int) -> tuple[str, int]:
    """Return a statement for so many offsets, and how many parameters its columns have, which come first."""
    syntax = log.dialect
    columns = withholding(syntax, COLUMNS, "m.")
    text = text.replace("{columns}", columns).replace("{remaining}", syntax.remaining("s.invisible_until"))
    return text.replace("{marks}", ", ".join(["%s"] * offsets)), columns.count("%s")


def _portion(
    log: Log, messages: Mapping[int, FetchedMessage], asked: Asked, server: ServerIdentity | None
) -> tuple[Mapping[int, FetchedMessage], int]:
    """Return those of the messages that were asked for at the first offsets that fit, whole, and how many offsets these
    are."""
    _, offsets, size = asked
    found = [messages[offset] for offset in offsets if offset in messages]
    if not withheld(found):
        return {message.offset: message for message in found}, len(offsets)
    (portion,) = portions(log, [(found, size)], server)
    taken = {message.offset: message for message in portion.messages}
    if not portion.cut:
        return taken, len(offsets)
    return taken, offsets.index(found[len(portion.messages) + len(portion.gone)].offset)
