"""Reads at once what the doctor judges."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Min

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.database.gate import DUTIES
from sqlqueue.database.insert_sql import HORIZON, NAMED, SLOTS
from sqlqueue.database.limits import ServerLimits, limits, missing_indexes
from sqlqueue.database.log import Log, all_logs
from sqlqueue.database.tables import pending_migrations, queue_models
from sqlqueue.models import PeriodicSchedule, PublishGate, ScheduledMessage
from sqlqueue.stats.survey import Survey, database_time, survey

CLOCK_READS = 3  # the one with the shortest round trip counts
MOST_REFUSALS = 5


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """By how many seconds the host's clock is ahead of the database's, plus or minus `uncertainty`."""

    ahead: float
    uncertainty: float


@dataclass(frozen=True, slots=True)
class ForwardedPublishes:
    """In a cluster of several writable servers, the writer (with a "-" before it until the log is open there), how many
    messages that were published on other servers wait to be forwarded to it, and for how many seconds the oldest
    does."""

    writer: str
    waiting: int
    oldest: float


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What the doctor judges.

    pending: migrations are not applied, and the tables were not read: what follows `handlers` has its default;
    connection: Django's settings of the database; processes, threads: how many are to run; refusals: the first
    scheduled messages that were refused, one more than are told; periodic: there are periodic schedules; others: how
    many databases there are beside this one; forwarded: None where there is no writer.
    """

    pending: bool
    limits: ServerLimits
    connection: Mapping[str, Any]
    processes: int
    threads: int
    handlers: Sequence[Consumer]
    missing_indexes: Sequence[str] = ()
    missing_slots: int = 0
    clock: ClockSkew = ClockSkew(0.0, 0.0)
    survey: Survey | None = None
    refusals: Sequence[ScheduledMessage] = ()
    periodic: bool = False
    others: int = 0
    forwarded: ForwardedPublishes | None = None


def read(
    log: Log, handlers: Sequence[Consumer], processes: int | None = None, threads: int | None = None
) -> Diagnostics:
    """Read the diagnostics. processes: None for as many as are alive (one if none is)."""
    connection, allowed, threads = log.connection.settings_dict, limits(log), threads or settings.THREADS
    if pending_migrations(log):
        return Diagnostics(True, allowed, connection, processes or 1, threads, handlers)
    seen = survey(log)
    return Diagnostics(
        False,
        allowed,
        connection,
        processes or seen.subscribers or 1,
        threads,
        handlers,
        missing_indexes(log, queue_models()),
        len((*DUTIES, NAMED, HORIZON)) + SLOTS - PublishGate.objects.using(log.alias).count(),
        _clock(log),
        seen,
        list(ScheduledMessage.objects.using(log.alias).filter(refused=True).order_by("due_at")[: MOST_REFUSALS + 1]),
        PeriodicSchedule.objects.using(log.alias).exists(),
        len(all_logs()) - 1,
        _forwarded(log),
    )


def _forwarded(log: Log) -> ForwardedPublishes | None:
    writer = PublishGate.objects.using(log.alias).filter(slot=NAMED).values_list("writer", flat=True).first()
    if not writer:
        return None
    waiting = ScheduledMessage.objects.using(log.alias).filter(pk__lt=0, refused=False)
    oldest = waiting.aggregate(oldest=Min("due_at"))["oldest"]
    age = 0.0 if oldest is None else max(0.0, (database_time(log) - oldest).total_seconds())
    return ForwardedPublishes(writer, waiting.count(), age)


def _clock(log: Log) -> ClockSkew:
    reads: list[ClockSkew] = []
    for _ in range(CLOCK_READS):
        before = time.time()
        database_now = database_time(log).timestamp()
        after = time.time()
        reads.append(ClockSkew((before + after) / 2 - database_now, (after - before) / 2))
    return min(reads, key=lambda skew: skew.uncertainty)
