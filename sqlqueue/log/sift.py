"""Sift: the reads of consumers whose filter leaves out nearly all. What the filter looks at is read of every message,
and then those that match are read whole. Reads only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import Found, Read
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.database.statements import dialect
from sqlqueue.log.fetch import COLUMNS, MESSAGE, message_of, runs, select, with_times

WHOLE_AT_ONCE = 500  # messages
# What has to be known of every message, in the order of COLUMNS, and what only some filters look at.
THIN = '"offset", partition_key, {id}, {payload}, headers, NULL, target_group, NULL, NULL, {body}, NULL'
BODY = "CASE WHEN body IS NOT NULL THEN '' END"  # a filter asks only whether there is one
LOOKED_AT = {"id": {"id": "message_id"}, "payload": {"payload": "payload", "body": BODY}}
# Messages by their offsets. Index: the log's primary key.
WHOLE = 'SELECT {columns} FROM sqlqueue_message{by_offset} WHERE "offset" IN ({marks}) ORDER BY "offset"'


def sift(alias: str, reads: Sequence[tuple[PartitionRef, Read]], server: ServerIdentity | None = None) -> list[Found]:
    """Return what each read finds: the messages that match its filter whole, unless one was deleted between the two
    statements, and of the others what was asked for. A statement for every 32 partitions, and one for every 500
    messages that match."""
    looked_at = {field for _, read in reads if read.sift is not None for field in read.sift.fields}
    columns = THIN
    for field, names in LOOKED_AT.items():
        for name, column in names.items():
            columns = columns.replace(f"{{{name}}}", column if field in looked_at else "NULL")
    seen: list[list[int]] = [[] for _ in reads]
    left_out: list[list[tuple[Any, ...]]] = [[] for _ in reads]
    matching: list[list[int]] = [[] for _ in reads]
    for index, run in runs(alias, reads, columns, seen, server):
        where = reads[index][1].sift
        assert where is not None
        offsets = [row[0] for row in where.select(run)]
        matching[index] += offsets
        chosen = set(offsets)
        left_out[index] += [row for row in run if row[0] not in chosen] if chosen else run
    whole = _whole(alias, [offset for offsets in matching for offset in offsets], server)
    return [
        Found(
            seen[index],
            [whole[offset] for offset in offsets if offset in whole],
            left_out[index],
            [offset for offset in offsets if offset not in whole],
        )
        for index, offsets in enumerate(matching)
    ]


def _whole(alias: str, offsets: Sequence[int], server: ServerIdentity | None) -> dict[int, FetchedMessage]:
    text = WHOLE.replace("{columns}", with_times(COLUMNS, dialect(alias)))
    result: dict[int, FetchedMessage] = {}
    for first in range(0, len(offsets), WHOLE_AT_ONCE):
        some = offsets[first : first + WHOLE_AT_ONCE]
        marks = ", ".join(["%s"] * len(some))
        rows, moment = select(alias, text.replace("{marks}", marks), some, server, MESSAGE, 0), time.monotonic()
        result.update((row[0], message_of(row, moment)) for row in rows)
    return result
