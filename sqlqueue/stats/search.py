"""Searches the log, newest first, a page at a time, by what has an index: topic, offset, id; and follows a topic.

Keys have no index. All messages of a key are in one partition of each epoch, which is searched backwards in bounded
steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from django.db import models
from django.db.models.functions import Length

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, numbers_of
from sqlqueue.core.outcomes import REPLAYED
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.log.published_topic import TopicInfo
from sqlqueue.log.topics import stored
from sqlqueue.models import Message, Receipt, Topic
from sqlqueue.payloads.versions import content_type_of
from sqlqueue.stats import counting

SCANNED_AT_ONCE = 5_000  # messages of a step
STEPS = 4  # of one search
HIGHEST = 2**63 - 1
TAIL_AT_ONCE = 1_000

# The newest, and the oldest, of a range in one partition and priority. Index: (topic, partition, priority, offset), and
# nothing else.
NEWEST = 'SELECT %s, "offset" FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {descending} LIMIT %s'
OLDEST = NEWEST.replace("{descending}", "{ascending}")
# A step of the search for a key. Index: the same, and the messages by their primary key.
KEYS = """
    SELECT %s, "offset", partition_key FROM sqlqueue_message{by_stream} WHERE {within} ORDER BY {descending} LIMIT %s
"""


class KeySearch(NamedTuple):
    """offsets: those that were found, highest first; reached: the offset down to which was searched, None for the
    end."""

    offsets: list[int]
    reached: int | None


def newest(log: Log, topic: TopicInfo, most: int, low: int = 0, high: int = HIGHEST) -> list[int]:
    """Return the highest offsets of a topic that are above `low` and at or below `high`, highest first."""
    streams = product(layouts.numbers(log, topic.name), range(topic.priorities))
    return sorted(_offsets(log, NEWEST, topic.name, streams, low, high, most), reverse=True)[:most]


def _offsets(
    log: Log, text: str, topic: str, streams: Iterable[tuple[int, int]], low: int, high: int, most: int
) -> list[int]:
    """Return the offsets that NEWEST or OLDEST finds in each of these partitions and priorities."""
    items = {stream: (*log.dialect.range_values(topic, *stream, low, high), most) for stream in streams}
    return [offset for _, (offset,) in counting.each(log, text, items)]


def by_id(log: Log, topic: TopicInfo, id: str, most: int, key: str | None = None) -> list[int]:
    """Return the offsets of an id, at most `most`, highest first. key: of this key only; None: of any, one for each."""
    rows = Message.objects.using(log.alias)
    found = rows.of_any_key(topic.name, id, most) if key is None else rows.of_id(topic.name, id, key).only("offset")
    return sorted((message.offset for message in found), reverse=True)


def by_key(log: Log, topic: TopicInfo, key: str, most: int, low: int = 0, high: int = HIGHEST) -> KeySearch:
    """Search a key's partitions, one of each epoch, backwards for its messages; looks at no more than 20,000
    messages."""
    streams = [(number, priority) for number in _partitions(log, topic, key) for priority in range(topic.priorities)]
    found: list[int] = []
    for _ in range(STEPS):
        step = _step(log, topic, streams, key, low, high)
        found += step.offsets
        if len(found) > most:
            return KeySearch(found[:most], found[most - 1])
        if step.reached is None:
            return KeySearch(found, None)
        high = step.reached - 1
    return KeySearch(found, high + 1)


def _partitions(log: Log, topic: TopicInfo, key: str) -> list[int]:
    """Return the key's partition in each epoch; a dead letter is in the one that its message's partition goes to."""
    if topic.name.endswith(DEAD_LETTER_SUFFIX):
        original = stored(log, topic.name.removesuffix(DEAD_LETTER_SUFFIX))
        if original is not None:
            epochs = layouts.epochs(log, original.name, retired=True)
            return sorted({epoch.partition_of(key) % topic.partitions for epoch in epochs})
    return [epoch.partition_of(key) for epoch in layouts.epochs(log, topic.name)]


def _step(log: Log, topic: TopicInfo, streams: Sequence[tuple[int, int]], key: str, low: int, high: int) -> KeySearch:
    most, bounds = max(1, SCANNED_AT_ONCE // len(streams)), log.dialect.range_values
    items = {stream: (*bounds(topic.name, *stream, low, high), most) for stream in streams}
    rows = [(stream, *row) for stream, row in counting.each(log, KEYS, items)]
    # Stop where the shortest read of any stream stopped: what another one has read below that is read again.
    reads: dict[tuple[int, int], list[int]] = defaultdict(list)
    for stream, offset, _ in rows:
        reads[stream].append(offset)
    reached = max((min(read) for read in reads.values() if len(read) == most), default=None)
    found = [offset for _, offset, stored in rows if stored == key and (reached is None or offset >= reached)]
    return KeySearch(sorted(found, reverse=True), reached)


def messages_at(log: Log, offsets: Sequence[int], *columns: str) -> list[Message]:
    """Return the messages at these offsets, highest first; with these columns only, if any are named."""
    found = Message.objects.using(log.alias).filter(offset__in=offsets)
    return list((found.only(*columns) if columns else found).order_by("-offset"))


def original_of(log: Log, copy: str) -> int | None:
    """Return the offset of the message whose dead letter was replayed as the message of this id; None if there is none,
    or its receipt is not kept any more. The message may have been collected."""
    receipts = Receipt.objects.using(log.alias).filter(worker=copy, outcome=REPLAYED)
    return receipts.values_list("message_offset", flat=True).first()


def copy_of(log: Log, topic: str, id: str, key: str) -> int | None:
    """Return the offset of a copy; None if it is not in this log."""
    copies = Message.objects.using(log.alias).of_id(topic, id, key).values_list("offset", flat=True)
    return next(iter(copies), None)


class Body(NamedTuple):
    """The content type of a message of bytes, and how many there are."""

    content_type: str
    size: int


def bodies(log: Log, model: type[models.Model], keys: list[Any]) -> dict[Any, Body]:
    """Return what is known of the bytes of these messages, or scheduled messages, by their primary keys, without those
    of JSON. One statement."""
    rows = model._default_manager.using(log.alias).filter(pk__in=keys).exclude(body=None)
    found = rows.annotate(size=Length("body")).values_list("pk", "headers", "size")
    return {key: Body(content_type_of(headers), size) for key, headers, size in found}


class Tail:
    """Reads a topic's messages above an offset in the order of their offsets, each exactly once.

    It reads up to the horizon only, so that no message of a transaction that commits late is missed. It registers
    nothing and locks nothing. partition: only of this one; key: only of the partitions that it belongs to, in each
    epoch. Not thread-safe; not for use inside a transaction.
    """

    def __init__(
        self, log: Log, topic: Topic, after: int, partition: int | None = None, key: str | None = None
    ) -> None:
        self.log, self.topic, self.after = log, topic.name, after
        self._partition, self._key, self._priorities = partition, key, topic.priorities
        self.forget()

    def forget(self) -> None:
        """Drop what is known of open publishing transactions: the connection to the database was lost."""
        self._horizon = Horizon(self.log)
        self._highest = 0

    @property
    def held_back(self) -> bool:
        """Whether messages may be withheld until an open publishing transaction ends."""
        return self._horizon.value < self._highest

    def read(self) -> list[Message]:
        """Return the next messages, at most 1,000; none if there is nothing new up to the horizon."""
        self._highest = highest_offset(self.log)
        horizon = self._horizon.probe(self._highest)
        if horizon <= self.after:
            return []
        # After the probe: an epoch that begins later has nothing at or below the horizon.
        streams = [(number, priority) for number in self._partitions() for priority in range(self._priorities)]
        offsets = sorted(_offsets(self.log, OLDEST, self.topic, streams, self.after, horizon, TAIL_AT_ONCE))[
            :TAIL_AT_ONCE
        ]
        self.after = offsets[-1] if len(offsets) == TAIL_AT_ONCE else horizon
        return list(Message.objects.using(self.log.alias).filter(offset__in=offsets).order_by("offset"))

    def _partitions(self) -> list[int]:
        if self._partition is not None:
            return [self._partition]
        epochs = layouts.epochs(self.log, self.topic)
        return numbers_of(epochs) if self._key is None else [epoch.partition_of(self._key) for epoch in epochs]
