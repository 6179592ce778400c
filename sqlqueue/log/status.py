"""How a group stands, read from the tables alone."""

from __future__ import annotations

from sqlqueue.core.stream import Address
from sqlqueue.database.dialects import execute
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log.fetch import Read, fetch
from sqlqueue.models import ConsumerGroup, Offset, ScheduledMessage, Topic

# Index: the states' unique key.
IN_FLIGHT = """
    SELECT 1 FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s AND acked = {false}
    AND (in_flight <> 0 OR invisible_until <= {now}) LIMIT 1
"""


def anything_due(alias: str, group: str, topic: str) -> bool:
    """Tell whether a group has anything to do now: unread or unsettled messages, due or in-flight states, due
    schedules."""
    if execute(alias, IN_FLIGHT, (topic, group)).fetchone():
        return True
    if ScheduledMessage.objects.using(alias).filter(topic=topic, refused=False, due_at__lte=DatabaseNow()).exists():
        return True
    return bool(unread_streams(alias, group, topic))


def unread_streams(alias: str, group: str, topic: str) -> list[Address]:
    """Return the streams of a group that have messages above their position. A statement for every 32 streams."""
    options = Topic.objects.using(alias).filter(name=topic).first()
    registered = ConsumerGroup.objects.using(alias).filter(topic=topic, consumer_group=group).first()
    if options is None or registered is None:
        return []
    rows = Offset.objects.using(alias).filter(topic=topic, consumer_group=group)
    positions = {(p, q): position for p, q, position in rows.values_list("partition", "priority", "position")}
    reads = [
        Read(Address(group, topic, p, q), positions.get((p, q), registered.start), 1)
        for p in range(options.partitions)
        for q in range(options.priorities)
    ]
    return [read.address for read, messages in zip(reads, fetch(alias, reads)) if messages]
