"""How a group stands, read from the tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlqueue.core.stream import Address
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log.fetch import STREAMS_OF_ONE_FETCH
from sqlqueue.models import ConsumerGroup, Offset, ScheduledMessage, Topic

# Where is something in flight, or due? A row for each partition at most. Index: the states' unique key.
DUE = """
    SELECT DISTINCT "partition" FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND acked = {false} AND (in_flight <> 0 OR invisible_until <= {now})
"""
# How many messages stand above an offset, as far as anybody wants to know? Index: (topic, partition, priority, offset).
ABOVE = """
    SELECT %s, COUNT(*) FROM (SELECT 1 FROM sqlqueue_message WHERE topic = %s AND "partition" = %s AND priority = %s
    AND "offset" > %s ORDER BY "offset" LIMIT %s) AS above
"""


class Known(NamedTuple):
    """What an owner knows of a stream: its position, and how many messages it has read above that."""

    position: int
    read: int


def anything_due(alias: str, group: str, topic: str, owned: Mapping[Address, Known]) -> bool:
    """Tell whether a group has anything to do now: unread messages, due or in-flight states, due schedules.

    owned: the streams whose owner asks: it knows best what of that which it has read may be handed out. In the others
    everything unsettled counts, but for what waits for its time.
    """
    partitions = {address.partition for address in owned}
    if any(partition not in partitions for (partition,) in execute(alias, DUE, (topic, group)).fetchall()):
        return True
    if ScheduledMessage.objects.using(alias).filter(topic=topic, refused=False, due_at__lte=DatabaseNow()).exists():
        return True
    return bool(unread_streams(alias, group, topic, owned))


def unread_streams(alias: str, group: str, topic: str, owned: Mapping[Address, Known]) -> list[Address]:
    """Return the streams of a group that have messages which nobody has read yet. A statement for every 32 streams."""
    options = Topic.objects.using(alias).filter(name=topic).first()
    registered = ConsumerGroup.objects.using(alias).filter(topic=topic, consumer_group=group).first()
    if options is None or registered is None:
        return []
    rows = Offset.objects.using(alias).filter(topic=topic, consumer_group=group)
    positions = {(p, q): position for p, q, position in rows.values_list("partition", "priority", "position")}
    addresses = [Address(group, topic, p, q) for p in range(options.partitions) for q in range(options.priorities)]
    known = [
        owned.get(at) or Known(positions.get((at.partition, at.priority), registered.start), 0) for at in addresses
    ]
    unread: list[Address] = []
    branch = dialect(alias).branch.format(ABOVE.strip())
    for start in range(0, len(addresses), STREAMS_OF_ONE_FETCH):
        values: list[object] = []
        for index in range(start, min(start + STREAMS_OF_ONE_FETCH, len(addresses))):
            at, (position, read) = addresses[index], known[index]
            values += (index, at.topic, at.partition, at.priority, position, read + 1)
        text = " UNION ALL ".join([branch] * (len(values) // 6))
        unread += [addresses[i] for i, count in execute(alias, text, values).fetchall() if count > known[i].read]
    return unread
