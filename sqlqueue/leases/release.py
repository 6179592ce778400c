"""Renew, release, free, and shorten leases.

A consumer process renews its own from a background task, whose error boundary reports an error and goes on at the next
iteration; sqlqueue.contrib.spark from a RenewalLoop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity, proof_condition, select
from sqlqueue.models.subscriber import AHEAD

# Index: holder.
MINE = "SELECT id FROM sqlqueue_partition_lease{by_holder} WHERE holder = %s"
# By the primary key, in its order, as leases are acquired: an update that looked them up by their holder would lock
# that index first and the rows after it, while acquiring locks a row first and changes the index then. Index: the
# primary key.
RENEW = "UPDATE sqlqueue_partition_lease{by_id} SET valid_until = {later} WHERE id IN ({marks}) AND holder = %s{proof}"
RENEWED_AT_ONCE = 1_000
HELD = """
    SELECT consumer_group, topic, "partition", fencing_token
    FROM sqlqueue_partition_lease{by_holder} WHERE holder = %s
"""
# Index: holder.
RELEASE = """
    UPDATE sqlqueue_partition_lease SET holder = '', valid_until = NULL WHERE holder = %s AND ({group_topics})
"""
GROUP_TOPIC = '(topic = %s AND consumer_group = %s AND "partition" IN ({marks}))'
GROUP_TOPICS_AT_ONCE = 100
FREE = "UPDATE sqlqueue_partition_lease SET holder = '', valid_until = NULL WHERE holder = %s"  # index: holder

# Leases that end later than any could that was renewed by the present clock, and whose holder shows no heartbeat that
# counts. Index: a row for each group; the leases' and the heartbeats' unique keys.
STALE = """
    SELECT l.id FROM sqlqueue_consumer_group {then} sqlqueue_partition_lease l
    ON l.topic = sqlqueue_consumer_group.topic AND l.consumer_group = sqlqueue_consumer_group.consumer_group
    WHERE l.holder <> '' AND l.valid_until > {later} AND NOT EXISTS (SELECT 1 FROM sqlqueue_subscriber_heartbeat
    WHERE sqlqueue_subscriber_heartbeat.topic = l.topic
    AND sqlqueue_subscriber_heartbeat.consumer_group = l.consumer_group AND subscriber = l.holder
    AND expires_at > {now} AND beat_at < {later})
"""
# What has been renewed meanwhile is left as it is. Index: the primary key.
SHORTEN = """
    UPDATE sqlqueue_partition_lease{by_id} SET valid_until = {later} WHERE id IN ({marks}) AND valid_until > {later}
"""
SHORTENED_AT_ONCE = 200


def renew(log: Log, subscriber: str, lease_duration: float, server: ServerIdentity | None = None) -> int:
    """Prolong all of a subscriber's leases to `lease_duration` from now; return how many it still has.

    An expired lease that no other subscriber has taken still belongs to its holder: the token is the same. server:
    where they were acquired. Raises ServerChanged or SessionReplaced if it is another one, or may be.
    """
    proof, values = proof_condition(server)
    mine = sorted(id for (id,) in select(log, MINE, (subscriber,), server, 1, 0))
    count = 0
    for start in range(0, len(mine), RENEWED_AT_ONCE):
        some = mine[start : start + RENEWED_AT_ONCE]
        text = RENEW.replace("{marks}", ", ".join(["%s"] * len(some))).replace("{proof}", proof)
        parameters = (round(lease_duration * 1_000_000), *some, subscriber, *values)
        renewed = retries.run_statement(log, _count, log, text, parameters)
        if server is not None and not renewed:
            server.confirm()
        count += renewed
    return count


def held(log: Log, subscriber: str, server: ServerIdentity | None = None) -> dict[tuple[str, str, int], int]:
    """Return the fencing token of every (group, topic, partition) that a subscriber holds on this server. Raises
    as renew()."""
    rows = select(log, HELD, (subscriber,), server, 4, 2)
    return {(group, topic, partition): token for group, topic, partition, token in rows}


def release(log: Log, subscriber: str, leases: Mapping[tuple[str, str], Iterable[int]]) -> None:
    """Give up these leases, as partitions by (group, topic), so that another subscriber takes them at once;
    what is no longer held is left alone."""
    wanted = [(group_topic, sorted(numbers)) for group_topic, numbers in sorted(leases.items())]
    for start in range(0, len(wanted), GROUP_TOPICS_AT_ONCE):
        conditions: list[str] = []
        values: list[object] = [subscriber]
        for (group, topic), numbers in wanted[start : start + GROUP_TOPICS_AT_ONCE]:
            conditions.append(GROUP_TOPIC.replace("{marks}", ", ".join(["%s"] * len(numbers))))
            values += (topic, group, *numbers)
        text = RELEASE.replace("{group_topics}", " OR ".join(conditions))
        retries.run_statement(log, _count, log, text, tuple(values))


def free(log: Log, subscriber: str) -> int:
    """Free the leases of a subscriber whose process has ended, as its supervisor has seen; return how many.

    The next owner recovers what it had in flight.
    """
    return retries.run_statement(log, _count, log, FREE, (subscriber,))


def shorten_stale(log: Log, lease_duration: float) -> int:
    """Let leases from before the database's clock was set back end in `lease_duration` seconds; return how many.

    Left alone, those of a process that has ended would keep their partitions without an owner until the clock
    reached that time again. Holder and token stay: a holder that is alive renews them before they end.
    """
    duration, ahead = round(lease_duration * 1_000_000), round(AHEAD.total_seconds() * 1_000_000)
    found = [id for (id,) in log.execute(STALE, (duration + ahead, ahead)).fetchall()]
    shortened = 0
    for start in range(0, len(found), SHORTENED_AT_ONCE):
        some = sorted(found[start : start + SHORTENED_AT_ONCE])
        text = SHORTEN.replace("{marks}", ", ".join(["%s"] * len(some)))
        shortened += retries.run_statement(log, _count, log, text, (duration, *some, duration + ahead))
    return shortened


def _count(log: Log, text: str, parameters: tuple[object, ...]) -> int:
    return int(log.execute(text, parameters).rowcount)
