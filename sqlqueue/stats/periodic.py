"""Periodic schedules as people see them: what each publishes, when it ran and will run, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import NamedTuple

from sqlqueue.core.periodic import ScheduleDefinition, from_text
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.ticks import ScheduleRow, read_rows

MOST_UPCOMING = 1_000  # ticks that are listed at once
MOST_DAYS = 3_660


@dataclass(frozen=True)
class ScheduleStatus:
    """A periodic schedule. recurrence: its cron with time zone, or its interval; state: "active", "paused", "refused"
    (see refusal) or "undeclared" (no running process has it); next_tick is None where none will come."""

    name: str
    recurrence: str
    missed: str
    topic: str
    group: str
    key: str
    state: str
    last_tick: datetime | None
    next_tick: datetime | None
    refusal: str


class UpcomingTick(NamedTuple):
    """A tick that will be due, and its schedule's name."""

    due: datetime
    schedule: str


def schedules(log: Log) -> list[ScheduleStatus]:
    """Return all periodic schedules by name."""
    return sorted(map(status, read_rows(log)), key=lambda one: one.name)


def status(row: ScheduleRow) -> ScheduleStatus:
    """Return a row as people see it."""
    state, refusal = _state(row), row.refusal or ""
    try:
        definition = from_text(row.name, row.definition)
    except ConfigurationError as error:
        return ScheduleStatus(row.name, "?", "", "", "", "", state, row.last_tick, None, refusal or str(error))
    following = row.next_tick if state == "active" else None
    return ScheduleStatus(
        row.name,
        str(definition.recurrence),
        definition.missed,
        definition.topic,
        definition.group,
        definition.key,
        state,
        row.last_tick,
        following,
        refusal,
    )


def _state(row: ScheduleRow) -> str:
    if row.paused:
        return "paused"
    if not row.attended:
        return "undeclared"
    return "refused" if row.refusal else "active"


def upcoming(log: Log, days: float, name: str = "", most: int = MOST_UPCOMING) -> list[UpcomingTick]:
    """Return the ticks of the next days, at most so many, in the order of their times; of one schedule if it is named.

    A schedule that is paused or undeclared shows what it would publish.
    """
    rows = read_rows(log, " WHERE name = %s", (name,)) if name else read_rows(log)
    several = []
    for row in rows:
        try:
            definition = from_text(row.name, row.definition)
        except ConfigurationError:
            continue
        several.append(_ticks(definition, row.now, row.now + timedelta(days=days), most))
    return list(islice(merge(*several), most))


def _ticks(definition: ScheduleDefinition, after: datetime, until: datetime, most: int) -> list[UpcomingTick]:
    found = islice(definition.recurrence.between(after, until), most)
    return [UpcomingTick(due, definition.name) for due in found]
