"""Reads the heartbeats: which consumer processes are alive, which are late, and which have died."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.models.expressions import Combinable

from sqlqueue.conf import settings
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.models import SubscriberHeartbeat
from sqlqueue.models.subscriber import STREAM

BEATS_MISSED = 2  # in a row, after which a heartbeat is late
COLUMNS = ("topic", "consumer_group", "subscriber", "horizon", "failing", "server", "beat_at", "lives")
OF_WORK = ("busy", "idle")
STANDS_STILL = 60.0  # seconds without a settle, although there is something to do
OF_DEAD = ("exit_status", "expires_at", "restart_at", "activity", "host")


@dataclass(frozen=True, slots=True)
class Late:
    """A consumer process that has written no heartbeat for so many seconds, which is too long."""

    subscriber: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Death:
    """A consumer process that has died, as its supervisor has seen, and no successor of which has lived a minute.

    exit_status: -9 for signal 9; at, restart_at: by the database's clock; in_doubt: the messages that it had in flight,
    "ship of orders[3]@17", "" for none.
    """

    subscriber: str
    host: str
    exit_status: int
    at: datetime
    restart_at: datetime
    in_doubt: str


class Work(NamedTuple):
    """What processes do, as (subscriber, topic, group). busy: a handler of the group runs there, within its limit;
    idle: nothing of the group was settled there lately, and no watermark moved."""

    busy: Set[tuple[str, str, str]] = frozenset()
    idle: Set[tuple[str, str, str]] = frozenset()


class Processes(NamedTuple):
    """The consumer processes: how many are alive, how many serve each (topic, group), the highest horizon that one
    knows, which background tasks fail, which servers are written to, the last beat of each that has not said that it
    ends, those that have died, the last one first, and what the living ones do."""

    alive: int
    members: dict[tuple[str, str], int]
    horizon: int
    failing: tuple[str, ...]
    servers: tuple[str, ...]
    beats: dict[str, datetime]
    deaths: tuple[Death, ...]
    work: Work


def processes(log: Log) -> Processes:
    """Read all heartbeats: a row for each process and group. One statement."""
    lives = _condition(SubscriberHeartbeat.objects.living())
    now = DatabaseNow()
    busy = _condition(Q(runs_until__gt=now))
    idle = _condition(Q(progressed_at__lt=now - timedelta(seconds=STANDS_STILL)))
    heartbeats = SubscriberHeartbeat.objects.using(log.alias).annotate(lives=lives, busy=busy, idle=idle)
    found = list(heartbeats.values_list(*COLUMNS, *OF_DEAD, *OF_WORK))
    rows = [row for row in found if row[7]]
    members: dict[tuple[str, str], int] = defaultdict(int)
    for topic, group, *_ in rows:
        members[topic, group] += 1
    return Processes(
        len({row[2] for row in rows}),
        dict(members),
        max((row[3] for row in rows), default=0),
        tuple(sorted({f"{row[2]}: {row[4]}" for row in rows if row[4]})),
        tuple(sorted({row[5] for row in rows if row[5]})),
        {row[2]: row[6] for row in found if row[8] is None},
        _deaths([row for row in found if row[8] is not None]),
        Work(*({(row[2], row[0], row[1]) for row in rows if row[column]} for column in (13, 14))),
    )


def _condition(condition: Q) -> Combinable:
    return ExpressionWrapper(condition, output_field=BooleanField())


def late_ones(read: Processes, now: datetime) -> tuple[Late, ...]:
    """Return the processes whose heartbeat is overdue, the oldest first. now: the database's time."""
    ages = {subscriber: (now - beat).total_seconds() for subscriber, beat in read.beats.items()}
    allowed = BEATS_MISSED * settings.HEARTBEAT_INTERVAL
    late = [Late(name, age) for name, age in ages.items() if age > allowed and not name.startswith(STREAM)]
    return tuple(sorted(late, key=lambda one: -one.seconds))


def _deaths(rows: Sequence[tuple[object, ...]]) -> tuple[Death, ...]:
    found = [Death(row[2], row[12], row[8], row[9], row[10] or row[9], row[11]) for row in rows]  # type: ignore[arg-type]
    return tuple(sorted(found, key=lambda death: death.at, reverse=True))
