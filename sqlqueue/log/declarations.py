"""Declarations: which definition of a periodic schedule is in effect, while processes of several versions run.

The newest one: a process stores its definition over another one unless that has replaced it before. A definition that
was replaced comes back only when no process has renewed the newer one for the duration of a lease (a rollback). What
fell due before a change follows the old definition, and what falls due after it the new one. A definition that no
process renews any more does not tick.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlqueue.conf import settings
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.periodic import ScheduleDefinition
from sqlqueue.database import clock, retries
from sqlqueue.database.gate import PERIODIC, take_duty
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import chunks
from sqlqueue.log.ticks import ScheduleRow, attention, read_rows
from sqlqueue.models.scheduled_message import SUPERSEDED

logger = logging.getLogger("sqlqueue")

ADD = """
    INSERT INTO sqlqueue_periodic_schedule (name, definition, digest, attended_until, ticked_to, next_tick)
    VALUES (%s, %s, %s, {later}, %s, %s)
"""
# Index: the primary key.
REPLACE = """
    UPDATE sqlqueue_periodic_schedule SET definition = %s, digest = %s, superseded = %s, attended_until = {later},
    ticked_to = %s, next_tick = %s, declared_at = {now}, refusal = NULL
    WHERE name = %s AND digest = %s AND ticked_to = %s
"""
# What fell due while no process attended is published or passed over first. Index: the primary key.
RENEW = """
    UPDATE sqlqueue_periodic_schedule SET attended_until = {later}
    WHERE name IN ({names}) AND (attended_until > {now} OR next_tick > {now} OR paused = {true}
    OR refusal IS NOT NULL)
"""


def declare(log: Log, declared: Mapping[str, ScheduleDefinition]) -> bool:
    """Store the definitions that this process has, and renew those in effect that are the same; return False if another
    process was at it, so that this has to be repeated soon.

    One statement if there is nothing to store and another process has just renewed them.
    """
    if not any(_outdated(read_rows(log), declared)):
        return True
    return retries.run(log, _declare, log, declared)


def _declare(log: Log, declared: Mapping[str, ScheduleDefinition]) -> bool:
    if not take_duty(log, PERIODIC):
        return False
    new, changed, held = _outdated(read_rows(log), declared)
    done = True
    for definition in new:
        _add(log, definition)
    for row in changed:
        done = _replace(log, row, declared[row.name]) and done
    for some in chunks(log, [(row.name,) for row in held]):
        names = ", ".join(["%s"] * len(some))
        log.execute(RENEW.replace("{names}", names), (attention(), *(name for (name,) in some)))
    return done


def _outdated(
    rows: Sequence[ScheduleRow], declared: Mapping[str, ScheduleDefinition]
) -> tuple[list[ScheduleDefinition], list[ScheduleRow], list[ScheduleRow]]:
    """Return what a process has to store: new definitions, rows with another definition than its own, and rows of its
    own to renew."""
    renew = timedelta(seconds=settings.LEASE_DURATION - settings.HEARTBEAT_INTERVAL)
    stored = {row.name for row in rows}
    changed, held = [], []
    for row in rows:
        if row.name not in declared:
            continue
        digest = declared[row.name].digest
        if row.digest == digest:
            if row.attended_until - row.now <= renew:
                held.append(row)
        elif not row.attended or digest not in row.superseded.split():
            changed.append(row)
    return [one for name, one in declared.items() if name not in stored], changed, held


def _add(log: Log, definition: ScheduleDefinition) -> None:
    now, time = clock.now(log), log.dialect.time
    following = time(definition.recurrence.after(now))
    values = (definition.name, definition.as_text(), definition.digest, attention(), time(now), following)
    log.execute(ADD, values)


def _replace(log: Log, row: ScheduleRow, definition: ScheduleDefinition) -> bool:
    """Store another definition; return False if the ticks of the stored one come first."""
    if row.next_tick <= row.now and not row.paused and not row.refusal:
        return False
    digest, begin, time = definition.digest, max(row.now, row.ticked_to), log.dialect.time
    superseded = [one for one in row.superseded.split() if one != digest] + [row.digest]
    stored = (definition.as_text(), digest, " ".join(superseded[-SUPERSEDED:]))
    times = (time(begin), time(definition.recurrence.after(begin)))
    values = (*stored, attention(), *times, row.name, row.digest, time(row.ticked_to))
    if not log.execute(REPLACE, values).rowcount:
        return False
    logger.info(logfmt("schedule_changed", schedule=row.name, recurrence=definition.recurrence, topic=definition.topic))
    return True
