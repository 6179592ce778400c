"""Edits scheduled and refused messages, makes them due now, or withdraws them.

The scheduler deletes a row in the transaction that moves it into the log; scheduler and edit both lock the row first.
So an edit either precedes the move or fails because the message is no longer scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError

from sqlqueue.conf import settings
from sqlqueue.core.codec import checked_json, encode_headers
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.limits import check_row
from sqlqueue.database.log import Log
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log import withdrawing
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published_topic import checked_due, log_row
from sqlqueue.log.topics import planned, topic_info
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations.reschedule import Changed
from sqlqueue.payloads.versions import corrected

AT_ONCE = 500
KEEP: Final = object()  # an argument that was not given: the value stays
# Index: the primary key.
UPDATE = "UPDATE sqlqueue_scheduled_message SET {columns}, refused = {false}, refusal = NULL WHERE id = %s"


def edit(
    log: Log,
    number: int,
    *,
    topic: str | Any = KEEP,
    key: str | Any = KEEP,
    id: str | Any = KEEP,
    payload_json: str | Any = KEEP,
    headers: dict[str, Any] | Any | None = KEEP,
    priority: int | Any = KEEP,
    group: str | Any = KEEP,
    at: datetime | Any = KEEP,
) -> None:
    """Change a scheduled message (its `number` is its row's id); one that was refused may enter the log again.

    topic, key, id, headers, priority, group, at: as in publish; what is not given stays, and so do the headers that the
    queue has added; id "": a fresh one, once it enters the log; payload_json: the payload as JSON text, stored
    unchanged. Of a task only priority and at may be changed, and no message becomes one; what belongs to a batch keeps
    its topic and its group. What expires does so after the same time from when it is due.

    Raises InvalidMessage for what publish would refuse, for an id that is taken, and if the message is not scheduled
    any more; nothing has changed then.
    """
    given = {"topic": topic, "partition_key": key, "message_id": id, "priority": priority, "target_group": group}
    changes = {name: value for name, value in given.items() if value is not KEEP}
    changes |= {"message_id": id or None} if id is not KEEP else {}
    texts: dict[str, Any] = {} if payload_json is KEEP else {"payload": checked_json(payload_json), "body": None}
    if at is not KEEP:
        checked_due(None, at)
        changes["due_at"] = at
    try:
        retries.run(log, _edit, log, number, changes, texts, headers)
    except IntegrityError as error:  # another transaction has just scheduled the same id
        raise InvalidMessage(_taken(changes.get("message_id"), "another scheduled message")) from error


def run_now(log: Log, numbers: Iterable[int]) -> Changed:
    """Make scheduled messages due now; refused ones are tried once more. Messages that have entered the log, or are
    entering it, are left."""
    return _each(log, _run_now, numbers)


def withdraw(log: Log, numbers: Iterable[int]) -> Changed:
    """Delete scheduled messages, so that they never enter the log. Messages that have entered it, or are entering it,
    are left."""
    return _each(log, _withdraw, numbers)


def _edit(log: Log, number: int, changes: dict[str, Any], texts: dict[str, Any], headers: Any) -> None:
    rows = ScheduledMessage.objects.using(log.alias).filter(pk=number).defer("payload", "headers", "body")
    found = rows.select_for_update().first()
    if found is None:
        raise InvalidMessage(
            f"message {number} is no longer scheduled: it has entered the log, or was taken back; nothing was changed"
        )
    before = (found.topic, found.partition_key, found.message_id)
    target = (found.topic, found.target_group)
    if headers is not KEEP:
        texts = {**texts, "headers": encode_headers(corrected(headers, rows.values_list("headers", flat=True).get()))}
    withdrawing.refuse_edit(found.topic, {**changes, **texts})
    for name, value in changes.items():
        setattr(found, name, value)
    if (found.topic, found.target_group) != target:
        withdrawing.refuse_another_target(rows)
    _check(log, found, texts)
    if (found.topic, found.partition_key, found.message_id) != before:
        _check_id(log, found)
    sql = log.dialect
    columns: dict[str, object] = {**changes, **texts}
    if "due_at" in columns:
        columns["due_at"] = sql.time(found.due_at)
    named = ", ".join([f'"{name}" = %s' for name in columns] or ["id = id"])
    log.execute(UPDATE.replace("{columns}", named), (*columns.values(), number))
    notify_after_commit(log)


def _check(log: Log, found: ScheduledMessage, texts: dict[str, Any]) -> None:
    """Refuse what publish would refuse. An unchanged payload is checked when the message enters the log."""
    info = topic_info(log, found.topic) if found.target_group else planned(log, found.topic)
    message = NewMessage(
        None,
        key=found.partition_key,
        id=found.message_id or None,
        priority=found.priority,
        group=found.target_group,
    )
    row = log_row(info, message, texts.get("payload") or "null", texts.get("headers"))
    check_row(log, row, settings.MAX_PAYLOAD_BYTES)


def _check_id(log: Log, found: ScheduledMessage) -> None:
    """Refuse an id that another message of the topic and key has, on the schedule or in the log."""
    if not found.message_id:
        return
    same = found.topic, found.message_id, found.partition_key
    if ScheduledMessage.objects.using(log.alias).of_id(*same).exclude(pk=found.pk).exists():
        raise InvalidMessage(_taken(found.message_id, "another scheduled message"))
    for offset in Message.objects.using(log.alias).of_id(*same).values_list("offset", flat=True):
        raise InvalidMessage(_taken(found.message_id, f"the message at offset {offset}"))


def _taken(id: object, what: str) -> str:
    return f"{what} of this topic and key has the id {id!r} already, and an id is published once: give it another one"


def _each(log: Log, operation: Callable[[Log, Sequence[int]], int], numbers: Iterable[int]) -> Changed:
    wanted = sorted(set(numbers))
    done = 0
    for start in range(0, len(wanted), AT_ONCE):
        done += retries.run(log, operation, log, wanted[start : start + AT_ONCE])
    return Changed(done, len(wanted) - done)


def _free(log: Log, numbers: Sequence[int]) -> list[int]:
    """Lock and return the rows that exist and that the scheduler has not locked."""
    text = log.dialect.lock_free("sqlqueue_scheduled_message", "id", len(numbers))
    return [number for (number,) in log.execute(text, numbers).fetchall()]


def _run_now(log: Log, numbers: Sequence[int]) -> int:
    free = _free(log, numbers)
    for number in free:
        log.execute(UPDATE.replace("{columns}", "due_at = {now}"), (number,))
    if free:
        notify_after_commit(log)
    return len(free)


def _withdraw(log: Log, numbers: Sequence[int]) -> int:
    free = _free(log, numbers)
    if free:
        withdrawing.withdraw_scheduled(log, free, owned=True)
        log.execute(log.dialect.delete("sqlqueue_scheduled_message", "id", len(free)), free)
    return len(free)
