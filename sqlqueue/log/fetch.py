"""Fetch: reads of the log's end and of what is behind an offset. Reads only: one query for many partitions; an idle
poll takes as many queries however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import SCAN_LIMIT, Found, Read
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.database.horizon import SHARED
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity, proof_column, select
from sqlqueue.log.messages import MESSAGE, light, messages_of, portions, withheld, withholding
from sqlqueue.models.request import ACTIVE

STREAMS_OF_ONE_FETCH = 32
WATCH_SPAN = 20_000  # offsets that one watch passes; a wider gap is a backlog, and every partition is read

STATES = ", ".join(f"'{state}'" for state in ACTIVE)

# What an idle consumer polls: the highest offset, in how many seconds the next scheduled message is due, and the
# horizon that another one has found. Index: the ends of the log's primary key and of (refused, due_at).
POLL_HEAD = """
    SELECT (SELECT MAX("offset") FROM sqlqueue_message),
    (SELECT {due_in} FROM sqlqueue_scheduled_message WHERE refused = {false} ORDER BY due_at LIMIT 1), {shared},
    {requested}{proof}
"""
# Whether an operator's request is not done. Index: (state).
REQUESTED = f"CASE WHEN EXISTS (SELECT 1 FROM sqlqueue_request WHERE state IN ({STATES})) THEN 1 ELSE 0 END"
# The partitions that have messages in a range of the log, and how many. Index: the primary key.
WATCH = """
    SELECT topic, "partition", priority, COUNT(*) FROM sqlqueue_message{by_offset}
    WHERE "offset" > %s AND "offset" <= %s GROUP BY topic, "partition", priority
"""
# Whole messages of a partition. Index: (topic, partition, priority, offset).
FETCH = "SELECT {columns}, %s FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {ascending} LIMIT %s"
FETCH_TO = "SELECT {columns}, %s FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {ascending} LIMIT %s"
# The offsets visible in the same snapshot among those that were read before. From the same index alone.
LOOK = """
    SELECT "offset", NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, %s
    FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {ascending} LIMIT %s
"""
# The keys of the next messages of a partition. Index: (topic, partition, priority, offset), and each message's row for
# its key.
SCAN = 'SELECT "offset", partition_key FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {ascending} LIMIT %s'
# Which of these rows, which are not due for all that their owner knows, are due or acked: changed by an operator, or by
# plain SQL. Index: the states' unique key.
CHANGED = """
    SELECT "partition", priority, message_offset FROM sqlqueue_delivery_state
    WHERE topic = %s AND consumer_group = %s AND "partition" = %s AND priority = %s AND message_offset IN ({marks})
    AND in_flight = 0 AND (acked <> {false} OR invisible_until <= {now})
"""
# Whether there is a message above an offset. Index: (topic, partition, priority, offset).
ABOVE = 'SELECT %s, "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {ascending} LIMIT 1'
# Whole messages of all partitions above an offset, and beside each in how many seconds the next scheduled message is
# due. Index: the primary key.
NEWEST = """
    SELECT {columns}, topic, "partition", priority,
    (SELECT {due_in} FROM sqlqueue_scheduled_message WHERE refused = {false} ORDER BY due_at LIMIT 1)
    FROM sqlqueue_message{by_offset} WHERE "offset" > %s ORDER BY "offset" LIMIT %s
"""
DUE_IN = MESSAGE + 3  # its last column
HEAVY = 16_384  # bytes of one of the newest messages beyond which its content is not given
INDEX = itemgetter(-1)  # of the read, behind its columns
FETCHED = MESSAGE + 1  # those of FETCH and LOOK


class Head(NamedTuple):
    """The highest visible offset; in how many seconds the next scheduled message is due: 0 or less if one is, None if
    there is none; the horizon that is shared, None if there is none; whether an operator's request is not done,
    None if that was not asked."""

    highest: int
    due_in: float | None
    shared: int | None
    requested: bool | None


def poll_head(log: Log, server: ServerIdentity | None = None, shared: bool = False, requested: bool = False) -> Head:
    """Return what is new. shared: whether to look for a shared horizon; requested: whether to ask for requests, too.

    server: whose answer is wanted, here and below. Raises ServerChanged or SessionReplaced if another one has answered,
    or may have.
    """
    proof, values = proof_column(server)
    text = POLL_HEAD.replace("{proof}", proof).replace("{shared}", SHARED if shared else "NULL")
    text = text.replace("{requested}", REQUESTED if requested else "NULL")
    row = log.execute(text.replace("{due_in}", log.dialect.remaining("due_at")), values).fetchone()
    if server is not None and proof and not row[4]:
        server.refuted()
    highest, due_in, found = row[:3]
    return Head(highest or 0, None if due_in is None else float(due_in), found, bool(row[3]) if requested else None)


def watch(log: Log, low: int, high: int, server: ServerIdentity | None = None) -> dict[tuple[str, int, int], int]:
    """Return the (topic, partition, priority) that have messages in (low, high], with how many; bounded by the caller's
    range."""
    found = select(log, WATCH, (low, high), server, 4, 1)
    return {(topic, partition, priority): count for topic, partition, priority, count in found}


def fetch(log: Log, reads: Sequence[tuple[PartitionRef, Read]], server: ServerIdentity | None = None) -> list[Found]:
    """Return what each read finds, in the order of the offsets: one statement for every 32 partitions, and two more if
    there are messages heavier than what a read may bring of each."""
    found = [Found([], []) for _ in reads]
    columns = withholding(log.dialect)
    for index, run in runs(log, reads, columns, [one.seen for one in found], server):
        found[index].messages.extend(messages_of(run))
    heavy = [index for index, one in enumerate(found) if withheld(one.messages)]
    if heavy:
        taken = portions(log, [(found[index].messages, reads[index][1].size) for index in heavy], server)
        for index, portion in zip(heavy, taken):
            found[index] = found[index]._replace(messages=portion.messages, gone=portion.gone, cut=portion.cut)
    return found


def runs(
    log: Log,
    reads: Sequence[tuple[PartitionRef, Read]],
    columns: str,
    seen: Sequence[list[int]],
    server: ServerIdentity | None = None,
) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Yield the index of a read, and rows that it has found, in the order of the offsets; the index is their last
    column. What each read looks for is added to its list in `seen`. Each parameter in `columns` is the most bytes of a
    message whose content is given."""
    syntax = log.dialect
    marks = columns.count("%s")
    for first in range(0, len(reads), STREAMS_OF_ONE_FETCH):
        whole: list[str] = []
        looks: list[str] = []
        values: list[object] = []
        look_values: list[object] = []
        for index, (ref, read) in enumerate(reads[first : first + STREAMS_OF_ONE_FETCH], first):
            stream = (ref.topic, ref.partition, ref.priority)
            if read.limit > 0:
                text = FETCH if read.end is None else FETCH_TO
                whole.append(text.replace("{columns}", columns))
                end = () if read.end is None else (read.end,)
                most = light(read.size, read.limit)
                values += (*[most] * marks, index, *syntax.range_values(*stream, read.start, *end), read.limit)
            if read.looks:
                looks.append(LOOK.strip())
                look_values += (-index - 1, *syntax.range_values(*stream, read.since, read.start), read.looks)
        texts = whole + looks  # in this order: the first one's columns have types
        text = " UNION ALL ".join(map(syntax.branch.format, texts)) if len(texts) > 1 else texts[0]
        rows = select(log, text, values + look_values, server, FETCHED, FETCHED - 1)
        for index, run in groupby(rows, INDEX):
            if index < 0:
                seen[-index - 1].extend([row[0] for row in run])
            else:
                yield index, list(run)


def scan(
    log: Log, ref: PartitionRef, low: int, high: int, server: ServerIdentity | None = None
) -> list[tuple[int, str]]:
    """Return (offset, key) of the lowest SCAN_LIMIT messages of a partition in (low, high]."""
    values = (*log.dialect.range_values(ref.topic, ref.partition, ref.priority, low, high), SCAN_LIMIT)
    return [(offset, key) for offset, key in select(log, SCAN, values, server, 2, 0)]


def changed(
    log: Log, rows: Mapping[PartitionRef, Sequence[int]], server: ServerIdentity | None = None
) -> set[tuple[int, int, int]]:
    """Return the (partition, priority, offset) of those of a group's rows that are due by the database's clock, or
    acked: one statement for every 32 partitions. rows: their offsets."""
    found: set[tuple[int, int, int]] = set()
    some = list(rows.items())
    for start in range(0, len(some), STREAMS_OF_ONE_FETCH):
        texts: list[str] = []
        values: list[object] = []
        for ref, offsets in some[start : start + STREAMS_OF_ONE_FETCH]:
            texts.append(CHANGED.replace("{marks}", ", ".join(["%s"] * len(offsets))))
            values += (ref.topic, ref.group, ref.partition, ref.priority, *offsets)
        found.update(map(tuple, select(log, " UNION ALL ".join(texts), values, server, 3, 0)))
    return found


def beyond(log: Log, streams: Mapping[PartitionRef, int], through: int | None = None) -> list[PartitionRef]:
    """Return those partitions that have messages above their offset, and up to `through`. One statement for every 32
    partitions."""
    found: list[PartitionRef] = []
    syntax = log.dialect
    branch = syntax.branch.format(ABOVE if through is None else ABOVE.replace("{beyond}", "{within}"))
    high = () if through is None else (through,)
    known = list(streams.items())
    for start in range(0, len(known), STREAMS_OF_ONE_FETCH):
        some = known[start : start + STREAMS_OF_ONE_FETCH]
        values: list[object] = []
        for index, (at, offset) in enumerate(some):
            values += (index, *syntax.range_values(at.topic, at.partition, at.priority, offset, *high))
        rows = log.execute(" UNION ALL ".join([branch] * len(some)), values).fetchall()
        found += [some[index][0] for index, _ in rows]
    return found


class Newest(NamedTuple):
    """What one snapshot has above an offset. messages: by (topic, partition, priority), ascending, those that are heavy
    without their payload; total: of all; last: the highest of their offsets; due_in: see Head. They are all that there
    is, unless total is what was asked for."""

    messages: dict[tuple[str, int, int], list[FetchedMessage]]
    total: int
    last: int
    due_in: float | None


def read_newest(log: Log, above: int, most: int, server: ServerIdentity | None = None) -> Newest:
    """Return the lowest messages of the whole log above an offset, `most` of them at most: one statement for a consumer
    that keeps up with the log, and owns most of it.

    server: whose answer is wanted. Raises ServerChanged or SessionReplaced if another one has answered, or may have.
    """
    columns = withholding(log.dialect)
    text = NEWEST.replace("{columns}", columns).replace("{due_in}", log.dialect.remaining("due_at"))
    values = (*[HEAVY] * columns.count("%s"), above, most)
    rows = select(log, text, values, server, DUE_IN + 1, 0)
    messages: dict[tuple[str, int, int], list[FetchedMessage]] = {}
    for row, message in zip(rows, messages_of(rows)):
        messages.setdefault(row[MESSAGE:DUE_IN], []).append(message)
    if not rows:
        return Newest(messages, 0, above, None)
    due_in = rows[-1][DUE_IN]
    return Newest(messages, len(rows), rows[-1][0], None if due_in is None else float(due_in))
