"""Sweeps: results, progress, receipts and collected messages that have no use any more are deleted, in bounded
statements, and without waiting for rows that another transaction has locked."""

from __future__ import annotations

from collections.abc import Sequence

from sqlqueue.conf import settings
from sqlqueue.core.bounds import DAY
from sqlqueue.database import retries
from sqlqueue.database.log import Log

CHUNK = 500


def lock_free(log: Log, values: Sequence[int], table: str, key: str) -> list[int]:
    """Lock rows by their unique keys, in the caller's transaction and without waiting; return those that are locked
    now."""
    free: list[int] = []
    for start in range(0, len(values), CHUNK):
        some = values[start : start + CHUNK]
        text = log.dialect.lock_free(table, key, len(some))
        free += [value for (value,) in log.execute(text, some).fetchall()]
    return free


def delete(log: Log, table: str, key: str, values: Sequence[int]) -> None:
    """Delete rows by their unique keys, in the caller's transaction."""
    for start in range(0, len(values), CHUNK):
        some = values[start : start + CHUNK]
        log.execute(log.dialect.delete(table, key, len(some)), some)


BATCH = 1_000
# What has no use any more, the oldest first. Index: (expires_at); (updated_at); (kept_until).
EXPIRED_RESULTS = "SELECT id FROM sqlqueue_result WHERE expires_at <= {now} ORDER BY expires_at LIMIT %s"
LEFT_PROGRESS = "SELECT id FROM sqlqueue_progress WHERE updated_at <= {earlier} ORDER BY updated_at LIMIT %s"
KEPT_LONG_ENOUGH = "SELECT id FROM sqlqueue_collected_message WHERE kept_until <= {now} ORDER BY kept_until LIMIT %s"
PROGRESS_LASTS = 30 * DAY  # seconds; its settle deletes it, unless its process was killed before
MOST_BATCHES = 100  # of receipts, results or progress in one collection
OLDEST_RECEIPTS = "SELECT id, finished_at <= {earlier} FROM sqlqueue_receipt ORDER BY id LIMIT %s"  # the primary key


def results(log: Log) -> int:
    """Delete results that have expired; return how many."""
    return _collect_old(log, "sqlqueue_result", EXPIRED_RESULTS)


def others(log: Log) -> None:
    """Delete collected messages that are kept no longer, and progress whose handler was killed."""
    _collect_old(log, "sqlqueue_collected_message", KEPT_LONG_ENOUGH)
    _collect_old(log, "sqlqueue_progress", LEFT_PROGRESS, round(PROGRESS_LASTS * 1_000_000))


def _collect_old(log: Log, table: str, oldest: str, *values: int) -> int:
    """Delete, in bounded batches, the rows that a statement names; return how many. Rows that another transaction has
    locked stay: a settle may be storing a result anew."""
    total = 0
    for _ in range(MOST_BATCHES):
        found = [id for (id,) in log.execute(oldest, (*values, BATCH)).fetchall()]
        deleted = retries.run(log, _delete_old, log, table, oldest, values, found) if found else 0
        total += deleted
        if deleted < BATCH:
            break
    return total


def _delete_old(log: Log, table: str, oldest: str, values: Sequence[int], found: Sequence[int]) -> int:
    """Delete those of the found rows that are still old, once they are locked; return how many."""
    total = 0
    for start in range(0, len(found), CHUNK):
        free = lock_free(log, found[start : start + CHUNK], table, "id")
        if free:
            still = oldest.replace("WHERE", f"WHERE id IN ({', '.join(['%s'] * len(free))}) AND")
            old = [id for (id,) in log.execute(still, (*free, *values, CHUNK)).fetchall()]
            delete(log, table, "id", old)
            total += len(old)
    return total


def receipts(log: Log) -> int:
    """Delete receipts whose retention is over; return how many."""
    age = round(settings.RECEIPT_RETENTION * 1_000_000)
    total = 0
    for _ in range(MOST_BATCHES):
        released = [id for id, old_enough in log.execute(OLDEST_RECEIPTS, (age, BATCH)).fetchall() if old_enough]
        if released:
            retries.run(log, delete, log, "sqlqueue_receipt", "id", released)
        total += len(released)
        if len(released) < BATCH:
            break
    return total
