"""Creates a topic before its first use, pauses and resumes topics and groups, and purges a topic.

While one is paused no handler starts; running handlers and leases go on. A purge releases messages up to an offset
before their retention is over: those that every group has settled at once. With `unsettled`, each group that has not
settled some is moved behind them, and its delivery states of them are deleted. Collection deletes the messages, in
bounded batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from django.db import IntegrityError
from django.db.models import Sum

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, checked_consumed
from sqlqueue.database import retries
from sqlqueue.database.horizon import Horizon, highest_offset, on_one_server
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import layouts
from sqlqueue.log.collect import collect_topic
from sqlqueue.log.groups import lock_topic
from sqlqueue.log.status import unacked_streams
from sqlqueue.log.topic_options import CHANGEABLE, checked_overrides
from sqlqueue.log.topics import refuse_dead_letters
from sqlqueue.models import BlockedRange, ConsumerGroup, Topic
from sqlqueue.operations.move import HORIZON_TIMEOUT, settle_below
from sqlqueue.operations.replay_requests import fail_trials
from sqlqueue.stats.counting import Range, count
from sqlqueue.stats.partitions import partitions_of


def planned_topic(
    name: str, partitions: int | None = None, priorities: int | None = None, overrides: Mapping[str, Any] | None = None
) -> Topic:
    """Return a topic as create_topic() would store it: what is None, or not in `overrides`, is as in the settings.

    overrides: retention (seconds or a timedelta, None for ever) and history, which then hold whatever the settings say.
    Raises ConfigurationError for a name or an option that cannot be.
    """
    refuse_dead_letters(name)
    own = checked_overrides(checked_consumed(name), overrides or {})
    wanted = settings.topic(name)
    return Topic(
        name=name,
        partitions=partitions or wanted.partitions,
        priorities=priorities or wanted.priorities,
        databases=settings.stored_databases(name),
        **{option: own.get(option, getattr(wanted, option)) for option in CHANGEABLE},
        **{f"{option}_overridden": option in own for option in CHANGEABLE},
    )


def create_topic(log: Log, topic: Topic) -> None:
    """Store a planned topic. It is declared from then on, for STRICT_TOPICS too. Raises ConfigurationError if it is
    there already."""
    try:
        with log.atomic():
            topic.save(using=log.alias, force_insert=True)
    except IntegrityError:
        raise ConfigurationError(f"topic {topic.name!r} is there already") from None


def pause(log: Log, topic: str, group: str = "") -> bool:
    """Pause a topic for all groups, or one group of it; return whether it was not paused yet.

    Consumers notice within a second, and release what is dispatched and not started. Raises ConfigurationError if there
    is no such topic or group.
    """
    return _set(log, topic, group, True)


def resume(log: Log, topic: str, group: str = "") -> bool:
    """Resume a topic or a group; return whether it was paused."""
    return _set(log, topic, group, False)


def _set(log: Log, topic: str, group: str, paused: bool) -> bool:
    if group:
        rows = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    else:
        rows = Topic.objects.using(log.alias).filter(name=topic)
    if not rows.exists():
        what = f"group {group!r} in topic {topic!r}" if group else f"topic {topic!r}"
        raise ConfigurationError(f"there is no {what}")
    return bool(rows.filter(paused=not paused).update(paused=paused))


# By group: delivery states that are not settled at or below the position, less those acked above it. Index: the
# states' unique key, by the topic; the offsets' unique key.
REMEMBERED = """
    SELECT s.consumer_group, SUM(CASE WHEN s.acked = {false} AND s.message_offset <= o.position THEN 1
    WHEN s.acked = {true} AND s.message_offset > o.position THEN -1 ELSE 0 END)
    FROM sqlqueue_delivery_state s JOIN sqlqueue_offset o ON o.topic = s.topic AND o.consumer_group = s.consumer_group
    AND o."partition" = s."partition" AND o.priority = s.priority
    WHERE s.topic = %s AND s.message_offset <= %s GROUP BY s.consumer_group
"""


@dataclass(frozen=True, slots=True)
class PurgePreview:
    """What a purge up to `through` would concern. messages: how many; unsettled: by group, how many of them it has not
    settled; estimated: some counts are estimates."""

    through: int
    messages: int
    unsettled: dict[str, int]
    estimated: bool


@dataclass(frozen=True, slots=True)
class Purged:
    """through: up to where the topic is purged; skipped: the groups that were moved over what they had not settled."""

    through: int
    skipped: list[str]


def preview(log: Log, topic: str, through: int | None = None) -> PurgePreview:
    """Count what purge() would concern; change nothing. through: up to this offset; None: all messages.

    Exact up to counting.EXACT messages of each group; beyond that, and where messages are blocked, the counts are
    estimates. Messages for another target group count, too. Raises ConfigurationError for what cannot be purged.
    """
    options = deletable_topic(log, topic)
    to = highest_offset(log) if through is None else max(0, through)
    groups = ConsumerGroup.objects.using(log.alias).filter(topic=topic).order_by("consumer_group")
    names = list(groups.values_list("consumer_group", flat=True))
    streams = product(layouts.numbers(log, topic), range(options.priorities))
    ranges = [Range(topic, *stream, 0, to) for stream in streams]
    for one in partitions_of(log, topic):
        ranges.append(Range(topic, one.partition, one.priority, min(to, one.position), to, one.group))
    counts = count(log, ranges)
    unread: Counter[str] = Counter()
    for one_range, found in zip(ranges, counts):
        unread[one_range.part_of] += found.messages
    remembered = {group: int(rows or 0) for group, rows in log.execute(REMEMBERED, (topic, to)).fetchall()}
    ranges = BlockedRange.objects.using(log.alias).filter(topic=topic, low__lt=to)
    behind = dict(ranges.values_list("consumer_group").annotate(Sum("messages")))
    unsettled = {name: max(0, unread[name] + remembered.get(name, 0) + max(0, behind.get(name, 0))) for name in names}
    return PurgePreview(to, unread[""], unsettled, any(one.estimated for one in counts) or bool(behind))


def purge(
    log: Log, topic: str, *, through: int | None = None, unsettled: bool = False, timeout: float = HORIZON_TIMEOUT
) -> Purged:
    """Release a topic's messages up to an offset (None: all that are there now), whatever their retention; consumer
    processes collect them within COLLECT_INTERVAL, and delete_purged() at once.

    A message is deleted once every registered group has settled it. With `unsettled` each group that has not settled
    all of them is moved behind them: the leases of its partitions are revoked, handlers in flight run to their end, and
    their outcomes are ignored (what an atomic handler wrote is rolled back). No dead letter is written, and an archive
    that has not read a message will not have it. Scheduled messages, dead letters and work items stay.

    Raises ConfigurationError for a topic that is not there or has dead letters (discard those), and inside a
    transaction: the horizon cannot be known in one. Raises HorizonUnknown if a transaction that publishes stays open
    for `timeout` seconds.
    """
    deletable_topic(log, topic)
    with on_one_server(log) as server:
        horizon = Horizon(log, server).wait(timeout)
        target = horizon if through is None else min(max(0, through), horizon)
        return _purge(log, topic, target, unsettled, server)


def _purge(log: Log, topic: str, target: int, unsettled: bool, server: ServerIdentity) -> Purged:
    skipped = []
    if unsettled:
        fail_trials(log, topic, range(target + 1), "was purged by an operator")
        groups = ConsumerGroup.objects.using(log.alias).filter(topic=topic).order_by("consumer_group")
        for group in groups.values_list("consumer_group", flat=True):
            if not unacked_streams(log, group, topic, target):
                continue
            if retries.run(log, settle_below, log, group, topic, target, server):
                skipped.append(group)
    retries.run(log, _release, log, topic, target, server)
    return Purged(target, skipped)


def delete_purged(log: Log, topic: str, batches: int = 10) -> tuple[int, bool]:
    """Delete what a purge has released and every group has settled, and what retention has, with at most so many
    deletes of 1,000 messages; return how many were deleted, and whether it stopped at that bound. Deletes
    nothing while another process collects."""
    options = Topic.objects.using(log.alias).get(name=topic)
    deleted, left = collect_topic(log, topic, options.purged_to, batches)
    return deleted, left <= 0


def deletable_topic(log: Log, topic: str) -> Topic:
    """Return a topic whose messages may be deleted; raise ConfigurationError for one that is not there, and for dead
    letters."""
    found = Topic.objects.using(log.alias).filter(name=topic).first()
    if found is None:
        raise ConfigurationError(f"there is no topic {topic!r}")
    if topic.endswith(DEAD_LETTER_SUFFIX):
        raise ConfigurationError(f"topic {topic!r} has dead letters: discard those, which asks for a reason")
    return found


def _release(log: Log, topic: str, target: int, server: ServerIdentity) -> None:
    lock_topic(log, topic)
    Topic.objects.using(log.alias).filter(name=topic, purged_to__lt=target).update(purged_to=target)
    server.confirm()
