"""How a group stands, read from the tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
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
    SELECT %s, COUNT(*) FROM (SELECT 1 FROM sqlqueue_message{by_stream}
    WHERE {beyond} ORDER BY {by_place} LIMIT %s) AS above
"""


class Known(NamedTuple):
    """What an owner knows of a stream: its position, and how many messages it has read above that."""

    position: int
    read: int


NOTHING: Mapping[Address, Known] = MappingProxyType({})


def anything_due(alias: str, group: str, topic: str, owned: Mapping[Address, Known] = NOTHING) -> bool:
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


def unread_streams(alias: str, group: str, topic: str, owned: Mapping[Address, Known] = NOTHING) -> list[Address]:
    """Return the streams of a group that have messages which nobody has read yet."""
    stored = _streams(alias, group, topic, "position")
    return beyond(alias, {at: owned.get(at) or Known(position, 0) for at, position in stored.items()})


def unacked_streams(alias: str, group: str, topic: str) -> list[Address]:
    """Return the streams of a group that have messages above its watermark: collection waits for them."""
    stored = _streams(alias, group, topic, "offset_acked")
    return beyond(alias, {at: Known(watermark, 0) for at, watermark in stored.items()})


def _streams(alias: str, group: str, topic: str, column: str) -> dict[Address, int]:
    """Return a column of each stream's offset row; one that nobody has ever owned has no row, and is at the start."""
    options = Topic.objects.using(alias).filter(name=topic).first()
    registered = ConsumerGroup.objects.using(alias).filter(topic=topic, consumer_group=group).first()
    if options is None or registered is None:
        return {}
    rows = Offset.objects.using(alias).filter(topic=topic, consumer_group=group)
    stored = {(p, q): value for p, q, value in rows.values_list("partition", "priority", column)}
    return {
        Address(group, topic, p, q): stored.get((p, q), registered.start)
        for p in range(options.partitions)
        for q in range(options.priorities)
    }


def beyond(alias: str, streams: Mapping[Address, Known]) -> list[Address]:
    """Return those that have more messages above the given offset than are known. A statement for every 32 streams."""
    found: list[Address] = []
    words = dialect(alias)
    branch = words.branch.format(ABOVE.strip())
    known = list(streams.items())
    for start in range(0, len(known), STREAMS_OF_ONE_FETCH):
        some = known[start : start + STREAMS_OF_ONE_FETCH]
        values: list[object] = []
        for index, (at, (position, read)) in enumerate(some):
            values += (index, *words.place(at.topic, at.partition, at.priority, position), read + 1)
        counts = execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall()
        found += [some[index][0] for index, count in counts if count > some[index][1].read]
    return found
