"""Measures how far the horizon is behind the log's end."""

from __future__ import annotations

import time

from sqlqueue.conf import settings
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.log import Log
from sqlqueue.database.transactions import refusal

PROBE_PAUSES = (0.0, 0.01, 0.03)  # seconds before each probe of the publish gate

# Index: the primary key.
ABOVE = 'SELECT {remaining} FROM sqlqueue_message{by_offset} WHERE "offset" > %s ORDER BY "offset" LIMIT 1'


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
