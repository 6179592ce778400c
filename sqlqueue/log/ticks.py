"""Ticks: the messages of periodic schedules, published when they are due, each once.

A schedule's row says how far its ticks are (`ticked_to`). The transaction that publishes a tick moves it, on the
condition that it still is where it was read, so that two processes never publish the same tick, and one that is killed
has published none. All times are the database's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.new_message import NewMessage
from sqlqueue.core.outcomes import storable
from sqlqueue.core.periodic import DueTicks, ScheduleDefinition, due_ticks, from_text, tick_id
from sqlqueue.database import retries
from sqlqueue.database.clock import moment
from sqlqueue.database.gate import PERIODIC, take_duty
from sqlqueue.database.log import Log
from sqlqueue.database.retries import ErrorKind
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.log.publish import publish_many
from sqlqueue.signals import announce, tick_refused, ticks_published

logger = logging.getLogger("sqlqueue")

TICKS_AT_ONCE = 500
COLUMNS = "name, definition, digest, superseded, paused, refusal"
TIMES = ("attended_until", "ticked_to", "next_tick", "last_tick")
# The one statement of an idle iteration. The table has one row for each schedule.
NEXT = """
    SELECT {epoch_now}, {epoch_next} FROM sqlqueue_periodic_schedule
    WHERE paused = {false} AND refusal IS NULL AND attended_until > {now}
"""
ROWS = "SELECT {columns} FROM sqlqueue_periodic_schedule{where} ORDER BY next_tick, name"
DUE = " WHERE paused = {false} AND next_tick <= {now}"
# Index: the primary key.
ADVANCE = """
    UPDATE sqlqueue_periodic_schedule SET ticked_to = %s, next_tick = %s, last_tick = %s, refusal = NULL{published}
    {attended} WHERE name = %s AND digest = %s AND ticked_to = %s AND paused = {false}
"""
PUBLISHED = ", last_published_at = {now}"
ATTENDED = ", attended_until = {later}"
# Index: the primary key.
REFUSE = "UPDATE sqlqueue_periodic_schedule SET refusal = %s WHERE name = %s AND digest = %s"


class ScheduleRow(NamedTuple):
    """A periodic schedule as ROWS reads it; now: the database's clock."""

    name: str
    definition: str
    digest: str
    superseded: str
    paused: bool
    refusal: str | None
    attended_until: datetime
    ticked_to: datetime
    next_tick: datetime
    last_tick: datetime | None
    now: datetime

    @property
    def attended(self) -> bool:
        """Whether a process that has this definition runs."""
        return self.attended_until > self.now


class Ticks(NamedTuple):
    """What publish_due has done. published: messages; more: there may be more that are due at once; noted: what each
    schedule's row says now; error: the last one of the database for which a tick waits."""

    published: int
    more: bool
    noted: Sequence[tuple[ScheduleRow, ScheduleDefinition, DueTicks]] = ()
    error: Error | None = None


def seconds_to_next(log: Log) -> float | None:
    """Return in how many seconds the next tick of all schedules is due, negative if it is; None for never. One
    statement."""
    syntax = log.dialect
    text = NEXT.replace("{epoch_now}", syntax.epoch("{now}")).replace("{epoch_next}", syntax.epoch("MIN(next_tick)"))
    now, following = log.execute(text).fetchone()
    return None if following is None else (moment(following) - moment(now)).total_seconds()


def read_rows(log: Log, where: str = "", values: Any = ()) -> list[ScheduleRow]:
    """Return the schedules, of all names or of those that a condition names."""
    epoch = log.dialect.epoch
    columns = ", ".join([COLUMNS, *map(epoch, TIMES), epoch("{now}")])
    found = log.execute(ROWS.replace("{columns}", columns).replace("{where}", where), values).fetchall()
    return [_row(*values) for values in found]


def _row(name: str, definition: str, digest: str, superseded: str, paused: Any, refusal: Any, *times: Any) -> Any:
    moments: list[Any] = [None if time is None else moment(time) for time in times]
    return ScheduleRow(name, definition, digest, superseded, bool(paused), refusal, *moments)


def publish_due(log: Log, digests: Mapping[str, str]) -> Ticks:
    """Publish the ticks that are due, at most 500: of the schedules that this process has declared (names and digests
    of their definitions), and of those that another running process has.

    A tick that the log refuses stays due, and its schedule keeps the reason. One whose id another transaction is
    publishing waits for that, and one that meets another error of the database is tried again. None of them holds back
    another schedule.
    """
    try:
        return _announced(log, retries.run_once(log, _publish, log, digests))
    except (Error, SqlqueueError) as error:
        if log.connection.in_atomic_block or _gone(error):
            raise
    return _publish_each(log, digests, _due(log, digests))


def retry_refused(log: Log, digests: Mapping[str, str]) -> int:
    """Publish what is due of the schedules that were refused; return how many ticks were published."""
    return _publish_each(log, digests, [row for row in _due(log, digests) if row.refusal]).published


def _publish_each(log: Log, digests: Mapping[str, str], rows: Sequence[ScheduleRow]) -> Ticks:
    published, last = 0, None
    for row in rows:
        try:
            published += _publish_alone(log, digests, row)
        except Error as error:
            if _gone(error):
                raise
            logger.warning(logfmt("tick_waits", schedule=row.name, error=error))
            last = error
    return Ticks(published, False, error=last)


def _publish_alone(log: Log, digests: Mapping[str, str], row: ScheduleRow) -> int:
    """Publish the ticks of one schedule in a transaction of their own, or note why they are refused."""
    try:
        return _announced(log, retries.run_once(log, _publish, log, digests, row.name)).published
    except SqlqueueError as error:
        _refuse(log, row, str(error))
    except Error as error:
        if retries.classify(error) is ErrorKind.DATA:
            _refuse(log, row, f"the database refuses it: {error}")
        elif retries.classify(error) is ErrorKind.CONTENTION:
            logger.info(logfmt("tick_waits", schedule=row.name, error=error))
        else:
            raise
    return 0


def _gone(error: Exception) -> bool:
    return isinstance(error, Error) and retries.classify(error) is ErrorKind.GONE


def _due(log: Log, digests: Mapping[str, str]) -> list[ScheduleRow]:
    return [row for row in read_rows(log, DUE) if row.attended or row.name in digests]


def _publish(log: Log, digests: Mapping[str, str], only: str = "") -> Ticks:
    """Publish in the caller's transaction. only: of this schedule; otherwise of those that were not refused."""
    if not take_duty(log, PERIODIC):
        return Ticks(0, False)
    left, complete = TICKS_AT_ONCE, True
    messages: dict[str, list[NewMessage]] = {}
    noted: list[tuple[ScheduleRow, ScheduleDefinition, DueTicks]] = []
    for row in _due(log, digests):
        if row.name != only if only else row.refusal:
            continue
        if left <= 0:
            complete = False
            break
        definition = from_text(row.name, row.definition)
        # What fell due since the schedule was refused counts as missed.
        attended_until = row.ticked_to if row.refusal else row.attended_until
        due = due_ticks(definition, row.ticked_to, attended_until, row.now, left)
        if _advance(log, row, definition, due, digests.get(row.name) == row.digest):
            left -= len(due.ticks)
            complete = complete and due.complete
            messages.setdefault(definition.topic, []).extend(_message(definition, tick) for tick in due.ticks)
            noted.append((row, definition, due))
    published = sum(publish_many(topic, new, relay=True).created for topic, new in messages.items() if new)
    return Ticks(published, not complete, noted)


def _message(definition: ScheduleDefinition, tick: datetime) -> NewMessage:
    id, group = tick_id(definition.name, tick), definition.group
    # Each tick is published once, whether the one before it is settled or not.
    return NewMessage(definition.payload_of(tick), key=definition.key, id=id, group=group, unique_for=False)


def _advance(log: Log, row: ScheduleRow, definition: ScheduleDefinition, due: DueTicks, own: bool) -> bool:
    """Note these ticks in the schedule's row; return False if an operator has changed it meanwhile. own: this process
    has the same definition."""
    time = log.dialect.time
    last = due.ticks[-1] if due.ticks else row.last_tick
    values = [time(due.through), time(definition.recurrence.after(due.through)), None if last is None else time(last)]
    # As long as ticks that fell due before a gap are left, the gap's beginning has to be known.
    attends = own and due.complete
    text = ADVANCE.replace("{published}", PUBLISHED if due.ticks else "")
    text = text.replace("{attended}", ATTENDED if attends else "")
    values += [attention()] if attends else []
    return bool(log.execute(text, (*values, row.name, row.digest, time(row.ticked_to))).rowcount)


def attention() -> int:
    """Return for how many microseconds a process attends to a schedule: a lease's duration."""
    return round(settings.LEASE_DURATION * 1_000_000)


def _announced(log: Log, ticks: Ticks) -> Ticks:
    for row, definition, due in ticks.noted:
        late = (row.now - due.ticks[0]).total_seconds() if due.ticks else 0.0
        fields = {"schedule": row.name, "topic": definition.topic, "policy": definition.missed, "database": log.label}
        announce(ticks_published, publish_due, **fields, count=len(due.ticks), missed=due.missed, seconds=late)
    return ticks


def _refuse(log: Log, row: ScheduleRow, reason: str) -> None:
    reason = storable(reason)
    log.execute(REFUSE, (reason, row.name, row.digest))
    if reason != row.refusal:
        announce(tick_refused, publish_due, schedule=row.name, reason=reason, database=log.label)
