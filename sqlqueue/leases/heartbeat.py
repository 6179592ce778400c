"""Heartbeats: which subscribers are alive, by the database's clock, and what one had in flight that died.

A subscriber that has no thread for a group withdraws from it, and comes back later: it shows no heartbeat there, so its
share is nothing, and the others' shares grow. Each withdrawal is one transaction under the lock of the group's row, so
that the last subscriber of a group stays.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Iterable, Mapping, Set
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import NamedTuple

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.core.settle_plan import ALONE
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.lock_timeouts import TableLocked, unless_locked
from sqlqueue.database.log import Log
from sqlqueue.database.retries import in_transaction
from sqlqueue.database.writer import identity
from sqlqueue.models import ConsumerGroup, SubscriberHeartbeat
from sqlqueue.models.subscriber import AHEAD, STREAM
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
# Other living subscribers of a group. Index: the heartbeats' unique key.
OTHERS = """
    SELECT subscriber FROM sqlqueue_subscriber_heartbeat WHERE topic = %s AND consumer_group = %s AND subscriber <> %s
    AND subscriber NOT LIKE %s AND expires_at > {now} AND beat_at < {later} LIMIT 1
"""
# Index: the heartbeats' subscriber.
OF_SUBSCRIBER = "SELECT consumer_group, topic FROM sqlqueue_subscriber_heartbeat WHERE subscriber = %s"
# Index: the heartbeats' unique key.
LEAVE_GROUP = "DELETE FROM sqlqueue_subscriber_heartbeat WHERE topic = %s AND consumer_group = %s AND subscriber = %s"
SHOWN = 3  # messages; the text has to fit into a heartbeat
# What a subscriber had in flight, of that which has rows: first what was in flight alone. Index: the leases' holder;
# the unique keys of the offsets and of the states.
KNOWN = """
    SELECT s.consumer_group, s.topic, s."partition", s.message_offset, s.in_flight
    FROM sqlqueue_partition_lease l{by_holder} {then} sqlqueue_offset o ON o.topic = l.topic
    AND o.consumer_group = l.consumer_group AND o."partition" = l."partition"
    {then} sqlqueue_delivery_state s ON s.topic = o.topic AND s.consumer_group = o.consumer_group
    AND s."partition" = o."partition" AND s.priority = o.priority
    WHERE l.holder = %s AND s.acked = {false} AND s.in_flight > 0 ORDER BY s.in_flight DESC, s.message_offset LIMIT %s
"""
# Those that were claimed, and have no row. Index: the same; the log's (topic, partition, priority, offset).
CLAIMED = """
    SELECT o.consumer_group, m.topic, m."partition", m."offset"
    FROM sqlqueue_partition_lease l{by_holder} {then} sqlqueue_offset o ON o.topic = l.topic
    AND o.consumer_group = l.consumer_group AND o."partition" = l."partition"
    {then} sqlqueue_message m ON m.topic = o.topic AND m."partition" = o."partition" AND m.priority = o.priority
    AND m."offset" > o.position AND m."offset" <= o.claimed_to
    WHERE l.holder = %s AND o.claimed_to > o.position AND m.target_group IN ('', o.consumer_group)
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = o.topic
    AND s.consumer_group = o.consumer_group AND s."partition" = o."partition" AND s.priority = o.priority
    AND s.message_offset = m."offset") ORDER BY m."offset" LIMIT %s
"""


class Work(NamedTuple):
    """What a subscriber does of one (group, topic), in seconds. runs_for: until the last of the handlers that run has
    reached its limit, None if none runs; idle_for: since one of its messages was settled, or its watermark moved."""

    runs_for: float | None
    idle_for: float


class Shown(NamedTuple):
    """What a heartbeat shows beside the subscriber's name; see beat()."""

    address: str = ""
    activity: str = ""
    horizon: int = 0
    failing: str = ""
    work: Mapping[GroupTopic, Work] = MappingProxyType({})


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
        times = [None if each is None else round(each * 1_000_000) for each in work.get(pair, (None, None))]
        values += (subscriber, *pair, *shown, serves, microseconds, *times)
    upsert = log.dialect.upsert("topic, consumer_group, subscriber", UPDATES)
    unless_locked(log, f"{BEAT} {', '.join([ROW] * len(pairs))} {upsert}", values, seconds=AT_MOST)


def beat_unless_locked(
    log: Log,
    subscriber: str,
    subscriptions: Iterable[GroupTopic],
    lease_duration: float,
    shown: Shown,
    withdrawn: Set[GroupTopic] = frozenset(),
) -> None:
    """Write the heartbeat, in all (group, topic) but those that the subscriber has withdrawn from. While another
    session has locked its table it is left out: leases are renewed without, and as long as they are nothing is taken
    over."""
    try:
        beat(log, subscriber, [one for one in subscriptions if one not in withdrawn], lease_duration, *shown)
        if withdrawn:
            stay_away(log, subscriber, withdrawn)
    except TableLocked as error:
        logger.warning(logfmt("heartbeat_left_out", subscriber=subscriber, error=error))


def leave(log: Log, subscriber: str) -> None:
    """Remove a subscriber's heartbeats: its partitions are shared among the others at once. While another session has
    locked the table they are left to expire."""
    try:
        retries.run_statement(log, unless_locked, log, LEAVE, (subscriber,), seconds=AT_MOST)
    except TableLocked as error:
        logger.warning(logfmt("heartbeats_not_removed", subscriber=subscriber, error=error))


@in_transaction
def record_death(log: Log, subscriber: str, exit_status: int, restart_in: float, in_doubt: str) -> None:
    """Keep one row of a subscriber whose process has died, and say there how; its partitions are shared among the
    others at once.

    exit_status: -9 for signal 9; restart_in: seconds until a successor is started; in_doubt: what it may have died of.
    """
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


@in_transaction
def withdraw(log: Log, subscriber: str, group_topic: GroupTopic) -> bool:
    """Stop sharing the partitions of a (group, topic), if another living subscriber serves it; return whether it does.
    False while another transaction uses the group's row."""
    group, topic = group_topic
    # The lock comes before the first plain read: no snapshot is older than it is.
    rows = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    if not list(rows.select_for_update(skip_locked=True).values_list("pk")):
        return False
    ahead = round(AHEAD.total_seconds() * 1_000_000)
    if not log.execute(OTHERS, (topic, group, subscriber, f"{STREAM}%", ahead)).fetchall():
        return False
    log.execute(LEAVE_GROUP, (topic, group, subscriber))
    return True


def stay_away(log: Log, subscriber: str, group_topics: Set[GroupTopic]) -> None:
    """Remove a withdrawn subscriber's heartbeats in these (group, topic): one that was under way at the withdrawal may
    have come after it. Raises TableLocked in place of waiting for a lock of the table."""
    shown = {(group, topic) for group, topic in unless_locked(log, OF_SUBSCRIBER, (subscriber,), seconds=AT_MOST)}
    for group, topic in sorted(shown & group_topics):
        unless_locked(log, LEAVE_GROUP, (topic, group, subscriber), seconds=AT_MOST)


def in_doubt(log: Log, subscriber: str) -> str:
    """Return the messages that a subscriber had in flight, some of them, as text: "ship of orders[3]@17". Only the one
    that was in flight alone, if there is one. Call it before its leases are freed."""
    known = log.execute(KNOWN, (subscriber, SHOWN + 1)).fetchall()
    found = [row[:4] for row in known if row[4] >= ALONE] or [row[:4] for row in known]
    if not found:
        found = log.execute(CLAIMED, (subscriber, SHOWN + 1)).fetchall()
    texts = [f"{group} of {topic}[{partition}]@{offset}" for group, topic, partition, offset in found[:SHOWN]]
    return ", ".join(texts) + (", …" if len(found) > SHOWN else "")
