"""Collect: delete what every registered group has acked past and what retention has released, in bounded batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from sqlqueue.conf import settings
from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.gate import COLLECTOR, take_duty
from sqlqueue.database.horizon import Horizon
from sqlqueue.log.groups import lock_topic
from sqlqueue.log.status import unacked_streams
from sqlqueue.models import ConsumerGroup, Offset, SubscriberHeartbeat, Topic
from sqlqueue.signals import announce, group_away, messages_collected

BATCH = 1_000
CHUNK = 500

# The oldest messages of a stream, and whether retention has released them: by place, so that what is kept costs
# nothing.
# Index: (topic, partition, priority, offset).
OLDEST = """
    SELECT "offset", created_at <= {earlier} FROM sqlqueue_message{by_stream}
    WHERE {within} ORDER BY {by_place} LIMIT %s
"""
# The same for the very oldest message of many streams at once: which of them are worth a visit?
FIRST = """
    SELECT %s, %s, created_at <= {earlier} FROM sqlqueue_message{by_stream}
    WHERE {beyond} ORDER BY {by_place} LIMIT 1
"""
STREAMS_AT_ONCE = 32
OLDEST_RECEIPTS = "SELECT id, finished_at <= {earlier} FROM sqlqueue_receipt ORDER BY id LIMIT %s"  # the primary key


@dataclass(frozen=True, slots=True)
class Collected:
    """How many rows a collection has deleted, and whether it stopped at its bound with more to do."""

    messages: int
    receipts: int
    more: bool


def collect(
    alias: str, horizon: Horizon | None = None, batches: int = 100, stop: Callable[[], bool] = lambda: False
) -> Collected:
    """Collect all topics once; at most `batches` deletes of 1,000 rows each, or until `stop` says so between two
    topics.

    One process at a time: others return at once.
    """
    reached = (horizon or Horizon(alias)).value
    messages = 0
    left = batches
    more = False
    for name in Topic.objects.using(alias).filter(retention__isnull=False).values_list("name", flat=True):
        if stop():
            break
        deleted, left = _collect_topic(alias, name, reached, left)
        messages += deleted
        more = more or left <= 0
        if deleted:
            announce(messages_collected, collect, topic=name, count=deleted)
    return Collected(messages, _collect_receipts(alias), more)


def _collect_topic(alias: str, topic: str, horizon: int, left: int) -> tuple[int, int]:
    total = 0
    for partition, priority in _worth_a_visit(alias, Topic.objects.using(alias).get(name=topic)):
        while left > 0:
            deleted, more = faults.run(alias, _collect_batch, alias, topic, partition, priority, horizon)
            left -= 1 if deleted else 0
            total += deleted
            if not (deleted and more):
                break
    return total, left


def _worth_a_visit(alias: str, topic: Topic) -> list[tuple[int, int]]:
    """Return the (partition, priority) whose oldest message retention has released: a statement for every 32."""
    streams = [(partition, priority) for partition in range(topic.partitions) for priority in range(topic.priorities)]
    age = round((topic.retention or 0) * 1_000_000)
    found: list[tuple[int, int]] = []
    words = dialect(alias)
    branch = words.branch.format(FIRST.strip())
    for start in range(0, len(streams), STREAMS_AT_ONCE):
        some = streams[start : start + STREAMS_AT_ONCE]
        values = [value for stream in some for value in (*stream, age, *words.place(topic.name, *stream, 0))]
        rows = execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall()
        found += [(int(partition), int(priority)) for partition, priority, old_enough in rows if old_enough]
    return found


def _collect_batch(alias: str, topic: str, partition: int, priority: int, horizon: int) -> tuple[int, bool]:
    """Return how many messages were deleted, and whether others may be behind them.

    The topic's row is locked until the deletes commit: nothing that could lower a watermark can happen meanwhile. So
    nothing in here may wait: not for another collector, which is asked for first, and not for a message that somebody's
    open transaction has locked, which is left for another time.
    """
    if not take_duty(alias, COLLECTOR):
        return 0, False
    options = lock_topic(alias, topic)
    if options.retention is None:
        return 0, False
    floor = acked_by_all(alias, topic, partition, priority, horizon)
    age = round(options.retention * 1_000_000)
    place = dialect(alias).place(topic, partition, priority, 0, floor)
    oldest = execute(alias, OLDEST, (age, *place, BATCH)).fetchall()
    released = [offset for offset, _ in takewhile(lambda row: row[1], oldest)]
    # One by one: the end of a range would wait for the next message behind it, which may be an open transaction's.
    free = _lock_free(alias, released)
    _delete(alias, "sqlqueue_message", "offset", free)
    return len(free), len(released) == BATCH


def _lock_free(alias: str, offsets: Sequence[int]) -> list[int]:
    free: list[int] = []
    for start in range(0, len(offsets), CHUNK):
        some = offsets[start : start + CHUNK]
        text = dialect(alias).lock_free("sqlqueue_message", "offset", len(some))
        free += [offset for (offset,) in execute(alias, text, some).fetchall()]
    return free


def _delete(alias: str, table: str, key: str, values: Sequence[int]) -> None:
    for start in range(0, len(values), CHUNK):
        some = values[start : start + CHUNK]
        execute(alias, dialect(alias).delete(table, key, len(some)), some)


def acked_by_all(alias: str, topic: str, partition: int, priority: int, horizon: int) -> int:
    """Return the lowest watermark over all registered groups; the horizon if there is none."""
    groups = ConsumerGroup.objects.using(alias).filter(topic=topic)
    starts = dict(groups.values_list("consumer_group", "start"))
    if not starts:
        return horizon
    offsets = Offset.objects.using(alias).filter(
        topic=topic, consumer_group__in=list(starts), partition=partition, priority=priority
    )
    starts.update(offsets.values_list("consumer_group", "offset_acked"))
    return min(starts.values())


def _collect_receipts(alias: str) -> int:
    age = round(settings.RECEIPT_RETENTION * 1_000_000)
    total = 0
    for _ in range(100):
        released = [id for id, old_enough in execute(alias, OLDEST_RECEIPTS, (age, BATCH)).fetchall() if old_enough]
        if released:
            faults.run(alias, _delete, alias, "sqlqueue_receipt", "id", released)
        total += len(released)
        if len(released) < BATCH:
            break
    return total


def report_absent(alias: str) -> None:
    """Announce every registered group that nobody serves and that holds back collection."""
    alive = set(SubscriberHeartbeat.objects.using(alias).alive().values_list("consumer_group", "topic").distinct())
    for group, topic in ConsumerGroup.objects.using(alias).values_list("consumer_group", "topic"):
        if (group, topic) in alive:
            continue
        if unacked_streams(alias, group, topic):
            announce(group_away, report_absent, group=group, topic=topic)
