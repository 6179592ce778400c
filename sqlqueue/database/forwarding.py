"""Forwarding: messages that are published where the log may not be written to are scheduled, and due at once.

In a cluster of several writable servers the gate names one of them (database.writer): its locks are those that
the horizon asks for. A publish statement that runs on another server adds nothing, and its transaction goes on. The
message is put on the schedule then, in the same transaction: a row there counts by being there, so it does not matter
when and where it is committed. The scheduler of the named server moves it into the log, as it does with all others.

Rows of forwarded messages have numbers below 0. While there are any, publishers on the named server forward too: a
message of theirs would overtake.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import OperationalError

from sqlqueue.database.dialects.base import marks_of
from sqlqueue.database.error_codes import ELSEWHERE
from sqlqueue.database.ids import Identity
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import SCHEDULE_COLUMNS, scheduled

# Seconds by which a server's clock may be ahead. What is due later has been postponed, by an edit or a replacement: it
# is not on its way any more.
CLOCK_TOLERANCE = 120
ON_ITS_WAY = f"id < 0 AND refused = {{false}} AND due_at < {{now}} + INTERVAL {CLOCK_TOLERANCE} SECOND"
# Whether anything is on its way. Index: the primary key.
ANY_ON_ITS_WAY = f"SELECT 1 FROM sqlqueue_scheduled_message{{by_id}} WHERE {ON_ITS_WAY} LIMIT 1"
# The latest of a key that is on its way. Index: (topic, partition_key).
LATEST = f"""
    SELECT MAX(due_at) FROM sqlqueue_scheduled_message
    WHERE topic = %s AND partition_key IN ({{marks}}) AND {ON_ITS_WAY}
"""
FORWARD = f"INSERT INTO sqlqueue_scheduled_message (id, created_at, due_at, {SCHEDULE_COLUMNS})"
ROW = "(%s, COALESCE(%s, {now}), GREATEST({now}, COALESCE(%s, {now})), %s, %s, %s, %s, %s, %s, %s, %s, %s)"
ADDED = "SELECT topic, message_id, partition_key FROM sqlqueue_scheduled_message WHERE id BETWEEN %s AND %s"
KEEP = " ON DUPLICATE KEY UPDATE refused = sqlqueue_scheduled_message.refused"
RANDOM_BITS, CALL_BITS = 45, 14  # of a number: the messages of one statement follow each other
STEP = timedelta(microseconds=1)


class GateElsewhere(OperationalError):
    """The gate names another server: this one may not add to the log what cannot be forwarded."""

    def __init__(self) -> None:
        super().__init__(
            ELSEWHERE,
            "messages enter the log on another server of this cluster, or it is being changed which: nothing was added",
        )


def any_forwarded(log: Log) -> bool:
    """Tell whether messages are on their way into the log."""
    return log.execute(ANY_ON_ITS_WAY).fetchone() is not None


def forward(log: Log, rows: Sequence[LogRow], may_repeat: bool) -> set[Identity]:
    """Let messages, those of one statement, wait for the named server, in the caller's transaction; return the
    identities of those whose ids were not scheduled. In `rows` each is there once. may_repeat: ids may be scheduled
    already.

    Their numbers are random, for nodes that count for themselves give the same ones; those of one call follow each
    other. Each is due after what was forwarded before with its key, as far as it is seen here, so that their
    order does not depend on the clocks of several nodes.
    """
    after = _latest(log, rows)
    first = -((secrets.randbits(RANDOM_BITS) + 1) << CALL_BITS)
    values = [(first + number, row.published_at, after, *scheduled(row)) for number, row in enumerate(rows)]
    text = f"{FORWARD} VALUES {', '.join([ROW] * len(rows))}{KEEP * may_repeat}"
    log.execute(text, [value for row in values for value in row])
    added = log.execute(ADDED, (first, first + len(rows) - 1)).fetchall()
    return {(topic, id, key) for topic, id, key in added}


def _latest(log: Log, rows: Sequence[LogRow]) -> Any:
    """Return when the next message of these keys may be due at the earliest; None if none of them is on its way."""
    latest: list[Any] = []
    for topic in {row.topic for row in rows if row.key}:
        keys = sorted({row.key for row in rows if row.key and row.topic == topic})
        (due_at,) = log.execute(LATEST.replace("{marks}", marks_of(len(keys))), (topic, *keys)).fetchone()
        latest += [due_at] if due_at is not None else []
    return max(latest) + STEP if latest else None
