"""Collect: delete, in bounded batches, messages that every registered group has acked and that retention or a purge has
released."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import NamedTuple

from django.db.models import Q

from sqlqueue.conf import settings
from sqlqueue.core.bounds import DAY
from sqlqueue.database import retries
from sqlqueue.database.gate import COLLECTOR, take_duty
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.database.statements import dialect, execute
from sqlqueue.log import acked_marks, collected, layouts
from sqlqueue.log.groups import lock_topic, start_all
from sqlqueue.log.retirement import retire
from sqlqueue.log.status import unacked_streams
from sqlqueue.models import ConsumerGroup, Offset, SubscriberHeartbeat, Topic
from sqlqueue.signals import announce, group_away, messages_collected, results_collected

BATCH = 1_000
CHUNK = 500

# Whether retention has released a message (parameter: the topic's retention in microseconds), or a purge up to an
# offset.
OLD = "created_at <= {earlier}"
PURGED = '"offset" <= %s'
# The oldest messages of a partition, and whether they are released: by offset, so that what is kept costs nothing.
# Index: (topic, partition, priority, offset).
OLDEST = """
    SELECT "offset", {released} FROM sqlqueue_message{by_stream}
    WHERE {within} ORDER BY {ascending} LIMIT %s
"""
# The same for the oldest message of many partitions at once, to find those with something to collect.
FIRST = """
    SELECT %s, %s, {released} FROM sqlqueue_message{by_stream}
    WHERE {beyond} ORDER BY {ascending} LIMIT 1
"""
STREAMS_AT_ONCE = 32
ANY = "(1 = 1)"
# What has no use any more, the oldest first. Index: (expires_at); (updated_at); (kept_until).
EXPIRED_RESULTS = "SELECT id FROM sqlqueue_result WHERE expires_at <= {now} ORDER BY expires_at LIMIT %s"
LEFT_PROGRESS = "SELECT id FROM sqlqueue_progress WHERE updated_at <= {earlier} ORDER BY updated_at LIMIT %s"
KEPT_LONG_ENOUGH = "SELECT id FROM sqlqueue_collected_message WHERE kept_until <= {now} ORDER BY kept_until LIMIT %s"
PROGRESS_LASTS = 30 * DAY  # seconds; its settle deletes it, unless its process was killed before
MOST_BATCHES = 100  # of receipts, results or progress in one collection
OLDEST_RECEIPTS = "SELECT id, finished_at <= {earlier} FROM sqlqueue_receipt ORDER BY id LIMIT %s"  # the primary key


class Rule(NamedTuple):
    """The SQL condition for a released message, and its parameters."""

    sql: str
    values: tuple[int, ...]


def released(topic: Topic) -> Rule | None:
    """Return the condition under which a topic's messages are released; None if it keeps them for ever."""
    old = () if topic.retention is None else (round(topic.retention * 1_000_000),)
    purged = (topic.purged_to,) if topic.purged_to else ()
    sql = " OR ".join([OLD] * len(old) + [PURGED] * len(purged))
    return Rule(f"({sql})", (*old, *purged)) if sql else None


@dataclass(frozen=True, slots=True)
class Collected:
    """How many rows a collection has deleted, and whether it stopped at its bound with more to do."""

    messages: int
    receipts: int
    more: bool
    results: int = 0


def collect(
    alias: str, horizon: Horizon | None = None, batches: int = 100, stop: Callable[[], bool] = lambda: False
) -> Collected:
    """Collect all topics once; at most `batches` deletes of 1,000 rows each, or until `stop` says so between two
    topics.

    One process at a time: others return at once.
    """
    horizon = horizon or Horizon(alias)
    messages = 0
    left = batches
    more = False
    topics = Topic.objects.using(alias).filter(Q(retention__isnull=False) | Q(purged_to__gt=0))
    for name in topics.values_list("name", flat=True):
        if stop():
            break
        deleted, left = collect_topic(alias, name, horizon.value, left, horizon.server)
        messages += deleted
        more = more or left <= 0
        if deleted:
            announce(messages_collected, collect, topic=name, count=deleted)
    for name in sorted(layouts.altered(alias)):
        start_all(alias, name)
        retire(alias, name)
    results = _collect_old(alias, "sqlqueue_result", EXPIRED_RESULTS)
    if results:
        announce(results_collected, collect, count=results)
    _collect_old(alias, "sqlqueue_collected_message", KEPT_LONG_ENOUGH)
    _collect_old(alias, "sqlqueue_progress", LEFT_PROGRESS, round(PROGRESS_LASTS * 1_000_000))
    return Collected(messages, _collect_receipts(alias), more, results)


def collect_topic(
    alias: str, topic: str, horizon: int, left: int, server: ServerIdentity | None = None
) -> tuple[int, int]:
    """Collect a topic with at most `left` deletes of BATCH rows; return how many messages were deleted, and how many
    deletes are left. Nothing is deleted while another process collects.

    server: whose horizon that is. Raises ServerChanged or SessionReplaced if it is another one, or may be.
    """
    total = 0
    for partition, priority in _with_released(alias, Topic.objects.using(alias).get(name=topic)):
        while left > 0:
            deleted, more = retries.run(alias, _collect_batch, alias, topic, partition, priority, horizon, server)
            left -= 1 if deleted else 0
            total += deleted
            if not (deleted and more):
                break
    return total, left


def _with_released(alias: str, topic: Topic) -> list[tuple[int, int]]:
    """Return the (partition, priority) whose oldest message retention has released, or those with any message if it
    counts from the acks: a statement for every 32."""
    streams = list(product(layouts.numbers(alias, topic.name), range(topic.priorities)))
    found: list[tuple[int, int]] = []
    syntax = dialect(alias)
    rule = Rule(ANY, ()) if acked_marks.applies(topic) else released(topic)
    if rule is None:
        return []
    branch = syntax.branch.format(FIRST.replace("{released}", rule.sql).strip())
    for start in range(0, len(streams), STREAMS_AT_ONCE):
        some = streams[start : start + STREAMS_AT_ONCE]
        values: list[object] = []
        for stream in some:
            values += (*stream, *rule.values, *syntax.range_values(topic.name, *stream, 0))
        rows = execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall()
        found += [(int(partition), int(priority)) for partition, priority, old_enough in rows if old_enough]
    return found


def _collect_batch(
    alias: str, topic: str, partition: int, priority: int, horizon: int, server: ServerIdentity | None
) -> tuple[int, bool]:
    """Return how many messages were deleted, and whether others may be behind them.

    The topic's row is locked until the deletes commit: nothing that could lower a watermark can happen meanwhile. So
    nothing in here may wait: not for another collector, hence the exclusive lock first, and not for a message that an
    open transaction has locked, which a later collection deletes.
    """
    if not take_duty(alias, COLLECTOR):
        return 0, False
    locked = lock_topic(alias, topic)
    rule = released(locked)
    if rule is None:
        return 0, False
    floor = acked_by_all(alias, topic, partition, priority, horizon)
    if locked.retention is not None and acked_marks.applies(locked):
        stream = topic, partition, priority
        rule = Rule(ANY, ())
        floor = min(floor, max(acked_marks.released_to(alias, *stream, floor, locked.retention), locked.purged_to))
    values = dialect(alias).range_values(topic, partition, priority, 0, floor)
    text = OLDEST.replace("{released}", rule.sql)
    oldest = execute(alias, text, (*rule.values, *values, BATCH)).fetchall()
    found = [offset for offset, _ in takewhile(lambda row: row[1], oldest)]
    free = _lock_free(alias, found, "sqlqueue_message", "offset")
    collected.keep(alias, topic, free, locked.purged_to)
    _delete(alias, "sqlqueue_message", "offset", free)
    if server is not None and free:
        server.confirm()
    return len(free), len(found) == BATCH


def delete_free(alias: str, offsets: Sequence[int]) -> list[int]:
    """Delete messages, in the caller's transaction, but for those that another transaction has locked; return the
    offsets of the deleted ones. By single offsets, not by a range, whose end would wait for the next message behind it,
    which may belong to an open transaction."""
    free = _lock_free(alias, offsets, "sqlqueue_message", "offset")
    _delete(alias, "sqlqueue_message", "offset", free)
    return free


def _lock_free(alias: str, values: Sequence[int], table: str, key: str) -> list[int]:
    free: list[int] = []
    for start in range(0, len(values), CHUNK):
        some = values[start : start + CHUNK]
        text = dialect(alias).lock_free(table, key, len(some))
        free += [value for (value,) in execute(alias, text, some).fetchall()]
    return free


def _delete(alias: str, table: str, key: str, values: Sequence[int]) -> None:
    for start in range(0, len(values), CHUNK):
        some = values[start : start + CHUNK]
        execute(alias, dialect(alias).delete(table, key, len(some)), some)


def acked_by_all(alias: str, topic: str, partition: int, priority: int, horizon: int) -> int:
    """Return the lowest watermark over all registered groups; the horizon if there is none."""
    return min(watermarks(alias, topic, partition, priority).values(), default=horizon)


def watermarks(alias: str, topic: str, partition: int, priority: int) -> dict[str, int]:
    """Return the watermark of each registered group: up to there it has settled everything."""
    groups = ConsumerGroup.objects.using(alias).filter(topic=topic)
    known = list(groups.values_list("consumer_group", "start", "sharing"))
    offsets = Offset.objects.using(alias).filter(
        topic=topic, consumer_group__in=[group for group, *_ in known], partition=partition, priority=priority
    )
    acked: dict[str, list[int]] = defaultdict(list)
    for group, watermark in offsets.values_list("consumer_group", "offset_acked"):
        acked[group].append(watermark)
    # A slice without an offset row is at the group's start.
    return {group: min([*acked[group], *[start] * (slices - len(acked[group]))]) for group, start, slices in known}


def _collect_old(alias: str, table: str, oldest: str, *values: int) -> int:
    """Delete, in bounded batches, the rows that a statement names; return how many. Rows that another transaction has
    locked stay: a settle may be storing a result anew."""
    total = 0
    for _ in range(MOST_BATCHES):
        found = [id for (id,) in execute(alias, oldest, (*values, BATCH)).fetchall()]
        deleted = retries.run(alias, _delete_old, alias, table, oldest, values, found) if found else 0
        total += deleted
        if deleted < BATCH:
            break
    return total


def _delete_old(alias: str, table: str, oldest: str, values: Sequence[int], found: Sequence[int]) -> int:
    """Delete those of the found rows that are still old, once they are locked; return how many."""
    total = 0
    for start in range(0, len(found), CHUNK):
        free = _lock_free(alias, found[start : start + CHUNK], table, "id")
        if free:
            still = oldest.replace("WHERE", f"WHERE id IN ({', '.join(['%s'] * len(free))}) AND")
            old = [id for (id,) in execute(alias, still, (*free, *values, CHUNK)).fetchall()]
            _delete(alias, table, "id", old)
            total += len(old)
    return total


def _collect_receipts(alias: str) -> int:
    age = round(settings.RECEIPT_RETENTION * 1_000_000)
    total = 0
    for _ in range(MOST_BATCHES):
        released = [id for id, old_enough in execute(alias, OLDEST_RECEIPTS, (age, BATCH)).fetchall() if old_enough]
        if released:
            retries.run(alias, _delete, alias, "sqlqueue_receipt", "id", released)
        total += len(released)
        if len(released) < BATCH:
            break
    return total


def report_absent(alias: str) -> None:
    """Announce every registered group that no process serves and that holds back collection."""
    alive = set(SubscriberHeartbeat.objects.using(alias).alive().values_list("consumer_group", "topic").distinct())
    for group, topic in ConsumerGroup.objects.using(alias).values_list("consumer_group", "topic"):
        if (group, topic) in alive:
            continue
        if unacked_streams(alias, group, topic):
            announce(group_away, report_absent, group=group, topic=topic)
