"""Collect: delete, in bounded batches, messages that every registered group has acked and that retention or a purge has
released."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from django.db.models import Q

from sqlqueue.database import retries
from sqlqueue.database.gate import COLLECTOR, take_duty
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.database.sizes import delete_all
from sqlqueue.log import layouts, retention
from sqlqueue.log.groups import lock_topic, start_all
from sqlqueue.log.layouts import retire
from sqlqueue.log.messages import LAST
from sqlqueue.log.retention import Rule, lock_free
from sqlqueue.log.status import unacked_streams
from sqlqueue.models import ConsumerGroup, Offset, SubscriberHeartbeat, Topic
from sqlqueue.signals import announce, group_away, messages_collected, results_collected

BATCH = 1_000
LEAST = 50  # messages of a partition that one batch looks at

Stream = tuple[int, int]  # (partition, priority)

# The oldest messages of a partition, and whether they are released: by offset, so that what is kept costs nothing.
# Index: (topic, partition, priority, offset).
OLDEST = """
    SELECT %s, %s, "offset", {released} FROM sqlqueue_message{by_stream}
    WHERE {within} ORDER BY {ascending} LIMIT %s
"""
STREAMS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Collected:
    """How many rows a collection has deleted, and whether it stopped at its bound with more to do."""

    messages: int
    receipts: int
    more: bool
    results: int = 0


def collect(
    log: Log, horizon: Horizon | None = None, batches: int = 100, stop: Callable[[], bool] = lambda: False
) -> Collected:
    """Collect all topics once; at most `batches` deletes of 1,000 rows each, or until `stop` says so between two
    topics.

    One process at a time: others return at once.
    """
    horizon = horizon or Horizon(log)
    messages = 0
    left = batches
    more = False
    topics = Topic.objects.using(log.alias).filter(Q(retention__isnull=False) | Q(purged_to__gt=0))
    for name in topics.values_list("name", flat=True):
        if stop():
            break
        deleted, left = collect_topic(log, name, horizon.value, left, horizon.server)
        messages += deleted
        more = more or left <= 0
        if deleted:
            announce(messages_collected, collect, topic=name, count=deleted, database=log.label)
    for name in sorted(layouts.altered(log)):
        start_all(log, name)
        retire(log, name)
    results = retention.sweep_results(log)
    if results:
        announce(results_collected, collect, count=results, database=log.label)
    more = more or results >= retention.MOST_BATCHES * retention.BATCH
    retention.sweep_others(log)
    return Collected(messages, retention.sweep_receipts(log), more, results)


def collect_topic(
    log: Log, topic: str, horizon: int, left: int, server: ServerIdentity | None = None
) -> tuple[int, int]:
    """Collect a topic with at most `left` deletes of BATCH rows; return how many messages were deleted, and how many
    deletes are left. Nothing is deleted while another process collects.

    server: whose horizon that is. Raises ServerChanged or SessionReplaced if it is another one, or may be.
    """
    total = 0
    streams = _with_released(log, Topic.objects.using(log.alias).get(name=topic))
    for first in range(0, len(streams), STREAMS_AT_ONCE):
        some = streams[first : first + STREAMS_AT_ONCE]
        rounds = [dict.fromkeys(some, max(LEAST, 2 * BATCH // len(some)))]
        while rounds and left > 0:
            asked = rounds.pop()
            deleted, following, locked = retries.run(log, _collect_batch, log, topic, asked, horizon, server)
            left -= 1 if deleted else 0
            total += deleted
            # By itself, a stream with messages that others have locked holds up no other one.
            rounds = [{stream: BATCH} for stream in locked] + rounds + ([following] if following else [])
    return total, left


def _with_released(log: Log, topic: Topic) -> list[Stream]:
    """Return the (partition, priority) whose oldest message retention has released, or those with any message if it
    counts from the acks: a statement for every 32."""
    streams = list(product(layouts.numbers(log, topic.name), range(topic.priorities)))
    found: list[Stream] = []
    rule = retention.ANY if retention.applies(topic) else retention.released(topic)
    if rule is None:
        return []
    for start in range(0, len(streams), STREAMS_AT_ONCE):
        oldest = dict.fromkeys(streams[start : start + STREAMS_AT_ONCE], (LAST, 1))
        found += [stream for stream, offsets in _oldest(log, topic.name, rule, oldest).items() if offsets]
    return found


def _collect_batch(
    log: Log, topic: str, asked: Mapping[Stream, int], horizon: int, server: ServerIdentity | None
) -> tuple[int, dict[Stream, int], list[Stream]]:
    """Delete the oldest released messages of these (partition, priority), in the order of the log: what lies together
    in the tables goes together, so that each page of a log that is larger than the server's memory is read once. Return
    how many messages were deleted; of which streams others may be behind them, and how many to look at next: twice
    their part of what was deleted; and those of several streams that have messages which are locked.

    The topic's row is locked until the deletes commit: nothing that could lower a watermark can happen meanwhile. So
    nothing in here may wait: not for another collector, hence the exclusive lock first, and not for a message that an
    open transaction has locked, which a later collection deletes.
    """
    if not take_duty(log, COLLECTOR):
        return 0, {}, []
    locked = lock_topic(log, topic)
    rule = retention.released(locked)
    if rule is None:
        return 0, {}, []
    floors = acked_by_all(log, topic, list(asked), horizon)
    if locked.retention is not None and retention.applies(locked):
        rule = retention.ANY
        for stream, floor in floors.items():
            marked = retention.released_to(log, topic, *stream, floor, locked.retention)
            floors[stream] = min(floor, max(marked, locked.purged_to))
    found = _oldest(log, topic, rule, {stream: (floors[stream], most) for stream, most in asked.items()})
    more = [stream for stream, offsets in found.items() if len(offsets) == asked[stream]]
    end = min((found[stream][-1] for stream in more), default=None)
    oldest = sorted(offset for offsets in found.values() for offset in offsets if end is None or offset <= end)
    chosen = oldest[:BATCH]
    free = lock_free(log, chosen, "sqlqueue_message", "offset")
    retention.keep(log, topic, free, locked.purged_to)
    delete_all(log, "sqlqueue_message", "offset", free)
    if free and locked.collected_to < max(free):
        Topic.objects.using(log.alias).filter(name=topic).update(collected_to=max(free))
    if server is not None and free:
        server.confirm()
    taken, last = set(free), chosen[-1] if chosen else 0
    parts = {stream: bisect_right(offsets, last) for stream, offsets in found.items()}
    left = [stream for stream, offsets in found.items() if stream in more or parts[stream] < len(offsets)]
    if len(asked) == 1:  # what is locked is found again
        return len(free), dict.fromkeys(left if free else (), BATCH), []
    locked_streams = [stream for stream in left if not taken.issuperset(found[stream][: parts[stream]])]
    following = {stream: min(BATCH, max(LEAST, 2 * parts[stream])) for stream in left if stream not in locked_streams}
    return len(free), following, locked_streams


def _oldest(log: Log, topic: str, rule: Rule, wanted: Mapping[Stream, tuple[int, int]]) -> dict[Stream, list[int]]:
    """Return the offsets of the oldest messages of each (partition, priority) that are released: those before the first
    one that is not. wanted: up to which offset, and how many of them are looked at."""
    syntax = log.dialect
    branch = syntax.branch.format(OLDEST.replace("{released}", rule.sql).strip())
    values: list[object] = []
    for stream, (floor, most) in wanted.items():
        values += (*stream, *rule.values, *syntax.range_values(topic, *stream, 0, floor), most)
    rows = log.execute(" UNION ALL ".join([branch] * len(wanted)), values).fetchall()
    found: dict[Stream, list[int]] = {stream: [] for stream in wanted}
    kept: set[Stream] = set()
    for partition, priority, offset, old_enough in rows:
        stream = int(partition), int(priority)
        if not old_enough:
            kept.add(stream)
        elif stream not in kept:
            found[stream].append(offset)
    return found


def delete_free(log: Log, offsets: Sequence[int]) -> list[int]:
    """Delete messages, in the caller's transaction, but for those that another transaction has locked; return the
    offsets of the deleted ones. By single offsets, not by a range, whose end would wait for the next message behind it,
    which may belong to an open transaction."""
    free = lock_free(log, offsets, "sqlqueue_message", "offset")
    delete_all(log, "sqlqueue_message", "offset", free)
    return free


def acked_by_all(log: Log, topic: str, streams: Collection[Stream], horizon: int) -> dict[Stream, int]:
    """Return the lowest watermark over all registered groups of each (partition, priority); the horizon if there is no
    group."""
    of_groups = watermarks(log, topic, streams)
    return {stream: min((acked[stream] for acked in of_groups.values()), default=horizon) for stream in streams}


def watermarks(log: Log, topic: str, streams: Collection[Stream]) -> dict[str, dict[Stream, int]]:
    """Return the watermark of each registered group in each (partition, priority): up to there it has settled
    everything. Where a group has no offset row, it is at its start."""
    groups = ConsumerGroup.objects.using(log.alias).filter(topic=topic)
    found = {group: dict.fromkeys(streams, start) for group, start in groups.values_list("consumer_group", "start")}
    offsets = Offset.objects.using(log.alias).filter(
        topic=topic, consumer_group__in=found, partition__in={partition for partition, _ in streams}
    )
    rows = offsets.values_list("consumer_group", "partition", "priority", "offset_acked")
    for group, partition, priority, acked in rows:
        if (partition, priority) in found[group]:
            found[group][partition, priority] = acked
    return found


def report_absent(log: Log) -> None:
    """Announce every registered group that no process serves and that holds back collection."""
    alive = set(SubscriberHeartbeat.objects.using(log.alias).alive().values_list("consumer_group", "topic").distinct())
    for group, topic in ConsumerGroup.objects.using(log.alias).values_list("consumer_group", "topic"):
        if (group, topic) in alive:
            continue
        if unacked_streams(log, group, topic):
            announce(group_away, report_absent, group=group, topic=topic, database=log.label)
