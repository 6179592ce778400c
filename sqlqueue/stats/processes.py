"""Reads the heartbeats: which consumer processes are alive, late or dead, and how far the horizon and a replica are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import BooleanField, ExpressionWrapper, Max, Q
from django.db.models.expressions import Combinable

from sqlqueue.conf import settings
from sqlqueue.database import clock
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.transactions import refusal
from sqlqueue.exceptions import HorizonUnknown
from sqlqueue.models import SubscriberHeartbeat
from sqlqueue.models.subscriber import STREAM

BEATS_MISSED = 2  # in a row, after which a heartbeat is late
STANDS_STILL = 60.0  # seconds without a settle, although there is something to do


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
    now = DatabaseNow()
    heartbeats = SubscriberHeartbeat.objects.using(log.alias).annotate(
        lives=_condition(SubscriberHeartbeat.objects.living()),
        busy=_condition(Q(runs_until__gt=now)),
        idle=_condition(Q(progressed_at__lt=now - timedelta(seconds=STANDS_STILL))),
    )
    rows = list(heartbeats)
    living = [row for row in rows if row.lives]
    return Processes(
        len({row.subscriber for row in living}),
        Counter((row.topic, row.consumer_group) for row in living),
        max((row.horizon for row in living), default=0),
        tuple(sorted({f"{row.subscriber}: {row.failing}" for row in living if row.failing})),
        tuple(sorted({row.server for row in living if row.server})),
        {row.subscriber: row.beat_at for row in rows if row.exit_status is None},
        _deaths(rows),
        Work(
            {(row.subscriber, row.topic, row.consumer_group) for row in living if row.busy},
            {(row.subscriber, row.topic, row.consumer_group) for row in living if row.idle},
        ),
    )


def _deaths(rows: Iterable[SubscriberHeartbeat]) -> tuple[Death, ...]:
    found = [
        Death(row.subscriber, row.host, row.exit_status, row.expires_at, row.restart_at or row.expires_at, row.activity)
        for row in rows
        if row.exit_status is not None
    ]
    return tuple(sorted(found, key=lambda death: death.at, reverse=True))


def _condition(condition: Q) -> Combinable:
    return ExpressionWrapper(condition, output_field=BooleanField())


def late_ones(read: Processes, now: datetime) -> tuple[Late, ...]:
    """Return the processes whose heartbeat is overdue, the oldest first. now: the database's time."""
    ages = {subscriber: (now - beat).total_seconds() for subscriber, beat in read.beats.items()}
    allowed = BEATS_MISSED * settings.HEARTBEAT_INTERVAL
    late = [Late(name, age) for name, age in ages.items() if age > allowed and not name.startswith(STREAM)]
    return tuple(sorted(late, key=lambda one: -one.seconds))


PROBE_PAUSES = (0.0, 0.01, 0.03)  # seconds before each probe of the publish gate

# Index: the primary key.
ABOVE = 'SELECT {remaining} FROM sqlqueue_message{by_offset} WHERE "offset" > %s ORDER BY "offset" LIMIT 1'


def newest_heartbeat(log: Log) -> float | None:
    """Return the age in seconds of the newest heartbeat on a replica; None if there is none. Two statements.

    The replica is behind by no more than that, if the servers' clocks agree: it has what was committed before.
    """
    newest = SubscriberHeartbeat.objects.using(log.alias).aggregate(newest=Max("beat_at"))["newest"]
    return None if newest is None else max(0.0, (clock.now(log) - clock.moment(newest)).total_seconds())


def replicated_horizon(log: Log) -> int:
    """Return a horizon that holds on a replica: the highest one that a heartbeat there tells.

    A consumer process probes the primary's gate before it writes its heartbeat, and a replica commits in the same
    order: when it has the heartbeat it has all that was published up to that offset. Raises HorizonUnknown if no
    heartbeat has arrived: what is visible there says nothing of what still comes below it.
    """
    if not log.dialect.gated:  # transactions that publish come one after another
        return highest_offset(log)
    horizon = SubscriberHeartbeat.objects.using(log.alias).aggregate(highest=Max("horizon"))["highest"]
    if not horizon and highest_offset(log):
        raise HorizonUnknown(
            f"the heartbeats of consumer processes tell up to where the replica {log.alias!r} has every message, and"
            " it has none: start a process, or read the primary"
        )
    return horizon or 0


def missing_tables(log: Log) -> str:
    """Return the sentence for a replica without the queue's tables, or with those of another version."""
    return (
        f"the replica {log.alias!r} (READ_ALIAS) does not have the queue's tables of this version: they come by"
        f" replication from {home_log().alias!r}, where `migrate` creates them. Does it replicate that database,"
        " and is it far behind?"
    )


def probed(log: Log, known: int, highest: int) -> int:
    """Return the horizon after a few probes, at least `known`: what consumers know is as old as their heartbeats, and
    so behind messages published since.

    A replica does not show which transactions hold its primary's gate: there the log's end counts as the horizon.
    """
    if settings.is_replica(log.alias):
        return highest
    if known < highest and not refusal(log.connection):
        horizon = Horizon(log)
        for pause in PROBE_PAUSES:
            time.sleep(pause)
            if horizon.probe(highest) >= highest:
                break
        known = max(known, horizon.value)
    return known


def horizon_lag(log: Log, known: int, highest: int) -> tuple[int, float]:
    """Return how many offsets are above the horizon, and the age in seconds of the first message there."""
    if known >= highest:
        return 0, 0.0
    text = ABOVE.replace("{remaining}", log.dialect.remaining("created_at"))
    row = log.execute(text, (known,)).fetchone()
    return highest - known, 0.0 if row is None else max(0.0, -float(row[0]))
