"""Reads at once what the doctor judges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Min

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.database.gate import DUTIES
from sqlqueue.database.insert_sql import HORIZON, NAMED, SLOTS
from sqlqueue.database.limits import limits, missing_indexes
from sqlqueue.database.log import Log, all_logs
from sqlqueue.database.tables import pending_migrations, queue_models
from sqlqueue.models import PeriodicSchedule, PublishGate, ScheduledMessage
from sqlqueue.stats.survey import database_time, survey

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


class Diagnostics:
    """What the doctor judges.

    pending: migrations are not applied, and the tables were not read; connection: Django's settings of the database;
    processes, threads: how many are to run; refusals: the first scheduled messages that were refused, one more than are
    told; periodic: there are periodic schedules; others: how many databases there are beside this one; forwarded: None
    where there is no writer.
    """

    def __init__(
        self, log: Log, handlers: Sequence[Consumer], processes: int | None = None, threads: int | None = None
    ) -> None:
        """processes: None for as many as are alive (one if none is)."""
        self.handlers, self.threads, self.processes = handlers, threads or settings.THREADS, processes or 1
        self.limits, self.connection = limits(log), log.connection.settings_dict
        self.others, self.periodic = len(all_logs()) - 1, False
        self.forwarded: ForwardedPublishes | None = None
        self.pending = pending_migrations(log)
        if self.pending:
            return
        self.survey = survey(log)
        self.processes = processes or self.survey.subscribers or 1
        self.missing_indexes = missing_indexes(log, queue_models())
        self.missing_slots = len((*DUTIES, NAMED, HORIZON)) + SLOTS - PublishGate.objects.using(log.alias).count()
        self.clock = _clock(log)
        refused = ScheduledMessage.objects.using(log.alias).filter(refused=True).order_by("due_at")
        self.refusals = list(refused[: MOST_REFUSALS + 1])
        self.periodic = PeriodicSchedule.objects.using(log.alias).exists()
        self.forwarded = _forwarded(log)


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
