"""How a group stands, read from the tables alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlqueue.core.stream import Address
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log.fetch import STREAMS_OF_ONE_FETCH
from sqlqueue.models import ConsumerGroup, Offset, ScheduledMessage, Topic

# Where is something in flight or due, or does something wait behind its key that is not behind a delivery which waits
# for its time? In one statement, for messages go from the latter to the former. Index: the states' unique key; the
# ranges'.
UNSETTLED = """
    SELECT s."partition" FROM sqlqueue_delivery_state s WHERE s.topic = %s AND s.consumer_group = %s
    AND s.acked = {false} AND (s.in_flight <> 0 OR (s.invisible_until <= {now}{behind_none}))
    UNION SELECT r."partition" FROM sqlqueue_blocked_range r WHERE r.topic = %s AND r.consumer_group = %s
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state s WHERE s.topic = r.topic
    AND s.consumer_group = r.consumer_group AND s."partition" = r."partition" AND s.acked = {false})
"""
# What was handed back, since an earlier one of its lane waits for its time, is due by its own row, and waits all the
# same.
BEHIND_NONE = """
    AND NOT EXISTS (SELECT 1 FROM sqlqueue_delivery_state w{messages} WHERE w.topic = s.topic
    AND w.consumer_group = s.consumer_group AND w."partition" = s."partition" AND w.priority = s.priority
    AND w.message_offset < s.message_offset AND w.acked = {false} AND w.in_flight = 0
    AND w.invisible_until > {now}{of_a_lane})
"""
MESSAGES = """
    JOIN sqlqueue_message wm ON wm."offset" = w.message_offset
    JOIN sqlqueue_message sm ON sm."offset" = s.message_offset
"""
OF_A_KEY = " AND wm.partition_key = sm.partition_key AND sm.partition_key <> ''"
LANES = {"key": (MESSAGES, OF_A_KEY), "partition": ("", "")}  # by ordering; with "none" there are no lanes
# In which streams does a delivery wait for its time? Index: the states' unique key.
WAITING = """
    SELECT DISTINCT "partition", priority FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND acked = {false} AND in_flight = 0 AND invisible_until > {now}
"""
# Does anything stand above an offset? Index: (topic, partition, priority, offset).
ABOVE = 'SELECT %s, "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {by_place} LIMIT 1'


def anything_scheduled(alias: str, topics: Collection[str]) -> bool:
    """Tell whether a message of one of these topics is due and not in the log yet."""
    due = ScheduledMessage.objects.using(alias).filter(topic__in=topics, refused=False, due_at__lte=DatabaseNow())
    return due.exists()


def anything_due(alias: str, group: str, topic: str, ordering: str, owned: Collection[Address] = ()) -> bool:
    """Tell whether a group has anything to do now that is in the log: unread messages, due or in-flight states.

    owned: the streams whose owner asks: it knows best what of them is to be done. In the others everything unsettled
    counts, but for what waits for its time, and for what waits behind that. They are looked at in the order of a
    message's way, so that none passes from what is looked at later to what has been looked at.
    """
    others = {at: position for at, position in _streams(alias, group, topic, "position").items() if at not in owned}
    if not others:
        return False
    if ordering == "partition":  # nothing of a stream is read behind what waits in it
        held = {(p, q) for p, q in execute(alias, WAITING, (topic, group)).fetchall()}
        others = {at: position for at, position in others.items() if (at.partition, at.priority) not in held}
    if _beyond(alias, others):
        return True
    behind_none = ""
    if ordering in LANES:
        messages, of_a_lane = LANES[ordering]
        behind_none = BEHIND_NONE.replace("{messages}", messages).replace("{of_a_lane}", of_a_lane)
    unsettled = execute(alias, UNSETTLED.replace("{behind_none}", behind_none), (topic, group) * 2).fetchall()
    partitions = {address.partition for address in others}
    return any(partition in partitions for (partition,) in unsettled)


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
