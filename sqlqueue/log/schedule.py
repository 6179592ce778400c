"""Scheduled messages, some of them inserted by plain SQL: moved into the log when they are due."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.codec import decode, encode, encode_headers
from sqlqueue.core.keys import database_of
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.new_message import NewMessage
from sqlqueue.core.outcomes import storable
from sqlqueue.database import retries
from sqlqueue.database.clock import moment
from sqlqueue.database.forwarding import GateElsewhere
from sqlqueue.database.gate import SCHEDULER, insert_new, take_duty
from sqlqueue.database.ids import identity_of
from sqlqueue.database.insert_sql import LogRow, Stored
from sqlqueue.database.limits import check_size, check_storable
from sqlqueue.database.log import Log
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.server_identity import forget_session
from sqlqueue.database.sizes import LIGHT
from sqlqueue.exceptions import LONGEST_DELAY, SHORTEST_LIFE, InvalidMessage, SqlqueueError
from sqlqueue.log import withdrawing
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published_topic import log_row
from sqlqueue.log.topics import refuse_dead_letters, topic_info
from sqlqueue.models import ScheduledMessage
from sqlqueue.signals import announce, message_refused

logger = logging.getLogger("sqlqueue")

MOVED_AT_ONCE = 500
MOST_ERRORS = 10  # messages that meet an error of the database, other than contention, in one call
# Index: the primary key.
HEAVY = "SELECT payload, headers, SUBSTR(body, 1, 1), LENGTH(body) FROM sqlqueue_scheduled_message WHERE id = %s"
# Whether anything is due. Index: (refused, due_at).
ANY_DUE = "SELECT 1 FROM sqlqueue_scheduled_message WHERE refused = {false} AND due_at <= {now} LIMIT 1"
# The keys of what is due, some with each statement, beyond the last one of the statement before. Index: (refused,
# due_at).
BEYOND = " AND (due_at > %s OR (due_at = %s AND id > %s))"
DUE_KEYS = """
    SELECT id, topic, partition_key, due_at FROM sqlqueue_scheduled_message
    WHERE refused = {false} AND due_at <= {now}{beyond} ORDER BY due_at, id LIMIT %s
"""
# The next due messages, read without locks: a locking read would wait for every open transaction that has inserted
# here, and at REPEATABLE READ would hold up those that are about to. Index: (refused, due_at).
DUE = """
    SELECT id FROM sqlqueue_scheduled_message WHERE refused = {false} AND due_at <= {now} ORDER BY due_at, id LIMIT %s
"""
# What is moved is read with its lock, as it is now: it may have been replaced, or postponed, since it was found. A
# heavy payload is read by itself. Index: the primary key.
LOCKED = (
    "CASE WHEN refused = {false} AND due_at <= {now} THEN 1 ELSE 0 END",
    "{bytes}",
    "topic",
    "partition_key",
    "message_id",
    f"CASE WHEN {{bytes}} <= {LIGHT} THEN payload END",
    f"CASE WHEN {{bytes}} <= {LIGHT} THEN headers END",
    "priority",
    "target_group",
    f"CASE WHEN {{bytes}} <= {LIGHT} THEN body END",
    "expires_after",
)


class DueRow(NamedTuple):
    """A scheduled message as it is read with its lock; payload, headers and body are None if they are heavy: `size`
    bytes together. expires_after, due_in: in seconds."""

    id: int
    is_due: int
    size: int
    topic: str
    key: str
    message_id: str | None
    payload: object
    headers: object
    priority: int
    group: str
    body: object
    expires_after: float | None
    published: Any
    due: Any
    due_in: float


def move_due(log: Log) -> int:
    """Move due messages into the log, at most 500; return how many left the schedule.

    One process at a time, so that messages of one key enter in the order in which they are due. A message that the log
    refuses stays with the reason. One whose id another transaction is publishing waits for that, and so do the later
    messages of its key; no other message is held back. So does one that meets another error of the database, which is
    raised once nothing else can be moved. In a cluster nothing is moved but on the named server.
    """
    if log.execute(ANY_DUE).fetchone() is None:
        return 0
    try:
        moved = retries.run_once(log, _move, log)
    except GateElsewhere:
        forget_session(log)
        return 0
    except Error as error:
        if log.connection.in_atomic_block or _lost(log, error):
            raise
        moved = 0
    if moved is None:
        return 0
    return moved or _move_one_by_one(log)


def _move_one_by_one(log: Log) -> int:
    """Move due messages, each in its own transaction; skip those that cannot be moved now, and those of their keys
    behind them, however many there are."""
    moved, waiting = 0, set()
    errors: list[Error] = []
    for id, topic, key in _due_keys(log):
        if key and (topic, key) in waiting:
            continue
        try:
            one = retries.run_once(log, _move, log, id)
            if one is None:
                break
            if not one:  # another transaction has locked it
                waiting.add((topic, key))
            moved += one
        except Error as error:
            kind = retries.classify(error)
            if kind is ErrorKind.DATA:
                _refuse(log, id, topic, f"the database refuses it: {error}")
                continue
            waiting.add((topic, key))
            logger.info(logfmt("scheduled_message_waits", id=id, topic=topic, error=error))
            if kind is not ErrorKind.CONTENTION:
                errors.append(error)
                if len(errors) >= MOST_ERRORS or _lost(log, error):
                    raise
        if moved >= MOVED_AT_ONCE:
            break
    if errors and not moved:
        raise errors[0]
    return moved


def _lost(log: Log, error: Error) -> bool:
    """Tell whether the next statement would meet the same: not after one that was ended because of its time."""
    connection = log.connection
    return retries.classify(error) is ErrorKind.GONE and (connection.connection is None or not connection.is_usable())


def _due_keys(log: Log) -> Iterator[tuple[int, str, str]]:
    """Yield the (id, topic, key) of everything that is due, in its order."""
    beyond: tuple[Any, ...] = ()
    while True:
        text = DUE_KEYS.replace("{beyond}", BEYOND if beyond else "")
        found = log.execute(text, (*beyond, MOVED_AT_ONCE)).fetchall()
        for id, topic, key, _ in found:
            yield id, topic, key
        if len(found) < MOVED_AT_ONCE:
            return
        last, *_, due_at = found[-1]
        beyond = (due_at, due_at, last)


def _move(log: Log, only: int | None = None) -> int | None:
    """Move the next due messages, or `only` this one, in the caller's transaction; return how many were moved or
    refused: 0 if another transaction has locked one of them, None if another process is the scheduler."""
    if not take_duty(log, SCHEDULER):
        return None
    ids = [only] if only is not None else [id for (id,) in log.execute(DUE, (MOVED_AT_ONCE,)).fetchall()]
    if not ids:
        return 0
    locked = _locked(log, ids)
    if len(locked) != len(ids):
        return 0  # another transaction is changing one of them: the caller moves them one by one
    taken, rows, refused = [], [], 0
    for row in locked:
        if not row.is_due:
            continue
        try:
            rows.append(_log_row(log, row))
            taken.append(row.id)
        except SqlqueueError as error:
            _refuse(log, row.id, row.topic, str(error))
            refused += 1
    if rows:
        new = insert_new(log, rows, overtakes=True)
        repeated = [id for id, row in zip(taken, rows) if identity_of(row) not in new]
        if repeated:  # published while they were being scheduled, or by plain SQL with an id that the log has
            logger.info(logfmt("scheduled_messages_repeated", messages=len(repeated)))
            withdrawing.withdraw_scheduled(log, repeated, owned=False)
        log.execute(log.dialect.delete("sqlqueue_scheduled_message", "id", len(taken)), taken)
        notify_after_commit(log, rows)
    return len(rows) + refused


def _locked(log: Log, ids: Sequence[int]) -> list[DueRow]:
    """Lock those of the messages that are still there and that no other transaction has locked; return them in the
    order in which they are due."""
    syntax = log.dialect
    columns = (*LOCKED, syntax.epoch("created_at"), syntax.epoch("due_at"), syntax.remaining("due_at"))
    text = syntax.lock_free("sqlqueue_scheduled_message", "id", len(ids), columns)
    return sorted(map(DueRow._make, log.execute(text, ids).fetchall()), key=lambda row: (row.due, row.id))


def _refuse(log: Log, id: int, topic: str, reason: str) -> None:
    reason = storable(reason)
    ScheduledMessage.objects.using(log.alias).filter(id=id).update(refused=True, refusal=reason)
    announce(message_refused, move_due, id=id, topic=topic, reason=reason, database=log.label)


def _log_row(log: Log, due: DueRow) -> LogRow:
    """Return a scheduled message as a row of the log. Raises InvalidMessage for what plain SQL may have put into it."""
    topic, key, payload, headers, body = due.topic, due.key, due.payload, due.headers, due.body
    if not due.group:  # a message for one group may be a replayed dead letter
        refuse_dead_letters(topic)
    info = topic_info(log, topic)
    if settings.several and key and (to := database_of(key, settings.databases_of(topic))) != log.alias:
        raise InvalidMessage(f"key {key!r} of topic {topic!r} belongs on database {to!r}: schedule it there")
    most = settings.MAX_PAYLOAD_BYTES
    heavy = due.size > LIGHT
    length = 0  # of a body that stays in the server
    if heavy:
        if due.size > 2 * most:  # databases store JSON with added spaces: what may be smaller is measured below
            check_size(due.size, most)
        payload, headers, body, length = log.execute(HEAVY, (due.id,)).fetchone()
    try:
        text = payload if isinstance(payload, str) else encode(payload)
        value, stored_headers = decode(text), encode_headers(decode(headers))
        published_at, due_at = (log.dialect.time(moment(at)) for at in (due.published, due.due))
        message = NewMessage(None, key=key, id=due.message_id, priority=due.priority, group=due.group)
        row = log_row(info, message, text, stored_headers)
        row = row._replace(published_at=published_at, due_at=due_at, expires=_expires(due))
        if body is not None:
            row = row._replace(body=_checked_body(body, value))
            check_size((length or len(row.body or b"")) + len((stored_headers or "").encode()), most)
        check_storable(log, row._replace(payload=encode(value)) if due.size > most else row, most)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidMessage):
            raise
        raise InvalidMessage(f"payload or headers are not JSON that Python can read: {error}") from None
    if not heavy:
        return row
    return row._replace(payload=Stored("sqlqueue_scheduled_message", "id", due.id), headers=None, body=None)


def _checked_body(body: object, value: object) -> bytes:
    """Return the bytes of a message, or refuse them. value: of its payload."""
    if isinstance(body, str):  # in SQLite, whose columns take anything
        raise InvalidMessage("body is a text: write it as bytes, as X'25504446'")
    if value is not None:
        raise InvalidMessage("a message with a body has the payload null: take one of them out")
    return bytes(body)  # type: ignore[call-overload]


def _expires(due: DueRow) -> int | None:
    """Return after how many microseconds a message that enters the log now expires, negative if it has; None for
    never."""
    after = due.expires_after
    if after is None:
        return None
    if not SHORTEST_LIFE <= after <= LONGEST_DELAY:
        raise InvalidMessage(f"expires_after must lie between a millisecond and ten years in seconds, not {after!r}")
    return round((float(due.due_in) + after) * 1_000) * 1_000  # whole milliseconds: SQLite reads no exponents
