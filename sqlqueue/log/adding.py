"""Adding messages to one database, and waking its consumers.

With unique_for another message of the topic and key is ignored while one is pending, or replaces it. The row of the key
is locked first, so of two publishers the second sees what the first has done, once that has committed. Then everything
else is as without unique_for: an id that is taken is ignored all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TypeVar

from sqlqueue.conf import settings
from sqlqueue.database import retries
from sqlqueue.database.gate import insert_many
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import find_existing
from sqlqueue.log.conflicts import add, add_many
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published_topic import CREATED, IGNORED, Status
from sqlqueue.log.unique import Pending, digest_of, lock, renew

T = TypeVar("T")


def add_row(log: Log, row: LogRow) -> tuple[int | None, str, Status]:
    """Add one message, and notify its consumers; return its offset (None: it is scheduled), id and status."""
    if row.unique_for is not None:
        offset, id, status = _in_one_transaction(log, _add, log, row)
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
        insert_many(log, rows)
        if rows:
            notify_after_commit(log, rows)
        return [CREATED] * len(rows), ids, len(rows)
    if any(row.unique_for is not None for row in rows):
        statuses, ids = _in_one_transaction(log, _add_many, log, rows)
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


def _in_one_transaction(log: Log, operation: Callable[..., T], *values: object) -> T:
    """After a deadlock it is run again, as far as it is no part of a caller's transaction."""
    if log.connection.in_atomic_block:
        return operation(*values)
    return retries.run(log, operation, *values)


def _keeps_out(found: Pending | None, row: LogRow) -> bool:
    return found is not None and row.unique_for is not None and found.age < row.unique_for


def _add(log: Log, row: LogRow) -> tuple[int | None, str, Status]:
    """Add one message with unique_for; return offset and id, of it or of the one for which it was ignored, and what has
    become of it."""
    digest = digest_of(row)
    pending, added = lock(log, {digest: row}, {digest} if row.named else ())
    found = pending.get(digest)
    if found is not None and _keeps_out(found, row):
        return _beside(log, row, found)
    offset, status = add(log, row)
    if status != IGNORED and digest not in added:
        renew(log, [(digest, row)])
    return offset, row.id, status


def _beside(log: Log, row: LogRow, found: Pending) -> tuple[int | None, str, Status]:
    """Do with a message what is to be done while another message is pending."""
    if not (row.replace and found.scheduled):
        return found.offset, found.id, IGNORED
    if row.named and row.id != found.id:
        taken = find_existing(log, row)
        if taken is not None and taken.offset is not None:
            return taken.offset, row.id, IGNORED
    row = row._replace(id=found.id, named=True)
    offset, status = add(log, row)
    if status == CREATED:  # it was cancelled meanwhile
        renew(log, [(digest_of(row), row)])
    return offset, found.id, status


def _add_many(log: Log, rows: Sequence[LogRow]) -> tuple[list[Status], list[str]]:
    """Add messages, some of them with unique_for; return their statuses and ids, in their order. Of those of the same
    key each finds what the one before it has left."""
    with log.atomic(savepoint=False):
        return _Call(log, rows).run()


class _Call:
    """One call of publish_many. Messages that nothing keeps out wait in `_new`, to be added in bulk."""

    def __init__(self, log: Log, rows: Sequence[LogRow]):
        self.log, self.rows = log, rows
        self.statuses: list[Status] = [CREATED] * len(rows)
        self.ids = [row.id for row in rows]
        first = {digest_of(row): row for row in reversed(rows) if row.unique_for is not None}
        self._pending, self._added = lock(log, first, {digest for digest, row in first.items() if row.named})
        self._new: list[int] = []
        self._waiting: dict[str, int] = {}  # those of them that have unique_for, by digest
        self._last: dict[str, int] = {}  # the index of the last one that was added, by digest

    def run(self) -> tuple[list[Status], list[str]]:
        """Add them; return statuses and ids."""
        for index, row in enumerate(self.rows):
            if row.unique_for is None:
                self._new.append(index)
                continue
            found = self._found(row)
            if found is None or not _keeps_out(found, row):
                self._waiting[digest_of(row)] = index
                self._new.append(index)
            else:
                self._put_beside(index, row, found)
        self._add_new()
        last = [(digest, index) for digest, index in self._last.items() if digest not in self._added]
        renew(self.log, [(digest, self.rows[index]) for digest, index in last])
        return self.statuses, self.ids

    def _found(self, row: LogRow) -> Pending | None:
        digest = digest_of(row)
        before = self._waiting.get(digest)
        if before is not None:
            first = self.rows[before]
            replaceable = row.replace and first.scheduled_for is not None
            if not first.named and not replaceable:  # then it is new for certain, and stays
                return Pending(self.ids[before], None, first.scheduled_for is not None, 0.0)
            self._add_new()
        return self._pending.get(digest)

    def _put_beside(self, index: int, row: LogRow, found: Pending) -> None:
        if row.replace and found.scheduled:
            self._add_new()  # those before it, to keep the order
        offset, self.ids[index], self.statuses[index] = _beside(self.log, row, found)
        if self.statuses[index] != IGNORED:
            self._pending[digest_of(row)] = found._replace(offset=offset, scheduled=offset is None)

    def _add_new(self) -> None:
        indexes, self._new = self._new, []
        some = [self.rows[index] for index in indexes]
        for index, status in zip(indexes, add_many(self.log, some) if some else ()):
            self.statuses[index] = status
        for digest, index in self._waiting.items():
            if self.statuses[index] != IGNORED:
                self._last[digest] = index
                self._pending[digest] = Pending(self.ids[index], None, self.rows[index].scheduled_for is not None, 0.0)
        self._waiting = {}
