"""How a group stands, read from the tables alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
# Where does something wait behind its key that is not behind a delivery which waits for its time? Index: the ranges'
# unique key; the states'.
BLOCKED = """
    SELECT DISTINCT r."partition" FROM sqlqueue_blocked_range r WHERE r.topic = %s AND r.consumer_group = %s
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = r.topic
    AND s.consumer_group = r.consumer_group AND s."partition" = r."partition" AND s.acked = {false})
"""
# Does anything stand above an offset? Index: (topic, partition, priority, offset).
ABOVE = 'SELECT %s, "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {by_place} LIMIT 1'


def anything_scheduled(alias: str, topics: Collection[str]) -> bool:
    """Tell whether a message of one of these topics is due and not in the log yet."""
    due = ScheduledMessage.objects.using(alias).filter(topic__in=topics, refused=False, due_at__lte=DatabaseNow())
    return due.exists()


def anything_due(alias: str, group: str, topic: str, owned: Collection[Address] = ()) -> bool:
    """Tell whether a group has anything to do now that is in the log: unread messages, due or in-flight states.

    owned: the streams whose owner asks: it knows best what of them is to be done. In the others everything unsettled
    counts, but for what waits for its time. They are looked at in the order of a message's way, so that none passes
    from what is looked at later to what has been looked at.
    """
    stored = _streams(alias, group, topic, "position")
    if _beyond(alias, {at: position for at, position in stored.items() if at not in owned}):
        return True
    partitions = {address.partition for address in owned}
    return any(
        partition not in partitions
        for statement in (DUE, BLOCKED)
        for (partition,) in execute(alias, statement, (topic, group)).fetchall()
    )


def unread_streams(alias: str, group: str, topic: str) -> list[Address]:
    """Return the streams of a group that have messages above its position."""
    return _beyond(alias, _streams(alias, group, topic, "position"))


def unacked_streams(alias: str, group: str, topic: str) -> list[Address]:
    """Return the streams of a group that have messages above its watermark: collection waits for them."""
    return _beyond(alias, _streams(alias, group, topic, "offset_acked"))


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


def _beyond(alias: str, streams: Mapping[Address, int]) -> list[Address]:
    """Return those that have messages above the given offset. A statement for every 32 streams."""
    found: list[Address] = []
    words = dialect(alias)
    branch = words.branch.format(ABOVE)
    known = list(streams.items())
    for start in range(0, len(known), STREAMS_OF_ONE_FETCH):
        some = known[start : start + STREAMS_OF_ONE_FETCH]
        values: list[object] = []
        for index, (at, offset) in enumerate(some):
            values += (index, *words.place(at.topic, at.partition, at.priority, offset))
        rows = execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall()
        found += [some[index][0] for index, _ in rows]
    return found
