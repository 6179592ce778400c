"""Fetch: reads only. One query for many partitions; an idle poll takes as many queries however many there are."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlqueue.core.partition.limits import SCAN_LIMIT
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import Found, Read
from sqlqueue.core.settle_plan import COUNTED, FetchedMessage, StoredRow
from sqlqueue.database.dialects import Dialect
from sqlqueue.database.server_identity import ServerIdentity, proof_column
from sqlqueue.database.slices import in_slice
from sqlqueue.database.statements import dialect, execute

STREAMS_OF_ONE_FETCH = 32
WATCH_SPAN = 20_000  # offsets that one watch passes; a wider gap is a backlog, and every partition is read

# What an idle consumer polls: the highest offset, and in how many seconds the next scheduled message is due. Index:
# the ends of the log's primary key and of (refused, due_at).
POLL_HEAD = """
    SELECT (SELECT MAX("offset") FROM sqlqueue_message),
    (SELECT {due_in} FROM sqlqueue_scheduled_message WHERE refused = {false} ORDER BY due_at LIMIT 1){proof}
"""
# The partitions that have messages in a range of the log. Index: the primary key.
WATCH = """
    SELECT DISTINCT topic, "partition", priority FROM sqlqueue_message{by_offset}
    WHERE "offset" > %s AND "offset" <= %s
"""
COLUMNS = (
    '"offset", partition_key, message_id, payload, headers, {created}, target_group, {published}, {due}, body, {left}'
)
# Whole messages of a partition. Index: (topic, partition, priority, offset).
FETCH = "SELECT {columns}, %s FROM sqlqueue_message{by_stream} WHERE {beyond}{slice} ORDER BY {ascending} LIMIT %s"
FETCH_TO = "SELECT {columns}, %s FROM sqlqueue_message{by_stream} WHERE {within}{slice} ORDER BY {ascending} LIMIT %s"
# The offsets visible in the same snapshot among those that were read before. From the same index alone.
LOOK = """
    SELECT "offset", NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, %s
    FROM sqlqueue_message{by_stream} WHERE {within}{slice} ORDER BY {ascending} LIMIT %s
"""
# Messages by their offsets, each with the row that an operator may have written for it. Index: the log's primary key;
# the states' unique key.
GATHER = """
    SELECT s.acked, s.in_flight, s.retry_count, {remaining}, {columns} FROM sqlqueue_message m
    LEFT JOIN sqlqueue_delivery_state s ON s.topic = m.topic AND s.consumer_group = %s
    AND s."partition" = m."partition" AND s.priority = m.priority AND s.message_offset = m."offset"
    WHERE m."offset" IN ({marks})
"""
# The keys of the next messages of a partition. Index: (topic, partition, priority, offset), and each message's row for
# its key.
SCAN = 'SELECT "offset", partition_key FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {ascending} LIMIT %s'
# Rows of delivery state with their messages. Index: the unique (topic, group, partition, priority, offset); the message
# by its primary key.
LOAD = """
    SELECT s.message_offset, s.acked, s.in_flight, s.retry_count, {remaining}, {columns}
    FROM sqlqueue_delivery_state s LEFT JOIN sqlqueue_message m ON m."offset" = s.message_offset
    WHERE s.topic = %s AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s
    AND s.message_offset IN ({marks})
"""
# Rows of a group's partitions that are due and have been dispatched before, and those that an operator has changed,
# whose attempts are BY_OPERATOR. Mostly few, since the owner soon dispatches the former; some with each statement,
# beyond the last one of the statement before. Index: the states' unique key.
DUE = """
    SELECT "partition", priority, message_offset FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND "partition" IN ({marks}) AND in_flight = 0
    AND (retry_count < 0 OR (retry_count > 0 AND acked = {false})) AND invisible_until <= {now}
    AND ("partition" > %s OR ("partition" = %s AND (priority > %s OR (priority = %s AND message_offset > %s))))
    ORDER BY "partition", priority, message_offset LIMIT %s
"""
INDEX = itemgetter(-1)  # of the read, behind its columns
LEFT = FetchedMessage._fields.index("expires")
FIRST = (-1, -1, -1)  # before every (partition, priority, offset)
BY_OPERATOR = -1  # the attempts of a row that an operator has acked, or given its attempts again; it counts as 0
JOINED = (
    'm."offset", m.partition_key, m.message_id, m.payload, m.headers, {created}, m.target_group, {published}, {due},'
    " m.body, {left}"
)
MESSAGE = 11  # columns of a message
FETCHED = MESSAGE + 1  # those of FETCH and LOOK
TIMES = {"created": "created_at", "published": "published_at", "due": "due_at"}  # of a message, by placeholder


def poll_head(alias: str, server: ServerIdentity | None = None) -> tuple[int, float | None]:
    """Return the highest visible offset, and in how many seconds the next scheduled message is due: 0 or less if one
    is, None if there is none.

    server: whose answer is wanted, here and below. Raises ServerChanged or SessionReplaced if another one has answered,
    or may have.
    """
    proof, values = proof_column(server)
    text = POLL_HEAD.replace("{proof}", proof)
    row = execute(alias, text.replace("{due_in}", dialect(alias).remaining("due_at")), values).fetchone()
    if server is not None and proof and not row[2]:
        server.refuted()
    highest, due_in = row[:2]
    return highest or 0, None if due_in is None else float(due_in)


def watch(alias: str, low: int, high: int, server: ServerIdentity | None = None) -> set[tuple[str, int, int]]:
    """Return the (topic, partition, priority) that have messages in (low, high]; bounded by the caller's range."""
    found = select(alias, WATCH, (low, high), server, 3, 1)
    return {(topic, partition, priority) for topic, partition, priority in found}


def select(
    alias: str, text: str, values: Sequence[object], server: ServerIdentity | None, columns: int, at: int
) -> Sequence[Any]:
    """Return a statement's rows, see ServerIdentity.select()."""
    if server is not None and server.identity:
        if "ORDER BY" in text and " UNION ALL " not in text:
            text = dialect(alias).branch.format(text)
        return server.select(text, values, columns, at)
    rows: Sequence[Any] = execute(alias, text, values).fetchall()
    return rows


def fetch(alias: str, reads: Sequence[tuple[PartitionRef, Read]], server: ServerIdentity | None = None) -> list[Found]:
    """Return what each read finds, in the order of the offsets: one statement for every 32 partitions."""
    found = [Found([], []) for _ in reads]
    columns = with_times(COLUMNS, dialect(alias))
    new = tuple.__new__
    for index, run in runs(alias, reads, columns, [one.seen for one in found], server):
        moment = time.monotonic()
        found[index].messages.extend(
            [new(FetchedMessage, row[:-1]) if row[LEFT] is None else message_of(row[:-1], moment) for row in run]
        )
    return found


def runs(
    alias: str,
    reads: Sequence[tuple[PartitionRef, Read]],
    columns: str,
    seen: Sequence[list[int]],
    server: ServerIdentity | None = None,
) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Yield the index of a read, and rows that it has found, in the order of the offsets; the index is their last
    column. What each read looks for is added to its list in `seen`."""
    syntax = dialect(alias)
    for first in range(0, len(reads), STREAMS_OF_ONE_FETCH):
        whole: list[str] = []
        looks: list[str] = []
        values: list[object] = []
        look_values: list[object] = []
        for index, (ref, read) in enumerate(reads[first : first + STREAMS_OF_ONE_FETCH], first):
            stream = (ref.topic, ref.partition, ref.priority)
            of_slice = in_slice('"offset"', ref.slice, ref.slices)
            if read.limit > 0:
                text = FETCH if read.end is None else FETCH_TO
                whole.append(text.replace("{columns}", columns).replace("{slice}", of_slice))
                end = () if read.end is None else (read.end,)
                values += (index, *syntax.range_values(*stream, read.start, *end), read.limit)
            if read.looks:
                looks.append(LOOK.strip().replace("{slice}", of_slice))
                look_values += (-index - 1, *syntax.range_values(*stream, read.since, read.start), read.looks)
        texts = whole + looks  # in this order: the first one's columns have types
        text = " UNION ALL ".join(map(syntax.branch.format, texts)) if len(texts) > 1 else texts[0]
        rows = select(alias, text, values + look_values, server, FETCHED, FETCHED - 1)
        for index, run in groupby(rows, INDEX):
            if index < 0:
                seen[-index - 1].extend([row[0] for row in run])
            else:
                yield index, list(run)


def with_times(columns: str, syntax: Dialect, table: str = "") -> str:
    for name, column in TIMES.items():
        columns = columns.replace(f"{{{name}}}", syntax.epoch(table + column))
    return columns.replace("{left}", syntax.remaining(f"{table}expires_at"))


def gather(
    alias: str, ref: PartitionRef, offsets: Iterable[int], server: ServerIdentity | None = None
) -> dict[int, tuple[StoredRow | None, FetchedMessage]]:
    """Return the messages at these offsets of an assigned partition, each with its delivery-state row, if it has one.
    Those that are no longer in the log are left out."""
    wanted = list(offsets)
    syntax = dialect(alias)
    text = GATHER.replace("{columns}", with_times(JOINED, syntax, "m."))
    text = text.replace("{remaining}", syntax.remaining("s.invisible_until"))
    text = text.replace("{marks}", ", ".join(["%s"] * len(wanted)))
    result: dict[int, tuple[StoredRow | None, FetchedMessage]] = {}
    rows, moment = select(alias, text, (ref.group, *wanted), server, 4 + MESSAGE, 4), time.monotonic()
    for acked, in_flight, count, remaining, *values in rows:
        message = message_of(values, moment)
        row = None
        if acked is not None:
            values_of = (message.offset, bool(acked), in_flight, max(0, count), float(remaining), message.key)
            row = StoredRow(*values_of, message.headers if acked and in_flight != COUNTED else None)
        result[message.offset] = (row, message)
    return result


def scan(
    alias: str, ref: PartitionRef, low: int, high: int, server: ServerIdentity | None = None
) -> list[tuple[int, str]]:
    """Return (offset, key) of the lowest SCAN_LIMIT messages of a partition in (low, high]."""
    values = (*dialect(alias).range_values(ref.topic, ref.partition, ref.priority, low, high), SCAN_LIMIT)
    return [(offset, key) for offset, key in select(alias, SCAN, values, server, 2, 0)]


def due(
    alias: str,
    group: str,
    topic: str,
    partitions: Collection[int],
    beyond: tuple[int, int, int],
    most: int,
    server: ServerIdentity | None = None,
) -> list[tuple[int, int, int]]:
    """Return the (partition, priority, offset) of rows of these partitions that are due by the database's clock, or
    acked by an operator: at most `most` beyond one of them, in their order."""
    text = DUE.replace("{marks}", ", ".join(["%s"] * len(partitions)))
    partition, priority, offset = beyond
    after = (partition, partition, priority, priority, offset)
    values = (topic, group, *partitions, *after, most)
    found = select(alias, text, values, server, 3, 0)
    return [(partition, priority, offset) for partition, priority, offset in found]


def load(
    alias: str, ref: PartitionRef, offsets: Iterable[int], server: ServerIdentity | None = None
) -> dict[int, tuple[StoredRow, FetchedMessage | None]]:
    """Return the delivery-state rows at these offsets of an assigned partition, with their messages (None: no longer in
    the log)."""
    wanted = list(offsets)
    syntax = dialect(alias)
    text = LOAD.replace("{columns}", with_times(JOINED, syntax, "m."))
    text = text.replace("{remaining}", syntax.remaining("s.invisible_until"))
    text = text.replace("{marks}", ", ".join(["%s"] * len(wanted)))
    stream = (ref.topic, ref.group, ref.partition, ref.priority)
    result: dict[int, tuple[StoredRow, FetchedMessage | None]] = {}
    rows, moment = select(alias, text, (*stream, *wanted), server, 5 + MESSAGE, 0), time.monotonic()
    for offset, acked, in_flight, count, remaining, *message in rows:
        row = StoredRow(offset, bool(acked), in_flight, max(0, count), float(remaining), message[1] or "")
        result[offset] = (row, message_of(message, moment) if message[0] is not None else None)
    return result


def message_of(values: Sequence[Any], moment: float) -> FetchedMessage:
    """Return a row as a message. moment: after the statement, so that none expires before its time by the database's
    clock."""
    left = values[LEFT]
    return FetchedMessage._make([*values[:LEFT], None if left is None else moment + float(left)])
