"""The database's clock, as this process last read it: times in the log are compared with it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlqueue.database.log import Log

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

# By alias: how far the database's clock (seconds since the epoch) is ahead of this process's monotonic one.
_ahead: dict[Log, float] = {}


def look(log: Log) -> None:
    """Read it: one statement, right to half of its round trip."""
    began = time.monotonic()
    _ahead[log] = now(log).timestamp() - (began + time.monotonic()) / 2


def now(log: Log) -> datetime:
    """Read it, as an aware time."""
    (value,) = log.execute(f"SELECT {log.dialect.epoch('{now}')}").fetchone()
    return moment(value)


def seen(log: Log) -> float | None:
    """Return the seconds since the epoch by the database's clock; None before the first look."""
    ahead = _ahead.get(log)
    return None if ahead is None else ahead + time.monotonic()


def moment(value: Any) -> datetime:
    """Return a time as a driver gives it (see Dialect.epoch) as a datetime in UTC."""
    if isinstance(value, int):
        return EPOCH + timedelta(microseconds=value)
    at = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


def ages(values: Iterable[Any], now: float) -> list[float]:
    """Return how many seconds before `now` (seconds since the epoch) each of these times is; 0 for a later one."""
    found = [now - (value / 1_000_000 if isinstance(value, int) else moment(value).timestamp()) for value in values]
    return [max(0.0, age) for age in found] if found and min(found) < 0 else found


def seconds(value: Any) -> float:
    """Return the same as seconds since the epoch. For every message of the hot path: MySQL's are numbers."""
    return value / 1_000_000 if isinstance(value, int) else moment(value).timestamp()
