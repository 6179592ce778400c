"""Reads at once what the doctor judges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Min

from sqlqueue.conf import settings
from sqlqueue.database.gate import DUTIES
from sqlqueue.database.insert_sql import NAMED, SLOTS
from sqlqueue.database.limits import ServerLimits, limits, missing_indexes
from sqlqueue.database.log import Log, all_logs
from sqlqueue.database.tables import pending_migrations, queue_models
from sqlqueue.models import PeriodicSchedule, PublishGate, ScheduledMessage
from sqlqueue.stats.survey import Survey, database_time, survey

CLOCK_READS = 3  # the one with the shortest round trip counts
MOST_REFUSALS = 5


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """A registered handler; visibility_timeout in seconds."""

    name: str
    topic: str
    group: str
    visibility_timeout: float


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """By how many seconds the host's clock is ahead of the database's, plus or minus `uncertainty`."""

    ahead: float
    uncertainty: float


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A scheduled message that could not enter the log."""

    id: int
    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The settings that the doctor compares with the server's limits. Times are in seconds."""

    threads: int
    shutdown_timeout: float
    conn_max_age: float | None
    health_checks: bool


@dataclass(frozen=True, slots=True)
class Detour:
    """In a cluster of several writable servers, the named one (with a "-" before it until the log is open there), how
    many messages that took the detour wait, and for how many seconds the oldest does."""

    writer: str
    waiting: int
    oldest: float


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What the doctor judges. pending: migrations are not applied, and the tables were not read: what follows
    `handlers` has its default; processes: how many consumer processes are to run; more_refusals: there are more than
    `refusals`; periodic: there are periodic schedules; others: how many databases there are beside this one;
    detour: None where no server is
    named."""

    pending: bool
    limits: ServerLimits
    settings: RuntimeSettings
    processes: int
    handlers: Sequence[HandlerInfo]
    missing_indexes: Sequence[str] = ()
    missing_slots: int = 0
    clock: ClockSkew = ClockSkew(0.0, 0.0)
    survey: Survey | None = None
    refusals: Sequence[RefusedMessage] = ()
    more_refusals: bool = False
    periodic: bool = False
    others: int = 0
    detour: Detour | None = None


def read(
    log: Log, handlers: Sequence[HandlerInfo], processes: int | None = None, threads: int | None = None
) -> Diagnostics:
    """Read the diagnostics. processes: None for as many as are alive (one if none is)."""
    config = log.connection.settings_dict
    runtime = RuntimeSettings(
        threads or settings.THREADS,
        settings.SHUTDOWN_TIMEOUT,
        config["CONN_MAX_AGE"],
        bool(config["CONN_HEALTH_CHECKS"]),
    )
    allowed = limits(log)
    if pending_migrations(log):
        return Diagnostics(True, allowed, runtime, processes or 1, handlers)
    seen, refusals = survey(log), _refusals(log)
    return Diagnostics(
        False,
        allowed,
        runtime,
        processes or seen.subscribers or 1,
        handlers,
        missing_indexes(log, queue_models()),
        len(DUTIES) + 1 + SLOTS - PublishGate.objects.using(log.alias).count(),
        _clock(log),
        seen,
        refusals[:MOST_REFUSALS],
        len(refusals) > MOST_REFUSALS,
        PeriodicSchedule.objects.using(log.alias).exists(),
        len(all_logs()) - 1,
        _detour(log),
    )


def _detour(log: Log) -> Detour | None:
    writer = PublishGate.objects.using(log.alias).filter(slot=NAMED).values_list("writer", flat=True).first()
    if not writer:
        return None
    waiting = ScheduledMessage.objects.using(log.alias).filter(pk__lt=0, refused=False)
    oldest = waiting.aggregate(oldest=Min("due_at"))["oldest"]
    age = 0.0 if oldest is None else max(0.0, (database_time(log) - oldest).total_seconds())
    return Detour(writer, waiting.count(), age)


def _clock(log: Log) -> ClockSkew:
    reads: list[ClockSkew] = []
    for _ in range(CLOCK_READS):
        before = time.time()
        database_now = database_time(log).timestamp()
        after = time.time()
        reads.append(ClockSkew((before + after) / 2 - database_now, (after - before) / 2))
    return min(reads, key=lambda skew: skew.uncertainty)


def _refusals(log: Log) -> list[RefusedMessage]:
    rows = ScheduledMessage.objects.using(log.alias).filter(refused=True).order_by("due_at")
    return [RefusedMessage(row.pk, row.topic, row.refusal or "") for row in rows[: MOST_REFUSALS + 1]]
