"""Heartbeats: who is alive, by the database's clock."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable

from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.nodes import identity
from sqlqueue.models import SubscriberHeartbeat
from sqlqueue.version import __version__

BEAT = """
    INSERT INTO sqlqueue_subscriber_heartbeat
    (subscriber, consumer_group, topic, host, pid, address, activity, horizon, failing, version, server, beat_at,
    expires_at)
    VALUES
"""
ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, {now}, {later})"
UPDATES = {
    name: "{new:" + name + "}"
    for name in ("activity", "address", "horizon", "failing", "version", "server", "beat_at", "expires_at")
}


def subscriber_name() -> str:
    """Return a name for one process incarnation: never the same again, not even for the same host and process id."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


def beat(
    alias: str,
    subscriber: str,
    subscriptions: Iterable[tuple[str, str]],
    lease_duration: float,
    address: str = "",
    activity: str = "",
    horizon: int = 0,
    failing: str = "",
) -> None:
    """Say that a subscriber is alive in these (group, topic); it counts for `lease_duration` seconds. What it does now,
    the horizon that it knows, and which of its background tasks fail, are for people. Two statements: the first asks
    which server it is that is written to."""
    pairs = list(subscriptions)
    if not pairs:
        return
    server = identity(alias)
    host, microseconds = socket.gethostname()[:255], round(lease_duration * 1_000_000)
    values: list[object] = []
    told = (host, os.getpid(), address, activity[:200], horizon, failing[:200], __version__, server, microseconds)
    for group, topic in pairs:
        values += (subscriber, group, topic, *told)
    upsert = dialect(alias).upsert("topic, consumer_group, subscriber", UPDATES)
    execute(alias, f"{BEAT} {', '.join([ROW] * len(pairs))} {upsert}", values)


def leave(alias: str, subscriber: str) -> None:
    """Remove a subscriber's heartbeats: its partitions are shared among the others at once."""
    faults.run(alias, SubscriberHeartbeat.objects.using(alias).filter(subscriber=subscriber).delete)


def bury_dead(alias: str, lease_duration: float) -> None:
    """Remove heartbeats that stopped counting ten lease durations ago."""
    text = "DELETE FROM sqlqueue_subscriber_heartbeat WHERE expires_at < {earlier}"  # a row a subscriber: a small table
    faults.run(alias, execute, alias, text, (round(10 * lease_duration * 1_000_000),))
