"""Adding messages to one database, and waking its consumers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from sqlqueue.conf import settings
from sqlqueue.database.gate import insert_many
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.log.conflicts import add, add_many
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published import CREATED, IGNORED, Status
from sqlqueue.log.uniqueness import add_unique, add_unique_many


def add_row(log: Log, row: LogRow) -> tuple[int | None, str, Status]:
    """Add one message, and notify its consumers; return its offset (None: it is scheduled), id and status."""
    if row.unique_for is not None:
        offset, id, status = add_unique(log, row)
    else:
        id, (offset, status) = row.id, add(log, row)
    if status != IGNORED:
        notify_of(log, [row])
    return offset, id, status


def add_rows(log: Log, rows: Sequence[LogRow]) -> tuple[list[Status], list[str], int]:
    """Add messages, all or none of them, and notify their consumers; return statuses, ids, and how many of them have
    entered the log."""
    ids = [row.id for row in rows]
    if not any(row.named or row.scheduled_for is not None or row.unique_for is not None for row in rows):
        insert_many(log, rows, may_repeat=False)
        if rows:
            notify_after_commit(log, rows)
        return [CREATED] * len(rows), ids, len(rows)
    if any(row.unique_for is not None for row in rows):
        statuses, ids = add_unique_many(log, rows)
    else:
        statuses = add_many(log, rows)
    return statuses, ids, notify_of(log, [row for row, status in zip(rows, statuses) if status != IGNORED])


def notify_of(log: Log, rows: Sequence[LogRow]) -> int:
    """Notify consumers of what was published or replaced; return how many of the messages have entered the log."""
    entered = [row for row in rows if row.scheduled_for is None]
    if len(entered) < len(rows) and _is_due_soon(rows):
        notify_after_commit(log)
    if entered:
        notify_after_commit(log, entered)
    return len(entered)


def _is_due_soon(rows: Sequence[LogRow]) -> bool:
    """Tell whether a scheduled message is due before idle consumers may poll next."""
    now, soon = datetime.now(timezone.utc), 2 * settings.IDLE_POLL_INTERVAL
    times = (row.scheduled_for for row in rows if row.scheduled_for is not None)
    return any(((at - now).total_seconds() if isinstance(at, datetime) else at) < soon for at in times)
