"""How far the horizon is, and how far behind a replica is, as the queue's own rows tell it."""

from __future__ import annotations

import time

from django.db.models import Max

from sqlqueue.conf import settings
from sqlqueue.database import clock
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.transactions import refusal
from sqlqueue.exceptions import HorizonUnknown
from sqlqueue.models import SubscriberHeartbeat

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
