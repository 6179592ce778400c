"""Withdrawal: a subscriber that has no thread for a group leaves its partitions to others, and comes back later.

A withdrawn subscriber shows no heartbeat in the group, so its share is nothing, and the others' shares grow. Each
withdrawal is one transaction under the lock of the group's row, so that the last subscriber of a group stays.
"""

from __future__ import annotations

from collections.abc import Set

from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.database import retries
from sqlqueue.database.lock_timeouts import unless_locked
from sqlqueue.database.log import Log
from sqlqueue.leases.heartbeat import AT_MOST
from sqlqueue.models import ConsumerGroup
from sqlqueue.models.subscriber_heartbeat import AHEAD, STREAM

# Other living subscribers of a group. Index: the heartbeats' unique key.
OTHERS = """
    SELECT subscriber FROM sqlqueue_subscriber_heartbeat WHERE topic = %s AND consumer_group = %s AND subscriber <> %s
    AND subscriber NOT LIKE %s AND expires_at > {now} AND beat_at < {later} LIMIT 1
"""
# Index: the heartbeats' subscriber.
SHOWN = "SELECT consumer_group, topic FROM sqlqueue_subscriber_heartbeat WHERE subscriber = %s"
# Index: the heartbeats' unique key.
LEAVE = "DELETE FROM sqlqueue_subscriber_heartbeat WHERE topic = %s AND consumer_group = %s AND subscriber = %s"


def withdraw(log: Log, subscriber: str, group_topic: GroupTopic) -> bool:
    """Stop sharing the partitions of a (group, topic), if another living subscriber serves it; return whether it does.
    False while another transaction uses the group's row."""
    return retries.run(log, _withdraw, log, subscriber, group_topic)


def stay_away(log: Log, subscriber: str, group_topics: Set[GroupTopic]) -> None:
    """Remove a withdrawn subscriber's heartbeats in these (group, topic): one that was under way at the withdrawal may
    have come after it. Raises TableLocked in place of waiting for a lock of the table."""
    shown = {(group, topic) for group, topic in unless_locked(log, SHOWN, (subscriber,), seconds=AT_MOST)}
    for group, topic in sorted(shown & group_topics):
        unless_locked(log, LEAVE, (topic, group, subscriber), seconds=AT_MOST)


def _withdraw(log: Log, subscriber: str, group_topic: GroupTopic) -> bool:
    group, topic = group_topic
    # The lock comes before the first plain read: no snapshot is older than it is.
    rows = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    if not list(rows.select_for_update(skip_locked=True).values_list("pk")):
        return False
    ahead = round(AHEAD.total_seconds() * 1_000_000)
    if not log.execute(OTHERS, (topic, group, subscriber, f"{STREAM}%", ahead)).fetchall():
        return False
    log.execute(LEAVE, (topic, group, subscriber))
    return True
