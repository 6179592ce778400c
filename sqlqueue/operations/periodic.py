"""Pauses, resumes, runs and removes periodic schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import NamedTuple

from sqlqueue.core.keys import did_you_mean, new_id
from sqlqueue.core.periodic import ALL, LAST, MICROSECOND, ScheduleDefinition, checked_schedule, from_text
from sqlqueue.database import clock, retries
from sqlqueue.database.log import Log
from sqlqueue.database.retries import in_transaction
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.publish import Published, publish
from sqlqueue.log.ticks import ScheduleRow, read_rows
from sqlqueue.models import PeriodicSchedule

# Index: the primary key.
BY_NAME = " WHERE name = %s"
RESUME = """
    UPDATE sqlqueue_periodic_schedule SET paused = {false}, ticked_to = %s, next_tick = %s WHERE name = %s
"""


def pause(log: Log, name: str) -> bool:
    """Pause a periodic schedule: it publishes no ticks until it is resumed. Return whether it was not paused yet.

    Raises ConfigurationError if there is no such schedule.
    """
    _row_of(log, name)
    return bool(PeriodicSchedule.objects.using(log.alias).filter(name=name, paused=False).update(paused=True))


@in_transaction
def resume(log: Log, name: str) -> bool:
    """Resume a periodic schedule; return whether it was paused. Of what fell due meanwhile, its option `missed` says
    what is published.

    Raises ConfigurationError if there is no such schedule.
    """
    row = _locked(log, name)
    if not row.paused:
        return False
    definition = from_text(name, row.definition)
    through, time = row.ticked_to, log.dialect.time
    if definition.missed != ALL:
        last = definition.recurrence.last(through, row.now) if definition.missed == LAST else None
        through = max(through, row.now if last is None else last - MICROSECOND)
    log.execute(RESUME, (time(through), time(definition.recurrence.after(through)), name))
    return True


def remove(log: Log, name: str) -> None:
    """Delete a periodic schedule that is no longer in the code, or whose ticks are ahead of the clock, which went back.
    One that comes back later begins anew; one that a running process has does so at once.

    Raises ConfigurationError if there is no such schedule, and if a running process has declared it.
    """
    if not retries.run(log, _remove, log, name):
        text = f"schedule {name!r} is in the code of a running consumer process"
        raise ConfigurationError(f"{text}: remove it there, and restart the processes, or pause it")


def _remove(log: Log, name: str) -> bool:
    row = _locked(log, name)
    if row.attended and row.ticked_to <= row.now:
        return False
    PeriodicSchedule.objects.using(log.alias).filter(name=name).delete()
    return True


def run_now(log: Log, name: str) -> Published:
    """Publish what a periodic schedule publishes, now and besides its ticks, also while it is paused. Its id is
    "name@run-" and a unique rest, so that it is no tick's.

    Raises ConfigurationError if there is no such schedule, and what publish raises.
    """
    definition = definition_of(log, name)
    return publish(
        definition.topic,
        definition.payload_of(clock.now(log)),
        key=definition.key,
        id=f"{name}@run-{new_id()}",
        group=definition.group,
        unique_for=False,  # as its ticks
    )


def definition_of(log: Log, name: str) -> ScheduleDefinition:
    """Return the definition of a schedule that is in effect. Raises ConfigurationError if there is no such schedule."""
    return from_text(name, _row_of(log, name).definition)


def _locked(log: Log, name: str) -> ScheduleRow:
    """Return a schedule whose row is locked until the transaction ends."""
    checked_schedule(name, "give the name of a schedule")
    PeriodicSchedule.objects.using(log.alias).select_for_update().filter(name=name).first()
    return _row_of(log, name)


def _row_of(log: Log, name: str) -> ScheduleRow:
    rows = read_rows(log, BY_NAME, (checked_schedule(name, "give the name of a schedule"),))
    if not rows:
        known = PeriodicSchedule.objects.using(log.alias).values_list("name", flat=True)
        hint = did_you_mean(name, known) or " The consumer processes store them when they start."
        raise ConfigurationError(f"there is no periodic schedule {name!r}.{hint}")
    return rows[0]


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
        ticks = islice(definition.recurrence.between(row.now, row.now + timedelta(days=days)), most)
        several.append([UpcomingTick(due, definition.name) for due in ticks])
    return list(islice(merge(*several), most))
