"""Times: the offset at which the log stood at a time, and when what is scheduled or delayed is due."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from django.db import models
from django.db.models import Max, Min

from sqlqueue.database.clock import moment
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


# The next due time. Index: (refused, due_at); the states' unique key.
NEXT_MESSAGE = "SELECT {epoch} FROM sqlqueue_scheduled_message WHERE refused = {false} AND due_at > %s"
NEXT_DELIVERY = """
    SELECT {epoch} FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND acked = {false} AND in_flight = 0 AND invisible_until > %s
"""
MOVE_MESSAGES = "UPDATE sqlqueue_scheduled_message SET due_at = {moved} WHERE refused = {false}"
MOVE_DELIVERIES = "UPDATE sqlqueue_delivery_state SET invisible_until = {moved} WHERE acked = {false}"
MOVE_ENDS = "UPDATE sqlqueue_message SET expires_at = {moved} WHERE expires_at IS NOT NULL"


def next_due(log: Log, group_topics: Iterable[tuple[str, str]], after: datetime) -> datetime | None:
    """Return when, after a time, a scheduled message or a delivery of one of these (group, topic) is due, in UTC; None
    for never."""
    syntax = log.dialect
    text, time = NEXT_DELIVERY.replace("{epoch}", syntax.epoch("MIN(invisible_until)")), syntax.time(after)
    found = [log.execute(NEXT_MESSAGE.replace("{epoch}", syntax.epoch("MIN(due_at)")), (time,)).fetchone()]
    found += [log.execute(text, (topic, group, time)).fetchone() for group, topic in group_topics]
    return min((moment(value) for (value,) in found if value is not None), default=None)


def move(log: Log, by: timedelta) -> None:
    """Move the due time of everything that is scheduled or delayed, and the time at which messages expire, by `by`,
    which may be negative."""
    syntax, microseconds = log.dialect, by // timedelta(microseconds=1)
    moved = ((MOVE_MESSAGES, "due_at"), (MOVE_DELIVERIES, "invisible_until"), (MOVE_ENDS, "expires_at"))
    for text, column in moved:
        log.execute(text.replace("{moved}", syntax.moved(column)), (microseconds,))
