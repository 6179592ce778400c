"""Fetch: reads only. Many streams a query; the number of queries of an idle poll does not grow with the partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sqlqueue.core.plan import Message, StoredRow
from sqlqueue.core.stream import SCAN_LIMIT, Address
from sqlqueue.core.window import Read
from sqlqueue.database.dialects import dialect, execute

STREAMS_OF_ONE_FETCH = 32
WATCH_SPAN = 20_000  # offsets that one watch passes; a wider gap is a backlog, and every stream is looked at

# The pulse of an idle consumer: the highest offset, and in how many seconds the next scheduled message is due. Index:
# the ends of the log's primary key and of (refused, due_at).
PULSE = """
    SELECT (SELECT MAX("offset") FROM sqlqueue_message),
    (SELECT {due_in} FROM sqlqueue_scheduled_message WHERE refused = {false} ORDER BY due_at LIMIT 1)
"""
# Which streams have messages in a range of the log? Index: the primary key.
WATCH = """
    SELECT DISTINCT topic, "partition", priority FROM sqlqueue_message{by_offset}
    WHERE "offset" > %s AND "offset" <= %s
"""
COLUMNS = '"offset", partition_key, message_id, payload, headers, {created}, target_group'
# Whole messages of a stream. Index: (topic, partition, priority, offset).
FETCH = "SELECT %s, {columns} FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {by_place} LIMIT %s"
FETCH_TO = "SELECT %s, {columns} FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place} LIMIT %s"
# What is visible, in the same snapshot, of that which was read before? The same index, and nothing else.
LOOK = """
    SELECT %s, "offset", NULL, NULL, NULL, NULL, NULL, NULL FROM sqlqueue_message{by_stream}
    WHERE {within} ORDER BY {by_place} LIMIT %s
"""
# Messages by their offsets, each with the row that a person may have written for it. Index: the log's primary key; the
# states' unique key.
GATHER = """
    SELECT s.acked, s.in_flight, s.retry_count, {remaining}, {columns} FROM sqlqueue_message m
    LEFT JOIN sqlqueue_delivery_state s ON s.topic = m.topic AND s.consumer_group = %s
    AND s."partition" = m."partition" AND s.priority = m.priority AND s.message_offset = m."offset"
    WHERE m."offset" IN ({marks})
"""
# Whose messages come next in a stream? Index: (topic, partition, priority, offset), and each message's row for its key.
SCAN = 'SELECT "offset", partition_key FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place} LIMIT %s'
# Rows of delivery state with their messages. Index: the unique (topic, group, partition, priority, offset); the message
# by its primary key.
LOAD = """
    SELECT s.message_offset, s.acked, s.in_flight, s.retry_count, {remaining}, {columns}
    FROM sqlqueue_delivery_state s LEFT JOIN sqlqueue_message m ON m."offset" = s.message_offset
    WHERE s.topic = %s AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s
    AND s.message_offset IN ({marks})
"""
# Rows of a group's partitions that are due and have been handed out before, and those that a person has changed, whose
# attempts are BY_HAND. Mostly few, for the owner of the former soon hands them out; some at a time, beyond the last one
# of the time before. Index: the states' unique key.
DUE = """
    SELECT "partition", priority, message_offset FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND "partition" IN ({marks}) AND in_flight = 0
    AND (retry_count < 0 OR (retry_count > 0 AND acked = {false})) AND invisible_until <= {now}
    AND ("partition" > %s OR ("partition" = %s AND (priority > %s OR (priority = %s AND message_offset > %s))))
    ORDER BY "partition", priority, message_offset LIMIT %s
"""
FIRST = (-1, -1, -1)  # before every (partition, priority, offset)
BY_HAND = -1  # the attempts of a row that a person has acked, or let have its attempts anew; they count as 0
JOINED = 'm."offset", m.partition_key, m.message_id, m.payload, m.headers, {created}, m.target_group'


class Found(NamedTuple):
    """What a read has found, in one snapshot: the offsets between F and its start, and the messages beyond."""

    seen: list[int]
    messages: list[Message]


def pulse(alias: str) -> tuple[int, float | None]:
    """Return the highest visible offset, and in how many seconds the next scheduled message is due: 0 or less if one
    is, None if there is none."""
    highest, due_in = execute(alias, PULSE.replace("{due_in}", dialect(alias).remaining("due_at"))).fetchone()
    return highest or 0, None if due_in is None else float(due_in)


def watch(alias: str, low: int, high: int) -> set[tuple[str, int, int]]:
    """Return the (topic, partition, priority) that have messages in (low, high]; bounded by the caller's range."""
    return {(topic, partition, priority) for topic, partition, priority in execute(alias, WATCH, (low, high))}


def fetch(alias: str, reads: Sequence[tuple[Address, Read]]) -> list[Found]:
    """Return what each read finds, in the order of the offsets: one statement for every 32 streams."""
    found = [Found([], []) for _ in reads]
    words = dialect(alias)
    columns = COLUMNS.replace("{created}", words.epoch("created_at"))
    for first in range(0, len(reads), STREAMS_OF_ONE_FETCH):
        whole: list[str] = []
        looks: list[str] = []
        values: list[object] = []
        look_values: list[object] = []
        for index, (address, read) in enumerate(reads[first : first + STREAMS_OF_ONE_FETCH], first):
            stream = (address.topic, address.partition, address.priority)
            if read.limit > 0:
                whole.append((FETCH if read.end is None else FETCH_TO).replace("{columns}", columns))
                end = () if read.end is None else (read.end,)
                values += (index + 1, *words.place(*stream, read.start, *end), read.limit)
            if read.looks:
                looks.append(LOOK.strip())
                look_values += (-index - 1, *words.place(*stream, read.since, read.start), read.looks)
        texts = whole + looks  # in this order: the first one's columns have types
        text = " UNION ALL ".join(map(words.branch.format, texts)) if len(texts) > 1 else texts[0]
        for index, *message in execute(alias, text, values + look_values).fetchall():
            if index < 0:
                found[-index - 1].seen.append(message[0])
            else:
                found[index - 1].messages.append(Message._make(message))
    return found


def gather(alias: str, address: Address, offsets: Iterable[int]) -> dict[int, tuple[StoredRow | None, Message]]:
    """Return the messages at these offsets of a stream, each with its delivery-state row, if it has one. Those that are
    no longer in the log are left out."""
    wanted = list(offsets)
    words = dialect(alias)
    text = GATHER.replace("{columns}", JOINED.replace("{created}", words.epoch("m.created_at")))
    text = text.replace("{remaining}", words.remaining("s.invisible_until"))
    text = text.replace("{marks}", ", ".join(["%s"] * len(wanted)))
    result: dict[int, tuple[StoredRow | None, Message]] = {}
    for acked, in_flight, count, remaining, *values in execute(alias, text, (address.group, *wanted)).fetchall():
        message = Message._make(values)
        row = None
        if acked is not None:
            row = StoredRow(message.offset, bool(acked), in_flight, max(0, count), float(remaining), message.key)
        result[message.offset] = (row, message)
    return result


def scan(alias: str, address: Address, low: int, high: int) -> list[tuple[int, str]]:
    """Return (offset, key) of a stream's messages in (low, high], the lowest, as many as one look passes."""
    values = dialect(alias).place(address.topic, address.partition, address.priority, low, high)
    return [(offset, key) for offset, key in execute(alias, SCAN, (*values, SCAN_LIMIT)).fetchall()]


def due(
    alias: str, group: str, topic: str, partitions: Collection[int], beyond: tuple[int, int, int], most: int
) -> list[tuple[int, int, int]]:
    """Return the (partition, priority, offset) of rows of these partitions that the database holds to be due, or acked
    by a person: at most `most` beyond one of them, in their order."""
    text = DUE.replace("{marks}", ", ".join(["%s"] * len(partitions)))
    partition, priority, offset = beyond
    place = (partition, partition, priority, priority, offset)
    return [tuple(row) for row in execute(alias, text, (topic, group, *partitions, *place, most)).fetchall()]


def load(alias: str, address: Address, offsets: Iterable[int]) -> dict[int, tuple[StoredRow, Message | None]]:
    """Return the delivery-state rows at these offsets of a stream, with their messages (None: no longer in the log)."""
    wanted = list(offsets)
    words = dialect(alias)
    text = LOAD.replace("{columns}", JOINED.replace("{created}", words.epoch("m.created_at")))
    text = text.replace("{remaining}", words.remaining("s.invisible_until"))
    text = text.replace("{marks}", ", ".join(["%s"] * len(wanted)))
    stream = (address.topic, address.group, address.partition, address.priority)
    result: dict[int, tuple[StoredRow, Message | None]] = {}
    for offset, acked, in_flight, count, remaining, *message in execute(alias, text, (*stream, *wanted)).fetchall():
        row = StoredRow(offset, bool(acked), in_flight, max(0, count), float(remaining), message[1] or "")
        result[offset] = (row, Message._make(message) if message[0] is not None else None)
    return result
