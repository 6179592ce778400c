"""Messages as they are read: their columns, by their offsets, and within a budget of bytes. Reads only.

A statement withholds a message's content that is heavier than its part of these bytes. The sizes of such messages are
asked for, and those that fit are read by themselves: two statements more, when messages are heavier than those before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import FetchedMessage, StoredRow
from sqlqueue.database.dialects import Dialect
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity, select

# Of a message, in the order of FetchedMessage.
COLUMNS = (
    '{of}"offset", {of}partition_key, {of}message_id, {payload}, {headers}, {created}, {of}target_group, {published},'
    " {due}, {body}, {left}"
)
CONTENT = ("payload", "headers", "body")
TIMES = {"created": "created_at", "published": "published_at", "due": "due_at"}  # of a message, by placeholder
MESSAGE = len(FetchedMessage._fields)
LEFT = FetchedMessage._fields.index("expires")
ANY_SIZE = 2**31 - 1  # bytes: no message has so many
LAST = 2**63 - 1  # beyond every offset
SIZED_AT_ONCE = 32  # heavy messages of one read: the server may have to read their payloads to measure them
WHOLE_AT_ONCE = 500  # messages
AT_ONCE = 500  # messages of one statement with rows, unless more of one partition are asked for
PARTITIONS_AT_ONCE = 100  # of one statement: SQLite takes 500 parts of a UNION, and the control thread waits for all
# Messages by their offsets, and how heavy they are. Index: the log's primary key.
WHOLE = 'SELECT {columns} FROM sqlqueue_message{by_offset} WHERE "offset" IN ({marks}) ORDER BY "offset"'
SIZES = 'SELECT "offset", {bytes} FROM sqlqueue_message{by_offset} WHERE "offset" IN ({marks})'
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
    SELECT s.acked, s.in_flight, s.retry_count, {remaining}, {columns}
    FROM sqlqueue_delivery_state s LEFT JOIN sqlqueue_message m ON m."offset" = s.message_offset
    WHERE s.topic = %s AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s
    AND s.message_offset IN ({marks})
"""
STATE = 4  # columns of the row


class Portion(NamedTuple):
    """What is read of some messages: the first of them, whole. gone: offsets of those that were deleted meanwhile; cut:
    there are more."""

    messages: list[FetchedMessage]
    gone: list[int]
    cut: bool


class Asked(NamedTuple):
    """What is to be read of an assigned partition: the messages at the first of these offsets that have `size` bytes
    together, one at least; None for all."""

    ref: PartitionRef
    offsets: Sequence[int]
    size: int | None = None


Loaded = tuple[dict[int, tuple[StoredRow | None, FetchedMessage | None]], int]

# -- columns ----------------------------------------------------------------------------------------------------------


def light(size: int | None, limit: int) -> int:
    """Return the most bytes of a message whose content a statement gives that finds so many messages."""
    return ANY_SIZE if size is None or limit <= 1 else max(0, size) // limit


def whole(syntax: Dialect) -> str:
    """Return a message's columns, with all of its content."""
    columns = COLUMNS
    for name in CONTENT:
        columns = columns.replace(f"{{{name}}}", name)
    return _with_times(columns, syntax, "")


def withholding(syntax: Dialect, columns: str = COLUMNS, of: str = "") -> str:
    """Return a message's columns, of which the payload is NULL if the content is heavy. Parameter of each of its marks:
    the most bytes of a light one.

    of: the table's alias, with its dot
    """
    payload, *others = (f"{syntax.size(of + name)}" for name in CONTENT)
    total = " + ".join([payload, *(f"COALESCE({size}, 0)" for size in others)])
    columns = columns.replace("{payload}", f"CASE WHEN {total} <= %s THEN {of}payload END")
    for name in CONTENT:
        columns = columns.replace(f"{{{name}}}", f"CASE WHEN {syntax.size(of + name)} <= %s THEN {of}{name} END")
    return _with_times(columns, syntax, of)


def _with_times(columns: str, syntax: Dialect, of: str) -> str:
    """Return columns in which times are as the driver reads them fastest."""
    for name, column in TIMES.items():
        columns = columns.replace(f"{{{name}}}", syntax.epoch(of + column))
    return columns.replace("{left}", syntax.remaining(f"{of}expires_at")).replace("{of}", of)


def messages_of(rows: Sequence[Sequence[Any]], first: int = 0) -> list[FetchedMessage]:
    """Return rows, whose message's columns begin with the `first`, as messages. To be called after the statement, so
    that none expires before its time by the database's clock."""
    moment, new = time.monotonic(), tuple.__new__
    end, left = first + MESSAGE, first + LEFT
    return [
        new(FetchedMessage, row[first:end] if row[left] is None else (*row[first:left], moment + float(row[left])))
        for row in rows
    ]


def withheld(messages: Sequence[tuple[Any, ...]]) -> bool:
    """Tell whether the content of one of these messages, or their rows, was not given."""
    return None in [message[3] for message in messages]


# -- within a budget --------------------------------------------------------------------------------------------------


def portions(
    log: Log, found: Sequence[tuple[list[FetchedMessage], int | None]], server: ServerIdentity | None
) -> list[Portion]:
    """Return what is read of each of these lists of messages, some of which a statement has withheld: as many as have
    so many bytes together, and one at least."""
    sizes = _sizes(log, found, server)
    taken = [list(_fitting(messages, size, sizes)) for messages, size in found]
    wanted = [one.offset for messages in taken for one in messages if one.payload is None]
    loaded = load_whole(log, wanted, server)
    result: list[Portion] = []
    for (messages, _), some in zip(found, taken):
        read = [loaded.get(one.offset, one) if one.payload is None else one for one in some]
        gone = [one.offset for one in read if one.payload is None]
        result.append(Portion([one for one in read if one.payload is not None], gone, len(some) < len(messages)))
    return result


def _sizes(
    log: Log, found: Sequence[tuple[list[FetchedMessage], int | None]], server: ServerIdentity | None
) -> dict[int, int]:
    """Return how heavy the first withheld ones of each list are."""
    asked: list[int] = []
    for messages, _ in found:
        asked += [one.offset for one in messages if one.payload is None][:SIZED_AT_ONCE]
    return {offset: int(size) for offset, size in _at_offsets(log, SIZES, asked, server, 2)}


def _fitting(messages: Sequence[FetchedMessage], size: int | None, sizes: dict[int, int]) -> Iterator[FetchedMessage]:
    """Yield the first messages that have so many bytes together. One that was deleted meanwhile has none."""
    total, asked = 0, 0
    for index, message in enumerate(messages):
        if message.payload is not None:
            total += message.size
        elif asked < SIZED_AT_ONCE:
            asked += 1
            total += sizes.get(message.offset, 0)
        else:
            return
        if index and size is not None and total > size:
            return
        yield message


# -- by their offsets -------------------------------------------------------------------------------------------------


def load_whole(log: Log, offsets: Sequence[int], server: ServerIdentity | None) -> dict[int, FetchedMessage]:
    """Return the messages at these offsets that are still there, with all of their content."""
    return messages_at(log, whole(log.dialect), ANY_SIZE, offsets, server)


def messages_at(
    log: Log, columns: str, most: int, offsets: Sequence[int], server: ServerIdentity | None
) -> dict[int, FetchedMessage]:
    """Return the messages at these offsets that are still there, with these columns. most: the parameter of each of
    their marks."""
    text, before = WHOLE.replace("{columns}", columns), [most] * columns.count("%s")
    rows = list(_at_offsets(log, text, offsets, server, MESSAGE, before))
    return {one.offset: one for one in messages_of(rows)}


def _at_offsets(
    log: Log,
    text: str,
    offsets: Sequence[int],
    server: ServerIdentity | None,
    columns: int,
    before: Sequence[int] = (),
) -> Iterator[Sequence[Any]]:
    """Yield what a statement finds at these offsets. before: its parameters before these; columns: how many it has."""
    for first in range(0, len(offsets), WHOLE_AT_ONCE):
        some = offsets[first : first + WHOLE_AT_ONCE]
        marks = ", ".join(["%s"] * len(some))
        yield from select(log, text.replace("{marks}", marks), (*before, *some), server, columns, 0)


# -- with their rows --------------------------------------------------------------------------------------------------


def gather(
    log: Log, asked: Sequence[Asked], server: ServerIdentity | None = None
) -> list[tuple[dict[int, tuple[StoredRow | None, FetchedMessage]], int]]:
    """Return for each that was asked the messages, each with its delivery-state row, if it has one; and how many of the
    offsets were looked at. Messages that are no longer in the log are left out."""
    result: list[Loaded] = [({}, 0)] * len(asked)
    for indexes in _together(asked):
        some = [asked[index] for index in indexes]
        offsets = [offset for one in some for offset in one.offsets]
        text, marks = _with_rows(log, GATHER, COLUMNS, len(offsets))
        values = (*[min(light(one.size, len(one.offsets)) for one in some)] * marks, some[0].ref.group, *offsets)
        _add(log, result, asked, indexes, select(log, text, values, server, STATE + MESSAGE, STATE), server)
    return [
        ({offset: (row, message) for offset, (row, message) in found.items() if message is not None}, count)
        for found, count in result
    ]


def load(log: Log, asked: Sequence[Asked], server: ServerIdentity | None = None) -> list[Loaded]:
    """Return for each that was asked the delivery-state rows, with their messages (None: no longer in the log); and how
    many of the offsets were looked at. One statement for many partitions."""
    result: list[Loaded] = [({}, 0)] * len(asked)
    columns = COLUMNS.replace('{of}"offset"', "s.message_offset")
    for indexes in _together(asked):
        texts: list[str] = []
        values: list[object] = []
        for ref, offsets, size in (asked[index] for index in indexes):
            text, marks = _with_rows(log, LOAD, columns, len(offsets))
            texts.append(text)
            stream = (ref.topic, ref.group, ref.partition, ref.priority)
            values += (*[light(size, len(offsets))] * marks, *stream, *offsets)
        rows = select(log, " UNION ALL ".join(texts), values, server, STATE + MESSAGE, STATE)
        _add(log, result, asked, indexes, rows, server)
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


def _with_rows(log: Log, text: str, columns: str, offsets: int) -> tuple[str, int]:
    """Return a statement for so many offsets, and how many parameters its columns have, which come first."""
    columns = withholding(log.dialect, columns, "m.")
    text = text.replace("{columns}", columns).replace("{remaining}", log.dialect.remaining("s.invisible_until"))
    return text.replace("{marks}", ", ".join(["%s"] * offsets)), columns.count("%s")


def _add(
    log: Log,
    result: list[Loaded],
    asked: Sequence[Asked],
    indexes: Sequence[int],
    rows: Sequence[Sequence[Any]],
    server: ServerIdentity | None,
) -> None:
    """Add what a statement has found to the results of those that it was run for."""
    states: dict[int, StoredRow | None] = {}
    for acked, in_flight, attempts, remaining, offset, key, *_ in rows:
        stored = acked is not None
        states[offset] = (
            StoredRow(offset, bool(acked), in_flight, max(0, attempts), float(remaining), key or "") if stored else None
        )
    found = {one.offset: one for one in messages_of(rows, STATE) if one.key is not None}
    for index in indexes:
        _, offsets, size = asked[index]
        messages = [found[offset] for offset in offsets if offset in found]
        count = len(offsets)
        if withheld(messages):
            (portion,) = portions(log, [(messages, size)], server)
            if portion.cut:
                count = offsets.index(messages[len(portion.messages) + len(portion.gone)].offset)
            messages = portion.messages
        read = {message.offset: message for message in messages}
        result[index] = {at: (states[at], read.get(at)) for at in offsets[:count] if at in states}, count
