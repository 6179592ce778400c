"""Portions: how much of what a statement has found is read, so that payloads and headers keep within so many bytes.

A statement withholds a message's content that is heavier than its part of these bytes. The sizes of such messages are
asked for, and those that fit are read by themselves: two statements more, when messages are heavier than those before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.database.dialects import Dialect
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.log.proof import select

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
# Messages by their offsets, and how heavy they are. Index: the log's primary key.
WHOLE = 'SELECT {columns} FROM sqlqueue_message{by_offset} WHERE "offset" IN ({marks}) ORDER BY "offset"'
SIZES = 'SELECT "offset", {bytes} FROM sqlqueue_message{by_offset} WHERE "offset" IN ({marks})'


class Portion(NamedTuple):
    """What is read of some messages: the first of them, whole. gone: offsets of those that were deleted meanwhile; cut:
    there are more."""

    messages: list[FetchedMessage]
    gone: list[int]
    cut: bool


def light(size: int | None, limit: int) -> int:
    """Return the most bytes of a message whose content a statement gives that finds so many messages."""
    return ANY_SIZE if size is None or limit <= 1 else max(0, size) // limit


def whole(syntax: Dialect, columns: str = COLUMNS, of: str = "") -> str:
    """Return a message's columns. of: the table's alias, with its dot."""
    for name in CONTENT:
        columns = columns.replace(f"{{{name}}}", of + name)
    return with_times(columns, syntax, of)


def withholding(syntax: Dialect, columns: str = COLUMNS, of: str = "") -> str:
    """Return a message's columns, of which the payload is NULL if the content is heavy. Parameter of each of its marks:
    the most bytes of a light one."""
    payload, *others = (f"{syntax.size(of + name)}" for name in CONTENT)
    total = " + ".join([payload, *(f"COALESCE({size}, 0)" for size in others)])
    columns = columns.replace("{payload}", f"CASE WHEN {total} <= %s THEN {of}payload END")
    for name in CONTENT:
        columns = columns.replace(f"{{{name}}}", f"CASE WHEN {syntax.size(of + name)} <= %s THEN {of}{name} END")
    return with_times(columns, syntax, of)


def with_times(columns: str, syntax: Dialect, of: str = "") -> str:
    """Return columns in which times are as the driver reads them fastest."""
    for name, column in TIMES.items():
        columns = columns.replace(f"{{{name}}}", syntax.epoch(of + column))
    return columns.replace("{left}", syntax.remaining(f"{of}expires_at")).replace("{of}", of)


def message_of(values: Sequence[Any], moment: float) -> FetchedMessage:
    """Return a row as a message. moment: after the statement, so that none expires before its time by the database's
    clock."""
    left = values[LEFT]
    return FetchedMessage._make([*values[:LEFT], None if left is None else moment + float(left)])


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
    sizes: dict[int, int] = {}
    for some, marks in _some(asked):
        rows = select(log, SIZES.replace("{marks}", marks), some, server, 2, 0)
        sizes.update((offset, int(size)) for offset, size in rows)
    return sizes


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


def load_whole(log: Log, offsets: Sequence[int], server: ServerIdentity | None) -> dict[int, FetchedMessage]:
    """Return the messages at these offsets that are still there."""
    text = WHOLE.replace("{columns}", whole(log.dialect))
    result: dict[int, FetchedMessage] = {}
    for some, marks in _some(offsets):
        rows, moment = select(log, text.replace("{marks}", marks), some, server, MESSAGE, 0), time.monotonic()
        result.update((row[0], message_of(row, moment)) for row in rows)
    return result


def load_portions(
    log: Log, asked: Sequence[tuple[Sequence[int], int | None]], server: ServerIdentity | None
) -> list[Portion]:
    """Return the messages at each of these lists of ascending offsets, as many as have so many bytes together."""
    columns = withholding(log.dialect)
    text, marks_before = WHOLE.replace("{columns}", columns), columns.count("%s")
    offsets = [offset for some, _ in asked for offset in some]
    total = None if any(size is None for _, size in asked) else sum(size or 0 for _, size in asked)
    most = light(total, len(offsets))
    found: dict[int, FetchedMessage] = {}
    for some, marks in _some(offsets):
        values = (*[most] * marks_before, *some)
        rows, moment = select(log, text.replace("{marks}", marks), values, server, MESSAGE, 0), time.monotonic()
        found.update((row[0], message_of(row, moment)) for row in rows)
    lists = [([found[offset] for offset in some if offset in found], size) for some, size in asked]
    if any(withheld(messages) for messages, _ in lists):
        taken = portions(log, lists, server)
    else:
        taken = [Portion(messages, [], False) for messages, _ in lists]
    return [
        portion._replace(gone=_gone(some, messages, portion))
        for (some, _), (messages, _), portion in zip(asked, lists, taken)
    ]


def _gone(asked: Sequence[int], found: Sequence[FetchedMessage], portion: Portion) -> list[int]:
    """Return the asked offsets without a message, of those that the portion has looked at."""
    read = {message.offset for message in portion.messages}
    end = found[len(portion.messages) + len(portion.gone)].offset if portion.cut else LAST
    return [offset for offset in asked if offset < end and offset not in read]


def withheld(messages: Sequence[tuple[Any, ...]]) -> bool:
    """Tell whether the content of one of these messages, or their rows, was not given."""
    return None in [message[3] for message in messages]


def _some(offsets: Sequence[int]) -> Iterator[tuple[Sequence[int], str]]:
    for first in range(0, len(offsets), WHOLE_AT_ONCE):
        some = offsets[first : first + WHOLE_AT_ONCE]
        yield some, ", ".join(["%s"] * len(some))
