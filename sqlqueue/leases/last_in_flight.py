"""What a process had in flight when it died: its messages in doubt."""

from __future__ import annotations

from sqlqueue.core.settle_plan import ALONE
from sqlqueue.database.log import Log

SHOWN = 3  # messages; the text has to fit into a heartbeat

# Those that its leases' partitions have rows of: first what was in flight alone. Index: the leases' holder; the unique
# keys of the offsets and of the states.
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


def in_doubt(log: Log, subscriber: str) -> str:
    """Return the messages that a subscriber had in flight, some of them, as text: "ship of orders[3]@17". Only the one
    that was in flight alone, if there is one. Call it before its leases are freed."""
    known = log.execute(KNOWN, (subscriber, SHOWN + 1)).fetchall()
    found = [row[:4] for row in known if row[4] >= ALONE] or [row[:4] for row in known]
    if not found:
        found = log.execute(CLAIMED, (subscriber, SHOWN + 1)).fetchall()
    texts = [f"{group} of {topic}[{partition}]@{offset}" for group, topic, partition, offset in found[:SHOWN]]
    return ", ".join(texts) + (", …" if len(found) > SHOWN else "")
