"""The survey: how every topic and group stands, read from the tables alone, in a handful of statements.

Their number grows by one for every few hundred streams, and what each of them reads is bounded: a backlog is counted
up to SAMPLE messages a stream, and reckoned from how densely its ends are filled beyond that.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeVar

from django.db import connections

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.transactions import refusal
from sqlqueue.models import ConsumerGroup, PublishGate, SubscriberHeartbeat, Topic, dead_letter_topic
from sqlqueue.observe.blocked import blocked_in_groups
from sqlqueue.observe.full import full_streams, held_streams, may_be_full

T = TypeVar("T")

SAMPLE = 200  # messages counted at either end of a stream's backlog
MOST_ROWS = 10_000  # delivery states and ranges of a group, letters of a topic, scheduled messages: counted up to here
STREAMS_AT_ONCE = 240
TABLES_AT_ONCE = 120
STANDS_STILL = 60.0  # seconds without a settle, although there is something to do
HELD_BACK = 300.0  # seconds for which a failing message may hold the watermark before that is called stuck
OVERDUE = 60.0  # seconds
LOOKS = (0.0, 0.01, 0.03)  # seconds before each look at the horizon

# Every stream of every group: a row for each (group, topic, partition, priority). The gate's slots are the numbers of
# the priorities. Index: the unique keys of groups, leases and offsets.
STREAMS = """
    SELECT g.topic, g.consumer_group, l."partition", n.slot, COALESCE(o.position, g.start),
    COALESCE(o.offset_acked, g.start), COALESCE(o.claimed_to, g.start), {settled},
    l.holder <> '' AND l.valid_until > {now}
    FROM sqlqueue_consumer_group g JOIN sqlqueue_topic t ON t.name = g.topic
    JOIN sqlqueue_partition_lease l ON l.topic = g.topic AND l.consumer_group = g.consumer_group
    JOIN sqlqueue_publish_gate n ON n.slot >= 0 AND n.slot < t.priorities
    LEFT JOIN sqlqueue_offset o ON o.topic = g.topic AND o.consumer_group = g.consumer_group
    AND o."partition" = l."partition" AND o.priority = n.slot
"""
ONE_TOPIC = " WHERE g.topic = %s"
ONE_GROUP = " WHERE g.topic = %s AND g.consumer_group = %s"
# The first message above an offset: the oldest that is not acked. Index: (topic, partition, priority, offset).
FIRST = """
    SELECT %s, "offset", {remaining} FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {by_place} LIMIT 1
"""
# Both ends of a backlog. Index: the same.
HEAD = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset"), SUM(CASE WHEN "offset" <= %s THEN 1 ELSE 0 END) FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {by_place} LIMIT %s) AS head
"""
TAIL = """
    SELECT %s, COUNT(*), MIN("offset"), MAX("offset"), 0 FROM
    (SELECT "offset" FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {by_place_down} LIMIT %s) AS tail
"""
# What a group remembers of single messages. Index: the states' unique key; the offsets' unique key.
STATES = """
    SELECT %s, COUNT(*), SUM(CASE WHEN s.acked = {false} AND s.in_flight <> 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.in_flight = 0 AND s.retry_count > 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.in_flight = 0 AND s.retry_count <= 0 THEN 1 ELSE 0 END),
    SUM(CASE WHEN s.acked = {false} AND s.message_offset <= o.position THEN 1
    WHEN s.acked = {true} AND s.message_offset > o.position THEN -1 ELSE 0 END)
    FROM (SELECT "partition", priority, message_offset, acked, in_flight, retry_count FROM sqlqueue_delivery_state
    WHERE topic = %s AND consumer_group = %s LIMIT %s) AS s
    JOIN sqlqueue_offset o ON o.topic = %s AND o.consumer_group = %s AND o."partition" = s."partition"
    AND o.priority = s.priority
"""
# Index: the log's unique key or that of its streams, by the topic.
LETTERS = """
    SELECT %s, failed_group, COUNT(*) FROM (SELECT failed_group FROM sqlqueue_message WHERE topic = %s LIMIT %s)
    AS letters GROUP BY failed_group
"""
# Index: (refused, due_at).
SCHEDULED = """
    SELECT topic, COUNT(*), SUM(CASE WHEN due_at < {earlier} THEN 1 ELSE 0 END) FROM
    (SELECT topic, due_at FROM sqlqueue_scheduled_message{by_due} WHERE refused = %s ORDER BY due_at LIMIT %s)
    AS waiting GROUP BY topic
"""
# Index: the primary key.
ABOVE = 'SELECT {remaining} FROM sqlqueue_message{by_offset} WHERE "offset" > %s ORDER BY "offset" LIMIT 1'


@dataclass(frozen=True, slots=True)
class Stuck:
    """A partition whose watermark stands still at `offset`, the oldest message that is not acked, for `seconds`.

    why: "failing" (that message fails again and again, and is retried), "standing" (nothing was settled lately), "full"
    (so many messages fail that nothing new is read), or "held" (so many were delivered beyond a publishing transaction
    that is still open that nothing new is read).
    """

    partition: int
    priority: int
    offset: int
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class GroupSurvey:
    """How a group of a topic stands. Counts are of messages, ages in seconds."""

    topic: str
    group: str
    paused: bool  # the group, or its topic
    partitions: int
    lag: int  # not settled, whether unread, waiting or in flight
    estimated: bool  # the lag was reckoned, not counted
    oldest_age: float | None  # since the oldest unsettled message was published
    in_flight: int
    failing: int  # handed out before, wait for their retry
    waiting: int  # postponed, delayed, or behind a blocked key; those are reckoned
    dead_letters: int  # of the first 10,000 of its topic
    more_letters: bool  # its topic has more than these, perhaps of this group
    subscribers: int
    unowned: int  # partitions that nobody holds
    stuck: tuple[Stuck, ...]

    @property
    def away(self) -> bool:
        """Nobody serves it, and what it has yet to read cannot be collected."""
        return not self.subscribers and self.lag > 0


@dataclass(frozen=True, slots=True)
class TopicSurvey:
    """How a topic stands. retention: seconds, None for ever; scheduled, overdue and refused: messages on their way into
    the log, of the first 10,000; more_scheduled, more_refused: there are more than these, perhaps of this topic."""

    name: str
    partitions: int
    priorities: int
    paused: bool
    retention: float | None
    scheduled: int
    overdue: int
    refused: int
    more_scheduled: bool
    more_refused: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """How everything stands at one time of the database's clock.

    horizon_lag: offsets above the horizon, which a transaction that publishes holds back; horizon_age: for how many
    seconds the first message above it has been there, so for how long at most. 0 without consumers. failing: background
    tasks of live consumers that fail again and again, and of what. servers: the database servers that live consumers
    write to.
    """

    taken_at: datetime
    topics: tuple[TopicSurvey, ...]
    groups: tuple[GroupSurvey, ...]
    subscribers: int
    highest_offset: int
    horizon_lag: int
    horizon_age: float
    failing: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()

    def group(self, topic: str, group: str) -> GroupSurvey | None:
        """Return one group's, None if it is not registered."""
        return next((one for one in self.groups if (one.topic, one.group) == (topic, group)), None)


class Stream(NamedTuple):
    """A group's place in a partition, as stored; settled: how many seconds ago its row was last written."""

    topic: str
    group: str
    partition: int
    priority: int
    position: int
    watermark: int
    claimed: int
    settled: float | None
    owned: bool


class Backlog(NamedTuple):
    """How many messages stand above a position; of these `handed` up to the claim. The first and the last offset."""

    messages: int
    handed: int
    estimated: bool
    first: int
    last: int


def survey(alias: str, only: str = "", only_group: str = "") -> Survey:
    """Look at everything once, or at only one topic and its groups, or one of these. `subscribers` is always all that
    are alive."""
    highest = highest_offset(alias)
    streams = streams_of(alias, only, only_group) if only else all_streams(alias)
    first = first_unacked(alias, streams)
    backlogs = backlogs_of(alias, [stream for stream in streams if stream in first])
    topics = _topics(alias, only)
    paused = {topic.name for topic in topics if topic.paused}
    alive, members, known, failing_tasks, servers = _subscribers(alias)
    known = _looked_at(alias, known, highest) if alive else known
    groups = _paused_groups(alias, only, only_group)
    states, blocked = _states(alias, list(groups)), blocked_in_groups(alias, list(groups), MOST_ROWS)
    letters = _letters(alias, [topic.name for topic in topics if topic.name.endswith(DEAD_LETTER_SUFFIX)])
    counted_letters: dict[str, int] = defaultdict(int)
    for (graveyard, _), count in letters.items():
        counted_letters[graveyard] += count
    scheduled, refused = _scheduled(alias, False), _scheduled(alias, True)
    more = [sum(count for count, _ in found.values()) >= MOST_ROWS for found in (scheduled, refused)]
    failing = [one for one in first if may_be_full(states.get((one.topic, one.group), (0,))[0], MOST_ROWS)]
    limits = limits_reached(alias, failing, backlogs, known if alive else None)
    by_group: dict[tuple[str, str], list[Stream]] = defaultdict(list)
    for stream in streams:
        by_group[stream.topic, stream.group].append(stream)
    surveyed: list[GroupSurvey] = []
    for place in sorted(groups):
        topic, group = place
        behind = [stream for stream in by_group[place] if stream in first]
        rows, in_flight, retried, waiting, difference = states.get(place, (0, 0, 0, 0, 0))
        counted = [backlogs[stream] for stream in behind]
        surveyed.append(
            GroupSurvey(
                topic,
                group,
                groups[place] or topic in paused,
                len({stream.partition for stream in by_group[place]}),
                max(0, sum(backlog.messages for backlog in counted) + difference + blocked.get(place, 0)),
                any(backlog.estimated for backlog in counted) or rows > MOST_ROWS,
                max((first[stream][1] for stream in behind), default=None),
                in_flight + sum(backlog.handed for backlog in counted),
                retried,
                waiting + blocked.get(place, 0),
                letters.get((dead_letter_topic(topic), group), 0),
                counted_letters[dead_letter_topic(topic)] >= MOST_ROWS,
                members.get(place, 0),
                len({stream.partition for stream in by_group[place] if not stream.owned}),
                () if groups[place] or topic in paused else tuple(stuck_streams(behind, first, limits)),
            )
        )
    lag, age = _horizon(alias, known, highest) if alive else (0, 0.0)
    return Survey(
        database_time(alias),
        tuple(
            TopicSurvey(
                topic.name,
                topic.partitions,
                topic.priorities,
                topic.paused,
                topic.retention,
                *scheduled.get(topic.name, (0, 0)),
                refused.get(topic.name, (0, 0))[0],
                *more,
            )
            for topic in topics
            if not topic.name.endswith(DEAD_LETTER_SUFFIX)
        ),
        tuple(surveyed),
        alive,
        highest,
        lag,
        age,
        failing_tasks,
        servers,
    )


def database_time(alias: str) -> datetime:
    """Return the time by the database's clock."""
    return PublishGate.objects.using(alias).annotate(now=DatabaseNow()).values_list("now", flat=True)[0]


def all_streams(alias: str) -> list[Stream]:
    """Return every stream of every group."""
    return _streams(alias, STREAMS, ())


def streams_of(alias: str, topic: str, group: str = "") -> list[Stream]:
    """Return the streams of a topic's groups, or of one group, by partition and priority."""
    where, values = (ONE_GROUP, (topic, group)) if group else (ONE_TOPIC, (topic,))
    return sorted(_streams(alias, STREAMS + where, values), key=lambda stream: (stream.partition, stream.priority))


def _streams(alias: str, statement: str, values: Sequence[object]) -> list[Stream]:
    text = statement.replace("{settled}", dialect(alias).remaining("o.updated_at"))
    rows = execute(alias, text, values).fetchall()
    return [Stream._make((*row[:7], None if row[7] is None else -float(row[7]), bool(row[8]))) for row in rows]


def first_unacked(alias: str, streams: Sequence[Stream]) -> dict[Stream, tuple[int, float]]:
    """Return the offset and the age of the first message above each watermark, where there is one."""
    words = dialect(alias)
    branch = words.branch.format(FIRST.strip()).replace("{remaining}", words.remaining("created_at"))
    found: dict[Stream, tuple[int, float]] = {}
    for some in _chunks(streams, STREAMS_AT_ONCE):
        values: list[object] = []
        for index, stream in enumerate(some):
            values += (index, *words.place(stream.topic, stream.partition, stream.priority, stream.watermark))
        for index, offset, remaining in execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall():
            found[some[index]] = (offset, max(0.0, -float(remaining)))
    return found


def backlogs_of(alias: str, streams: Sequence[Stream]) -> dict[Stream, Backlog]:
    """Return what stands above each position."""
    words = dialect(alias)
    both = [words.branch.format(HEAD.strip()), words.branch.format(TAIL.strip())]
    found: dict[Stream, Backlog] = {}
    for some in _chunks(streams, TABLES_AT_ONCE):
        values: list[object] = []
        for index, stream in enumerate(some):
            place = words.place(stream.topic, stream.partition, stream.priority, stream.position)
            values += (index, stream.claimed, *place, SAMPLE, -1 - index, *place, SAMPLE)
        ends: dict[int, tuple[int, int, int, int]] = {}
        for index, *end in execute(alias, " UNION ALL ".join(both * len(some)), values).fetchall():
            ends[index] = tuple(int(value or 0) for value in end)  # type: ignore[assignment]
        for index, stream in enumerate(some):
            head, tail = ends[index], ends[-1 - index]
            messages, estimated = reckoned(head[:3], tail[:3])
            found[stream] = Backlog(messages, head[3], estimated, head[1], tail[2])
    return found


def reckoned(head: tuple[int, int, int], tail: tuple[int, int, int], sample: int = SAMPLE) -> tuple[int, bool]:
    """Return how many messages there are, and whether that was reckoned, from the first and the last `sample` of them:
    how many these are, the first one's offset and the last one's."""
    count, head_first, head_last = head
    tail_count, tail_first, last = tail
    if count < sample:
        return count, False
    density = (count + tail_count) / ((head_last - head_first + 1) + (last - tail_first + 1))
    between = round(density * (tail_first - head_last - 1))  # less than 0 if they overlap: those were counted twice
    return max(count, count + tail_count + between), True


def _subscribers(alias: str) -> tuple[int, dict[tuple[str, str], int], int, tuple[str, ...], tuple[str, ...]]:
    """Return how many processes are alive, how many serve each group, the highest horizon that any knows, which
    background tasks fail, and which servers are written to."""
    alive = SubscriberHeartbeat.objects.using(alias).alive()
    rows = list(alive.values_list("topic", "consumer_group", "subscriber", "horizon", "failing", "server"))
    members: dict[tuple[str, str], int] = defaultdict(int)
    for topic, group, *_ in rows:
        members[topic, group] += 1
    failing = sorted({f"{row[2]}: {row[4]}" for row in rows if row[4]})
    servers = sorted({row[5] for row in rows if row[5]})
    horizon = max((row[3] for row in rows), default=0)
    return len({row[2] for row in rows}), dict(members), horizon, tuple(failing), tuple(servers)


def _topics(alias: str, only: str) -> list[Topic]:
    topics = Topic.objects.using(alias).order_by("name")
    return list(topics.filter(name__in=[only, dead_letter_topic(only)]) if only else topics)


def _paused_groups(alias: str, only: str, only_group: str) -> dict[tuple[str, str], bool]:
    wanted = {name: value for name, value in (("topic", only), ("consumer_group", only_group)) if value}
    rows = ConsumerGroup.objects.using(alias).filter(**wanted).values_list("topic", "consumer_group", "paused")
    return {(topic, group): paused for topic, group, paused in rows}


def _states(alias: str, groups: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[int, ...]]:
    branch = dialect(alias).branch.format(STATES.strip())
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for some in _chunks(groups, TABLES_AT_ONCE):
        values = [value for index, place in enumerate(some) for value in (index, *place, MOST_ROWS + 1, *place)]
        for index, *counts in execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall():
            found[some[index]] = tuple(int(count or 0) for count in counts)
    return found


def _letters(alias: str, topics: Sequence[str]) -> dict[tuple[str, str], int]:
    branch = dialect(alias).branch.format(LETTERS.strip())
    found: dict[tuple[str, str], int] = {}
    for some in _chunks(topics, TABLES_AT_ONCE):
        values = [value for index, topic in enumerate(some) for value in (index, topic, MOST_ROWS)]
        for index, group, count in execute(alias, " UNION ALL ".join([branch] * len(some)), values).fetchall():
            found[some[index], group] = count
    return found


def _scheduled(alias: str, refused: bool) -> dict[str, tuple[int, int]]:
    rows = execute(alias, SCHEDULED, (round(OVERDUE * 1_000_000), refused, MOST_ROWS)).fetchall()
    return {topic: (count, int(overdue)) for topic, count, overdue in rows}


def _looked_at(alias: str, known: int, highest: int) -> int:
    """Return the horizon as a few looks of one's own show it, or as it is known: what consumers know of it is as old as
    their heartbeats, and behind whatever was published since."""
    if known < highest and not refusal(connections[alias]):
        horizon = Horizon(alias)
        for pause in LOOKS:
            time.sleep(pause)
            if horizon.probe(highest) >= highest:
                break
        known = max(known, horizon.value)
    return known


def _horizon(alias: str, known: int, highest: int) -> tuple[int, float]:
    if known >= highest:
        return 0, 0.0
    text = ABOVE.replace("{remaining}", dialect(alias).remaining("created_at"))
    row = execute(alias, text, (known,)).fetchone()
    return highest - known, 0.0 if row is None else max(0.0, -float(row[0]))


def limits_reached(
    alias: str, failing: Iterable[Stream], backlogs: dict[Stream, Backlog], horizon: int | None
) -> dict[Stream, str]:
    """Return which streams have reached a limit, so that nothing new is read there: "full" or "held". failing: those of
    which many messages may wait; horizon: the highest that a consumer knows, None if there is no consumer."""
    beyond = [
        stream
        for stream, backlog in backlogs.items()
        if horizon is not None and backlog.first > horizon and backlog.last > stream.claimed
    ]
    full = full_streams(alias, [stream for stream in failing if stream in backlogs])
    return {**dict.fromkeys(held_streams(alias, beyond), "held"), **dict.fromkeys(full, "full")}


def stuck_streams(
    streams: Iterable[Stream], first: dict[Stream, tuple[int, float]], limits: dict[Stream, str]
) -> Iterator[Stuck]:
    """Yield those whose watermark stands still, of streams that are not paused. limits: those that have reached one."""
    for stream in streams:
        offset, age = first[stream]
        if stream in limits:
            yield Stuck(stream.partition, stream.priority, offset, age, limits[stream])
        elif offset <= stream.position:  # what stands there and is not acked has a row: it failed, or waits
            if age > HELD_BACK:
                yield Stuck(stream.partition, stream.priority, offset, age, "failing")
        elif age > STANDS_STILL and (stream.settled is None or stream.settled > STANDS_STILL):
            seconds = age if stream.settled is None else min(age, stream.settled)
            yield Stuck(stream.partition, stream.priority, offset, seconds, "standing")


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
