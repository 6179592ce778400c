"""Search: what stands in the log, newest first, a page at a time, by what has an index: topic, offset, id.

Keys have none. A key's messages all stand in one partition, which is searched backwards in bounded steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, partition_of
from sqlqueue.database.admission import TopicInfo
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.models import Message, Topic

STREAMS_AT_ONCE = 250
SCANNED_AT_ONCE = 5_000  # messages of a step
STEPS = 4  # of one search
HIGHEST = 2**63 - 1

# The ends of a stream's range. Index: (topic, partition, priority, offset), and nothing else.
NEWEST = 'SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place_down} LIMIT %s'
OLDEST = 'SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place} LIMIT %s'
# A step of the search for a key. Index: the same, and the messages by their primary key.
KEYS = """
    SELECT %s, "offset", partition_key FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {by_place_down} LIMIT %s
"""


class Scan(NamedTuple):
    """Offsets that were found, highest first, and down to which offset was searched (None: to the end)."""

    offsets: list[int]
    reached: int | None


def topic_of(alias: str, name: str) -> TopicInfo | None:
    """Return a topic's partitions and priorities; None, and nothing created, if there is no such topic."""
    row = Topic.objects.using(alias).filter(name=name).values_list("name", "partitions", "priorities").first()
    return TopicInfo(*row) if row else None


def newest(alias: str, topic: TopicInfo, most: int, low: int = 0, high: int = HIGHEST) -> list[int]:
    """Return the highest offsets of a topic that are above `low` and at or below `high`, highest first."""
    return sorted(_ends(alias, NEWEST, topic, most, low, high), reverse=True)[:most]


def oldest(alias: str, topic: TopicInfo, most: int, low: int = 0, high: int = HIGHEST) -> list[int]:
    """Return the lowest of them, lowest first."""
    return sorted(_ends(alias, OLDEST, topic, most, low, high))[:most]


def by_id(alias: str, topic: TopicInfo, id: str) -> list[int]:
    """Return where a message id stands: in at most one place of each partition."""
    found = Message.objects.using(alias).filter(topic=topic.name, partition__in=range(topic.partitions), message_id=id)
    return sorted(found.values_list("offset", flat=True), reverse=True)


def by_key(alias: str, topic: TopicInfo, key: str, most: int, low: int = 0, high: int = HIGHEST) -> Scan:
    """Search a key's partition backwards for its messages, through at most 20,000 messages of whatever key."""
    partition = _partition(alias, topic, key)
    found: list[int] = []
    for _ in range(STEPS):
        step = _step(alias, topic, partition, key, low, high)
        found += step.offsets
        if len(found) > most:
            return Scan(found[:most], found[most - 1])
        if step.reached is None:
            return Scan(found, None)
        high = step.reached - 1
    return Scan(found, high + 1)


def _partition(alias: str, topic: TopicInfo, key: str) -> int:
    """A dead letter lies in the partition that its message had."""
    if topic.name.endswith(DEAD_LETTER_SUFFIX):
        original = topic_of(alias, topic.name.removesuffix(DEAD_LETTER_SUFFIX))
        if original is not None:
            return partition_of(key, original.partitions) % topic.partitions
    return partition_of(key, topic.partitions)


def _step(alias: str, topic: TopicInfo, partition: int, key: str, low: int, high: int) -> Scan:
    words = dialect(alias)
    most = max(1, SCANNED_AT_ONCE // topic.priorities)
    values: list[object] = []
    for priority in range(topic.priorities):
        values += (priority, *words.place(topic.name, partition, priority, low, high), most)
    rows = execute(alias, _union(alias, KEYS, topic.priorities), values).fetchall()
    # As far down as the shortest reach of any priority: what another one has read below that is read again.
    reads: dict[int, list[int]] = {}
    for priority, offset, _ in rows:
        reads.setdefault(priority, []).append(offset)
    reached = max((min(read) for read in reads.values() if len(read) == most), default=None)
    found = [offset for _, offset, stored in rows if stored == key and (reached is None or offset >= reached)]
    return Scan(sorted(found, reverse=True), reached)


def _ends(alias: str, text: str, topic: TopicInfo, most: int, low: int, high: int) -> list[int]:
    words = dialect(alias)
    streams = [(partition, priority) for partition in range(topic.partitions) for priority in range(topic.priorities)]
    found: list[int] = []
    for start in range(0, len(streams), STREAMS_AT_ONCE):
        some = streams[start : start + STREAMS_AT_ONCE]
        values: list[Any] = []
        for partition, priority in some:
            values += (*words.place(topic.name, partition, priority, low, high), most)
        found += [offset for (offset,) in execute(alias, _union(alias, text, len(some)), values).fetchall()]
    return found


def _union(alias: str, text: str, branches: int) -> str:
    return " UNION ALL ".join([dialect(alias).branch.format(text.strip())] * branches)


def messages_at(alias: str, offsets: Sequence[int], *columns: str) -> list[Message]:
    """Return the messages that stand at these offsets, highest first, with these columns only, if any are named."""
    found = Message.objects.using(alias).filter(offset__in=offsets)
    return list((found.only(*columns) if columns else found).order_by("-offset"))
