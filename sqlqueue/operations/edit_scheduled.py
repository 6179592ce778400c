"""Edits scheduled and refused messages, makes them due now, or withdraws them.

The scheduler deletes a row in the transaction that moves it into the log; scheduler and edit both lock the row first.
So an edit either precedes the move or fails because the message is no longer scheduled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

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
from sqlqueue.models import ScheduledMessage
from sqlqueue.operations.reschedule import Changed, in_chunks
from sqlqueue.payloads.versions import corrected

KEEP: Final = object()  # an argument that was not given: the value stays
# Index: the primary key.
UPDATE = "UPDATE sqlqueue_scheduled_message SET {columns}, refused = {false}, refusal = NULL WHERE id = %s"


def edit(
    log: Log,
    number: int,
    *,
    payload_json: str | Any = KEEP,
    headers: dict[str, Any] | Any | None = KEEP,
    priority: int | Any = KEEP,
    at: datetime | Any = KEEP,
) -> None:
    """Change a scheduled message (its `number` is its row's id); one that was refused may enter the log again.

    headers, priority, at: as in publish; what is not given stays, and so do the headers that the queue has added;
    payload_json: the payload as JSON text, stored unchanged. Of a message in an app's own topic, such as a task, only
    priority and at may be changed. What expires does so after the same time from when it is due. A message with another
    topic, key, id or group is another one: withdraw it, and publish that.

    Raises InvalidMessage for what publish would refuse, and if the message is not scheduled any more; nothing has
    changed then.
    """
    changes = {} if priority is KEEP else {"priority": priority}
    if payload_json is not KEEP:
        changes |= {"payload": checked_json(payload_json), "body": None}
    if at is not KEEP:
        checked_due(None, at)
        changes["due_at"] = log.dialect.time(at)
    retries.run(log, _edit, log, number, changes, headers)


def run_now(log: Log, numbers: Iterable[int]) -> Changed:
    """Make scheduled messages due now; refused ones are tried once more. Messages that have entered the log, or are
    entering it, are left."""
    return in_chunks(log, numbers, _run_now)


def withdraw(log: Log, numbers: Iterable[int]) -> Changed:
    """Delete scheduled messages, so that they never enter the log. Messages that have entered it, or are entering it,
    are left."""
    return in_chunks(log, numbers, _withdraw)


def _edit(log: Log, number: int, changes: dict[str, Any], headers: Any) -> None:
    rows = ScheduledMessage.objects.using(log.alias).filter(pk=number).defer("payload", "headers", "body")
    found = rows.select_for_update().first()
    if found is None:
        raise InvalidMessage(
            f"message {number} is no longer scheduled: it has entered the log, or was taken back; nothing was changed"
        )
    if headers is not KEEP:
        own = rows.values_list("headers", flat=True).get()
        changes = {**changes, "headers": encode_headers(corrected(headers, own))}
    withdrawing.refuse_edit(found.topic, changes)
    _check(log, found, changes)
    columns = ", ".join([f'"{name}" = %s' for name in changes] or ["id = id"])
    log.execute(UPDATE.replace("{columns}", columns), (*changes.values(), number))
    notify_after_commit(log)


def _check(log: Log, found: ScheduledMessage, changes: dict[str, Any]) -> None:
    """Refuse what publish would refuse. An unchanged payload is checked when the message enters the log."""
    info = topic_info(log, found.topic) if found.target_group else planned(log, found.topic)
    message = NewMessage(
        None,
        key=found.partition_key,
        id=found.message_id or None,
        priority=changes.get("priority", found.priority),
        group=found.target_group,
    )
    row = log_row(info, message, changes.get("payload") or "null", changes.get("headers"))
    check_row(log, row, settings.MAX_PAYLOAD_BYTES)


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
