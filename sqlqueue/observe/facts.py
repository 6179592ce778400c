"""What a doctor wants to know, read in one go."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from django.apps import apps
from django.db import connections

from sqlqueue.conf import settings
from sqlqueue.database.entry import SLOTS
from sqlqueue.database.gate import DUTIES
from sqlqueue.database.limits import Limits, limits, missing_indexes
from sqlqueue.database.tables import pending_migrations
from sqlqueue.models import Message, PublishGate, ScheduledMessage
from sqlqueue.observe.survey import Survey, database_time, survey

LOOKS = 3  # at the clock; the one with the shortest round trip counts
MOST_REFUSALS = 5


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler."""

    name: str
    topic: str
    group: str
    visibility_timeout: float


@dataclass(frozen=True, slots=True)
class Clock:
    """By how many seconds the host's clock is ahead of the database's, give or take `doubt`."""

    ahead: float
    doubt: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """A scheduled message that could not enter the log."""

    id: int
    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Manners:
    """The settings that the server's limits are held against. Seconds."""

    threads: int
    shutdown_timeout: float
    conn_max_age: float | None
    health_checks: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """processes: how many are to run; survey and what follows: None and empty while the tables are not up to date."""

    pending: bool
    limits: Limits
    manners: Manners
    processes: int
    handlers: Sequence[Handler]
    missing_indexes: Sequence[str] = ()
    missing_slots: int = 0
    clock: Clock = Clock(0.0, 0.0)
    survey: Survey | None = None
    unread: Sequence[str] = ()  # topics that have messages, and no group
    refusals: Sequence[Refusal] = ()
    more_refusals: bool = False  # than these


def read(alias: str, handlers: Sequence[Handler], processes: int | None = None, threads: int | None = None) -> Facts:
    """Read everything. processes: None for as many as are alive (one if none is)."""
    config = connections[alias].settings_dict
    manners = Manners(
        threads or settings.THREADS,
        settings.SHUTDOWN_TIMEOUT,
        config["CONN_MAX_AGE"],
        bool(config["CONN_HEALTH_CHECKS"]),
    )
    allowed = limits(alias)
    if pending_migrations(alias):
        return Facts(True, allowed, manners, processes or 1, handlers)
    seen, refusals = survey(alias), _refusals(alias)
    return Facts(
        False,
        allowed,
        manners,
        processes or seen.subscribers or 1,
        handlers,
        missing_indexes(alias, list(apps.get_app_config("sqlqueue").get_models())),
        len(DUTIES) + SLOTS - PublishGate.objects.using(alias).count(),
        _clock(alias),
        seen,
        _unread(alias, seen),
        refusals[:MOST_REFUSALS],
        len(refusals) > MOST_REFUSALS,
    )


def _clock(alias: str) -> Clock:
    looks: list[Clock] = []
    for _ in range(LOOKS):
        before = time.time()
        theirs = database_time(alias).timestamp()
        after = time.time()
        looks.append(Clock((before + after) / 2 - theirs, (after - before) / 2))
    return min(looks, key=lambda look: look.doubt)


def _unread(alias: str, seen: Survey) -> list[str]:
    read_by_somebody = {group.topic for group in seen.groups}
    nobodys = [topic.name for topic in seen.topics if topic.name not in read_by_somebody]
    return [name for name in nobodys if Message.objects.using(alias).filter(topic=name).exists()]


def _refusals(alias: str) -> list[Refusal]:
    rows = ScheduledMessage.objects.using(alias).filter(refused=True).order_by("due_at")
    return [Refusal(row.pk, row.topic, row.refusal or "") for row in rows[: MOST_REFUSALS + 1]]
