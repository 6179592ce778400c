"""Heartbeats: which subscribers are alive, by the database's clock."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.lock_timeouts import TableLocked, unless_locked
from sqlqueue.database.log import Log
from sqlqueue.database.writer import identity
from sqlqueue.models import SubscriberHeartbeat
from sqlqueue.models.subscriber_heartbeat import AHEAD
from sqlqueue.version import __version__

logger = logging.getLogger("sqlqueue")

BEAT = """
    INSERT INTO sqlqueue_subscriber_heartbeat
    (subscriber, consumer_group, topic, host, pid, address, activity, horizon, failing, version, server,
    beat_at, serves, expires_at, runs_until, progressed_at)
    VALUES
"""
ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, {now}, %s, {later}, {later}, {earlier})"
LEAVE = "DELETE FROM sqlqueue_subscriber_heartbeat WHERE subscriber = %s"
AT_MOST = 0.2  # seconds for which a heartbeat, or who reads heartbeats to balance, waits for a lock
MOURNED = 3600.0  # seconds
DIGEST = 15  # bytes
UPDATES = {
    name: "{new:" + name + "}"
    for name in (
        *("activity", "address", "horizon", "failing", "version", "server", "beat_at", "expires_at"),
        *("runs_until", "progressed_at", "serves"),
    )
}


class Work(NamedTuple):
    """What a subscriber does of one (group, topic), in seconds. runs_for: until the last of the handlers that run has
    reached its limit, None if none runs; idle_for: since one of its messages was settled, or its watermark moved."""

    runs_for: float | None
    idle_for: float


def subscriber_name() -> str:
    """Return a new subscriber name, which is never used again, not even for the same host and process id."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


def digest_of(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the digest of what a subscriber serves, its (group, topic): two serve the same if theirs are equal."""
    parts = [name for pair in sorted(pairs) for name in pair]
    return blake2b("\0".join(parts).encode(), digest_size=DIGEST).hexdigest()


def beat(
    log: Log,
    subscriber: str,
    subscriptions: Iterable[tuple[str, str]],
    lease_duration: float,
    address: str = "",
    activity: str = "",
    horizon: int = 0,
    failing: str = "",
    work: Mapping[tuple[str, str], Work] = MappingProxyType({}),
) -> None:
    """Write a subscriber's heartbeat in these (group, topic), which counts for `lease_duration` seconds.

    activity, horizon, failing: what it does now, the horizon that it knows, and its failing background tasks, for
    operators. work: what it does, by (group, topic). Two statements: the first reads the server's identity. Raises
    TableLocked in place of waiting for a lock of the table.
    """
    pairs = list(subscriptions)
    if not pairs:
        return
    server = identity(log)
    host, microseconds = socket.gethostname()[:255], round(lease_duration * 1_000_000)
    values: list[object] = []
    shown = (host, os.getpid(), address, activity[:200], horizon, failing[:200], __version__, server)
    digest = digest_of(pairs)
    for pair in pairs:
        serves = digest if pair == min(pairs) else ""
        times = map(_microseconds, work.get(pair, (None, None)))
        values += (subscriber, *pair, *shown, serves, microseconds, *times)
    upsert = log.dialect.upsert("topic, consumer_group, subscriber", UPDATES)
    unless_locked(log, f"{BEAT} {', '.join([ROW] * len(pairs))} {upsert}", values, seconds=AT_MOST)


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)


def leave(log: Log, subscriber: str) -> None:
    """Remove a subscriber's heartbeats: its partitions are shared among the others at once. While another session has
    locked the table they are left to expire."""
    try:
        retries.run_statement(log, unless_locked, log, LEAVE, (subscriber,), seconds=AT_MOST)
    except TableLocked as error:
        logger.warning(logfmt("heartbeats_not_removed", subscriber=subscriber, error=error))


def record_death(log: Log, subscriber: str, exit_status: int, restart_in: float, in_doubt: str) -> None:
    """Keep one row of a subscriber whose process has died, and say there how; its partitions are shared among the
    others at once.

    exit_status: -9 for signal 9; restart_in: seconds until a successor is started; in_doubt: what it may have died of.
    """
    retries.run(log, _record_death, log, subscriber, exit_status, restart_in, in_doubt)


def _record_death(log: Log, subscriber: str, exit_status: int, restart_in: float, in_doubt: str) -> None:
    rows = SubscriberHeartbeat.objects.using(log.alias).filter(subscriber=subscriber)
    first = rows.order_by("-serves").values_list("pk", flat=True).first()
    if first is None:  # it died before its first heartbeat
        host = socket.gethostname()[:255]
        first = rows.create(subscriber=subscriber, host=host, version=__version__, expires_at=DatabaseNow()).pk
    rows.exclude(pk=first).delete()
    death = {"exit_status": exit_status, "activity": in_doubt[:200], "serves": "", "horizon": 0, "failing": ""}
    times = {"expires_at": DatabaseNow(), "restart_at": DatabaseNow() + timedelta(seconds=restart_in)}
    rows.filter(pk=first).update(**death, **times)


def remove_dead(log: Log, lease_duration: float) -> None:
    """Remove heartbeats that expired ten lease durations ago, those of processes whose supervisor has seen them die
    after MOURNED as well (it ended before it could), and those of a future time."""
    # A row a subscriber: a small table.
    text = (
        "DELETE FROM sqlqueue_subscriber_heartbeat WHERE expires_at < {earlier} AND (exit_status IS NULL"
        " OR expires_at < {earlier}) OR beat_at >= {later}"
    )
    times = (10 * lease_duration, max(MOURNED, 10 * lease_duration), AHEAD.total_seconds())
    retries.run(log, log.execute, text, tuple(round(seconds * 1_000_000) for seconds in times))
