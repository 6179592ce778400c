"""Deletes, in bounded statements, of rows that no other transaction has locked."""

from __future__ import annotations

from collections.abc import Sequence

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
