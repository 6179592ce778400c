"""Fetch: reads only. Many streams a query; the number of queries of an idle poll does not grow with the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlqueue.core.plan import Message, StoredRow
from sqlqueue.core.stream import Address
from sqlqueue.database.dialects import dialect, execute

STREAMS_OF_ONE_FETCH = 32
WATCH_SPAN = 20_000  # offsets that one watch counts; a wider gap is a backlog, and every stream reads onward

# The pulse of an idle consumer: the highest offset, and whether a scheduled message is due. Index: the ends of the
# log's primary key and of (refused, due_at).
PULSE = """
    SELECT (SELECT MAX("offset") FROM sqlqueue_message),
    EXISTS (SELECT 1 FROM sqlqueue_scheduled_message WHERE refused = {false} AND due_at <= {now})
"""
# Which streams have how many messages in a range of the log? Index: the primary key.
WATCH = """
    SELECT topic, "partition", priority, COUNT(*) FROM sqlqueue_message{by_offset}
    WHERE "offset" > %s AND "offset" <= %s GROUP BY topic, "partition", priority
"""
COLUMNS = '"offset", partition_key, message_id, payload, headers, {created}, target_group'
# Index: (topic, partition, priority, offset).
FETCH = """
    SELECT %s, {between}, {columns} FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {by_place} LIMIT %s
"""
# What is visible, in the same snapshot, of that which a read onward takes for known? Index: the same, and nothing else.
BETWEEN = """
    (SELECT COUNT(*) FROM sqlqueue_message b{by_stream} WHERE b.topic = %s AND b."partition" = %s AND b.priority = %s
    AND b."offset" > %s AND b."offset" <= %s)
"""
# Rows of delivery state with their messages. Index: the unique (topic, group, partition, priority, offset); the message
# by its primary key.
LOAD = """
    SELECT s.message_offset, s.acked, s.in_flight, s.retry_count, {remaining}, {columns}
    FROM sqlqueue_delivery_state s LEFT JOIN sqlqueue_message m ON m."offset" = s.message_offset
    WHERE s.topic = %s AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s
    AND s.message_offset IN ({marks})
"""
# Rows of a group that are due and have been handed out before, and those that a person has changed, whose attempts are
# BY_HAND: few, for due rows are soon handed out. Index: the states' unique key.
DUE = """
    SELECT "partition", priority, message_offset FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND in_flight = 0 AND (retry_count < 0 OR (retry_count > 0 AND acked = {false})) AND invisible_until <= {now}
    LIMIT %s
"""
BY_HAND = -1  # the attempts of a row that a person has acked, or let have its attempts anew; they count as 0
JOINED = 'm."offset", m.partition_key, m.message_id, m.payload, m.headers, {created}, m.target_group'


class Read(NamedTuple):
    """What to read of a stream: at most `limit` messages beyond `start`; those from `since` to there are counted."""

    address: Address
    start: int
    limit: int
    since: int | None = None


class Found(NamedTuple):
    """What a read has found: the messages, and how many are visible from `since` to `start` (-1: not counted)."""

    messages: list[Message]
    between: int

    def __bool__(self) -> bool:
        return bool(self.messages)


def pulse(alias: str) -> tuple[int, bool]:
    """Return the highest visible offset, and whether a scheduled message is due."""
    highest, due = execute(alias, PULSE).fetchone()
    return highest or 0, bool(due)


def watch(alias: str, low: int, high: int) -> dict[tuple[str, int, int], int]:
    """Return how many messages (topic, partition, priority) has in (low, high]; bounded by the caller's range."""
    rows = execute(alias, WATCH, (low, high)).fetchall()
    return {(topic, partition, priority): count for topic, partition, priority, count in rows}


def fetch(alias: str, reads: Sequence[Read]) -> list[Found]:
    """Return what each read finds, in the order of the offsets: one statement for every 32 streams."""
    messages: list[list[Message]] = [[] for _ in reads]
    between = [-1] * len(reads)
    words = dialect(alias)
    select = FETCH.replace("{columns}", COLUMNS.replace("{created}", words.epoch("created_at"))).strip()
    plain, counting = select.replace("{between}", "-1"), select.replace("{between}", BETWEEN.strip())
    for first in range(0, len(reads), STREAMS_OF_ONE_FETCH):
        some = reads[first : first + STREAMS_OF_ONE_FETCH]
        texts: list[str] = []
        values: list[object] = []
        for index, (address, start, limit, since) in enumerate(some, first):
            stream = (address.topic, address.partition, address.priority)
            texts.append(plain if since is None else counting)
            place = words.place(*stream, start)
            values += (index, *(() if since is None else (*stream, since, start)), *place, limit)
        text = " UNION ALL ".join(map(words.branch.format, texts)) if len(some) > 1 else texts[0]
        for row in execute(alias, text, values).fetchall():
            messages[row[0]].append(Message._make(row[2:]))
            between[row[0]] = row[1]
    return [Found(*found) for found in zip(messages, between)]


def due(alias: str, group: str, topic: str, most: int) -> dict[Address, list[int]]:
    """Return the offsets of rows that the database holds to be due, or acked by a person: at most `most`, by stream."""
    found: dict[Address, list[int]] = {}
    for partition, priority, offset in execute(alias, DUE, (topic, group, most)).fetchall():
        found.setdefault(Address(group, topic, partition, priority), []).append(offset)
    return found


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
