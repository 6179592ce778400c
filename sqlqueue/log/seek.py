"""Seek: find the offset at which the log stood at a time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from django.db import models
from django.db.models import Max, Min

from sqlqueue.database.log import Log
from sqlqueue.models import Message

BRANCHES = 16  # offsets probed with one statement
MARGIN = timedelta(seconds=5)  # messages published side by side need not stand in the order of their times
# Every message lies between them; beyond them times overflow.
EARLIEST, LATEST = datetime(1970, 1, 2, tzinfo=timezone.utc), datetime(9000, 1, 1, tzinfo=timezone.utc)
# The first row at or above an offset or id, and whether it is earlier than a time. Index: the primary key.
NEXT = """
    SELECT %s, {key}, CASE WHEN {time} < %s THEN 1 ELSE 0 END FROM {table}{by_offset}
    WHERE {key} >= %s ORDER BY {key} LIMIT 1
"""


def within_calendar(moment: datetime) -> datetime:
    """Return an aware time in UTC, moved to between EARLIEST and LATEST."""
    return max(EARLIEST, min(moment, LATEST)).astimezone(timezone.utc)


def offset_before(log: Log, moment: datetime) -> int:
    """Return an offset such that every message published at `moment` (aware) or later has a higher one.

    The log is nearly in the order of its times; five seconds are added for what is not. Some six statements for ten
    million messages. Raises ValueError for a time without a time zone.
    """
    return key_before(log, Message, "created_at", moment)


def key_before(log: Log, model: type[models.Model], time: str, moment: datetime) -> int:
    """Return a primary key such that every row of a table whose column `time` is `moment` (aware) or later has a higher
    one, where keys nearly ascend with these times.

    Raises ValueError for a time without a time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"the time must be aware (with a time zone), not {moment!r}")
    at = within_calendar(moment) - MARGIN
    ends = model._default_manager.using(log.alias).aggregate(low=Min("pk"), high=Max("pk"))
    if ends["low"] is None:
        return 0
    low, high = int(ends["low"]) - 1, int(ends["high"]) + 1  # what is at or below low is earlier, at or above high not
    while high - low > 1:
        probes = list(range(low + 1, high, max(1, (high - low) // BRANCHES)))
        found = _first_at(log, model, time, at, probes)
        for probe in probes:
            key, earlier = found.get(probe, (high, False))
            if not earlier or key >= high:
                high = probe
                break
            low = max(low, key)
    return low


def _first_at(
    log: Log, model: type[models.Model], time: str, at: datetime, probes: list[int]
) -> dict[int, tuple[int, bool]]:
    syntax = log.dialect
    text = NEXT.replace("{key}", f'"{model._meta.pk.column}"').replace("{time}", time)
    branch = syntax.branch.format(text.replace("{table}", model._meta.db_table).strip())
    values: list[Any] = [value for probe in probes for value in (probe, syntax.time(at), probe)]
    found = log.execute(" UNION ALL ".join([branch] * len(probes)), values).fetchall()
    return {int(probe): (int(key), bool(earlier)) for probe, key, earlier in found}
