"""Messages that are due later, and those that plain SQL has inserted: kept aside, and moved into the log when due."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.core.codec import decode, encode, encode_headers
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH, checked_text, new_id, partition_of
from sqlqueue.core.lines import line
from sqlqueue.core.outcomes import storable
from sqlqueue.database import faults
from sqlqueue.database.admission import SCHEDULE, SCHEDULE_COPY, SCHEDULE_LATER, check_size, scheduled
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.entry import LogRow, Stored
from sqlqueue.database.faults import Fault
from sqlqueue.database.gate import SCHEDULER, insert_many, take_duty
from sqlqueue.database.limits import check_storable
from sqlqueue.database.weight import LIGHT
from sqlqueue.exceptions import InvalidMessage, SqlqueueError
from sqlqueue.log.bell import ring_after_commit
from sqlqueue.log.topics import topic_info
from sqlqueue.models import ScheduledMessage
from sqlqueue.signals import announce, message_refused

logger = logging.getLogger("sqlqueue")

MOVED_AT_ONCE = 500
# Index: the primary key.
HEAVY = "SELECT payload, headers FROM sqlqueue_scheduled_message WHERE id = %s"
# Is anything due? Index: (refused, due_at).
ANY_DUE = "SELECT 1 FROM sqlqueue_scheduled_message WHERE refused = {false} AND due_at <= {now} LIMIT 1"
# The places of what is due, some at a time beyond the last one of the time before. Index: (refused, due_at).
BEYOND = " AND (due_at > %s OR (due_at = %s AND id > %s))"
DUE_PLACES = """
    SELECT id, topic, partition_key, due_at FROM sqlqueue_scheduled_message
    WHERE refused = {false} AND due_at <= {now}{beyond} ORDER BY due_at, id LIMIT %s
"""
# Which are due? Read without locks: a locking read would wait for every open transaction that has inserted here, and at
# REPEATABLE READ would hold up those that are about to. Index: (refused, due_at).
# What is heavy is not read with all the others, but by itself.
DUE = f"""
    SELECT id, {{bytes}}, topic, partition_key, message_id, CASE WHEN {{bytes}} <= {LIGHT} THEN payload END,
    CASE WHEN {{bytes}} <= {LIGHT} THEN headers END, priority, target_group
    FROM sqlqueue_scheduled_message WHERE refused = {{false}} AND due_at <= {{now}} ORDER BY due_at, id LIMIT %s
"""
# The same of one of them. Index: the primary key.
STILL_DUE = DUE.replace("ORDER BY due_at, id LIMIT", "AND id =")


def schedule(alias: str, row: LogRow, delay: float | None, at: datetime | None) -> None:
    """Keep a message until it is due: `delay` seconds from now by the database's clock, or `at`."""
    values = scheduled(row)
    if isinstance(row.payload, Stored):
        assert delay is not None
        source = row.payload
        text = SCHEDULE_COPY.replace("{table}", source.table).replace("{key}", source.key)
        execute(
            alias,
            text,
            (row.topic, row.key, row.id, row.priority, row.target_group, round(delay * 1_000_000), source.id),
        )
    elif delay is not None:
        execute(alias, SCHEDULE_LATER, (*values, round(delay * 1_000_000)))
    else:
        assert at is not None
        text = f"{SCHEDULE} VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
        execute(alias, text, (*values, dialect(alias).time(at)))


def move_due(alias: str) -> int:
    """Move due messages into the log, at most 500; return how many were taken off the schedule.

    One process at a time, so that messages of one key enter in the order in which they are due. A message that the log
    refuses keeps the reason, and one whose id another transaction is publishing waits for that; they hold back no other
    message, but the latter those of its key.
    """
    if execute(alias, ANY_DUE).fetchone() is None:
        return 0
    try:
        moved = faults.run_once(alias, _move, alias)
    except Error as error:
        if connections[alias].in_atomic_block or faults.classify(error) is Fault.GONE:
            raise
        moved = 0
    if moved is None:
        return 0
    return moved or _move_one_by_one(alias)


def _move_one_by_one(alias: str) -> int:
    """Move due messages in a transaction each, past those that cannot be moved now and those of their keys behind them,
    however many these are."""
    moved, waiting = 0, set()
    for id, topic, key in _due_places(alias):
        if key and (topic, key) in waiting:
            continue
        try:
            one = faults.run_once(alias, _move, alias, id)
            if one is None:
                break
            if not one:  # another transaction has locked it
                waiting.add((topic, key))
            moved += one
        except Error as error:
            fault = faults.classify(error)
            if fault is Fault.GONE:
                raise
            if fault is Fault.CONTENTION:
                waiting.add((topic, key))
                logger.info(line("scheduled_message_waits", id=id, topic=topic, error=error))
            else:
                _refuse(alias, id, topic, f"the database refuses it: {error}")
        if moved >= MOVED_AT_ONCE:
            break
    return moved


def _due_places(alias: str) -> Iterator[tuple[int, str, str]]:
    """Yield the (id, topic, key) of everything that is due, in its order."""
    beyond: tuple[Any, ...] = ()
    while True:
        text = DUE_PLACES.replace("{beyond}", BEYOND if beyond else "")
        found = execute(alias, text, (*beyond, MOVED_AT_ONCE)).fetchall()
        for id, topic, key, _ in found:
            yield id, topic, key
        if len(found) < MOVED_AT_ONCE:
            return
        last, *_, due_at = found[-1]
        beyond = (due_at, due_at, last)


def _move(alias: str, only: int | None = None) -> int | None:
    """Move the next due messages, or `only` this one, in the caller's transaction; return how many were dealt with: 0
    if another transaction has locked one of them, None if another process has the duty."""
    if not take_duty(alias, SCHEDULER):
        return None
    due = execute(alias, DUE, (MOVED_AT_ONCE,)) if only is None else execute(alias, STILL_DUE, (only,))
    found = due.fetchall()
    taken, rows = [], []
    for id, size, topic, *columns in found:
        try:
            rows.append(_log_row(alias, id, size, topic, *columns))
            taken.append(id)
        except SqlqueueError as error:
            _refuse(alias, id, topic, str(error))
    if rows:
        words = dialect(alias)
        lock = words.lock_free("sqlqueue_scheduled_message", "id", len(taken))
        if len(execute(alias, lock, taken).fetchall()) != len(taken):
            return 0  # another transaction is just changing one of them: each by itself, then
        insert_many(alias, rows, may_repeat=True)
        execute(alias, words.delete("sqlqueue_scheduled_message", "id", len(taken)), taken)
        ring_after_commit(alias)
    return len(found)


def _refuse(alias: str, id: int, topic: str, reason: str) -> None:
    reason = storable(reason)
    ScheduledMessage.objects.using(alias).filter(id=id).update(refused=True, refusal=reason)
    announce(message_refused, move_due, id=id, topic=topic, reason=reason)


def _log_row(
    alias: str,
    number: int,
    size: int,
    topic: str,
    key: str,
    id: str,
    payload: object,
    headers: object,
    priority: int,
    group: str,
) -> LogRow:
    """Return a scheduled message as a row of the log; refuse what plain SQL may have put into it."""
    info = topic_info(alias, topic)
    checked_text(key, "key", KEY_LENGTH)
    checked_text(id, "id", ID_LENGTH)
    if not 0 <= priority < info.priorities:
        raise InvalidMessage(f"priority {priority} is not one of topic {topic!r}, which has {info.priorities}")
    id = id or new_id()
    most = settings.MAX_PAYLOAD_BYTES
    heavy = size > LIGHT
    if heavy:
        if size > 2 * most:  # databases put spaces into what they store: what may be less is counted below
            check_size(size, most)
        payload, headers = execute(alias, HEAVY, (number,)).fetchone()
    try:
        text = payload if isinstance(payload, str) else encode(payload)
        value, stored_headers = decode(text), encode_headers(decode(headers))
        row = LogRow(
            info.name, partition_of(key or id, info.partitions), priority, key, id, text, stored_headers, group
        )
        check_storable(alias, row._replace(payload=encode(value)) if size > most else row, most)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidMessage):
            raise
        raise InvalidMessage(f"payload or headers are not JSON that Python can read: {error}") from None
    return row._replace(payload=Stored("sqlqueue_scheduled_message", "id", number), headers=None) if heavy else row
