"""The newest messages of the whole log, read by one statement: for who keeps up with it, and owns most of it."""

from __future__ import annotations

import time
from typing import NamedTuple

from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.log.portions import LEFT, MESSAGE, message_of, withholding
from sqlqueue.log.proof import select

HEAVY = 16_384  # bytes of a message beyond which its content is not given

# Whole messages of all partitions above an offset, and beside each in how many seconds the next scheduled message is
# due. Index: the primary key.
NEWEST = """
    SELECT {columns}, topic, "partition", priority,
    (SELECT {due_in} FROM sqlqueue_scheduled_message WHERE refused = {false} ORDER BY due_at LIMIT 1)
    FROM sqlqueue_message{by_offset} WHERE "offset" > %s ORDER BY "offset" LIMIT %s
"""
TOPIC, PARTITION, PRIORITY, DUE_IN = range(MESSAGE, MESSAGE + 4)


class Newest(NamedTuple):
    """What one snapshot has above an offset. messages: by (topic, partition, priority), ascending, those that are heavy
    without their payload; total: of all; last: the highest of their offsets; due_in: see Head. They are all that there
    is, unless total is what was asked for."""

    messages: dict[tuple[str, int, int], list[FetchedMessage]]
    total: int
    last: int
    due_in: float | None


def read_newest(log: Log, above: int, most: int, server: ServerIdentity | None = None) -> Newest:
    """Return the lowest messages above an offset, `most` of them at most.

    server: whose answer is wanted. Raises ServerChanged or SessionReplaced if another one has answered, or may have.
    """
    syntax = log.dialect
    columns = withholding(syntax)
    text = NEWEST.replace("{columns}", columns).replace("{due_in}", syntax.remaining("due_at"))
    values = (*[HEAVY] * columns.count("%s"), above, most)
    rows, moment = select(log, text, values, server, DUE_IN + 1, 0), time.monotonic()
    messages: dict[tuple[str, int, int], list[FetchedMessage]] = {}
    new = tuple.__new__
    for row in rows:
        message = new(FetchedMessage, row[:MESSAGE]) if row[LEFT] is None else message_of(row[:MESSAGE], moment)
        messages.setdefault((row[TOPIC], row[PARTITION], row[PRIORITY]), []).append(message)
    due_in = rows[0][DUE_IN] if rows else None
    last = rows[-1][0] if rows else above
    return Newest(messages, len(rows), last, None if due_in is None else float(due_in))
