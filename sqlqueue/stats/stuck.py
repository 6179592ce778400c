"""Finds partitions whose watermark stands still, and why.

There are two limits at which nothing new is read: of messages that wait for a retry or were postponed (`full`), and of
messages delivered beyond the horizon (`held`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Q

from sqlqueue.core.partition import window
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT
from sqlqueue.database.log import Log
from sqlqueue.models import DeliveryState
from sqlqueue.stats import counting
from sqlqueue.stats.partitions import Backlog, StoredPartition
from sqlqueue.stats.processes import STANDS_STILL, Work

KEY = ("topic", "consumer_group", "partition", "priority", "message_offset")  # of a delivery state
NEARLY = 0.9  # what is read and waits behind its key is beyond the claim, and not counted here

# How many messages of a partition wait by their own outcome, up to a limit? Index: the states' unique key.
WAITING = """
    SELECT %s, COUNT(*) FROM (SELECT message_offset FROM sqlqueue_delivery_state WHERE topic = %s
    AND consumer_group = %s AND "partition" = %s AND priority = %s AND acked = {false} LIMIT %s) AS waiting
"""
HELD_BACK = 300.0  # seconds for which a failing message may hold the watermark before the partition is stuck


@dataclass(frozen=True, slots=True)
class Stuck:
    """A partition whose watermark stands still at `offset`, the oldest message that is not acked, for `seconds`.

    why: "failing" (that message fails again and again, and is retried), "standing" (nothing was settled lately), "full"
    or "held" (a limit is reached, and nothing new is read: too many messages fail, or too many were delivered beyond a
    publishing transaction that is still open).
    """

    partition: int
    priority: int
    offset: int
    seconds: float
    why: str


def limits_reached(
    log: Log, states: Mapping[tuple[str, str], int], backlogs: Mapping[StoredPartition, Backlog], horizon: int | None
) -> dict[StoredPartition, str]:
    """Return which partitions have reached a limit, so that nothing new is read there: "full" or "held".

    states: how many delivery states of each topic and group were counted; horizon: the highest that a consumer knows,
    None without one.
    """
    held = [
        stored
        for stored, backlog in backlogs.items()
        if horizon is not None
        and backlog.first > horizon
        and backlog.messages > backlog.claimed >= NEARLY * window.WINDOW_LIMIT
    ]
    most = window.HEADS_LIMIT
    many = min(most, counting.MOST_ROWS)  # of a group, so that they may fill one of its partitions
    items = {
        one: (one.topic, one.group, one.partition, one.priority, most)
        for one in backlogs
        if states.get((one.topic, one.group), 0) >= many
    }
    full = [stored for stored, (count,) in counting.each(log, WAITING, items) if count >= most]
    return {**dict.fromkeys(held, "held"), **dict.fromkeys(full, "full")}


def dispatched(log: Log, first: dict[StoredPartition, tuple[int, float]]) -> set[StoredPartition]:
    """Return the partitions whose oldest message has a row, and has been in flight for long: it has not failed, but
    waits for a thread, or its handler runs. No statement if there is none with a row."""
    found: set[StoredPartition] = set()
    old = [stored for stored, (offset, age) in first.items() if offset <= stored.position and age > STANDS_STILL]
    by_key = {(one.topic, one.group, one.partition, one.priority, first[one][0]): one for one in old}
    in_flight = DeliveryState.objects.using(log.alias).unsettled().exclude(in_flight=NOT_IN_FLIGHT)
    for some in counting.chunks(list(by_key)):
        of_some = reduce(or_, (Q(**dict(zip(KEY, key))) for key in some))
        found.update(by_key[key] for key in in_flight.filter(of_some).values_list(*KEY))
    return found


def stuck_partitions(
    partitions: Iterable[StoredPartition],
    first: dict[StoredPartition, tuple[int, float]],
    limits: dict[StoredPartition, str],
    in_flight: Collection[StoredPartition],
    work: Work,
    working_for: float | None = None,
) -> Iterator[Stuck]:
    """Yield the partitions whose watermark stands still, except for paused ones and those that wait for an earlier
    epoch. limits: those that have reached a limit; in_flight: those whose oldest message is dispatched(); work: what
    their owners do: while one runs a handler of the group, what is behind it waits for a handler that works, and one
    that hangs is ended at its limit; working_for: seconds since the group's active hours began: before that nothing was
    to move."""
    for stored in partitions:
        offset, age = first[stored]
        if working_for is not None:
            age = min(age, working_for)
        if stored.paused or stored.waits:
            continue
        if stored in limits:
            yield Stuck(stored.partition, stored.priority, offset, age, limits[stored])
        elif offset <= stored.position and stored not in in_flight:  # an unacked message there has a row
            if age > HELD_BACK:
                yield Stuck(stored.partition, stored.priority, offset, age, "failing")
        elif age > STANDS_STILL and (seconds := min(age, _still_for(stored, work))) > STANDS_STILL:
            yield Stuck(stored.partition, stored.priority, offset, seconds, "standing")


def _still_for(stored: StoredPartition, work: Work) -> float:
    """Return for how many seconds nothing of a partition has moved: what is meant for other groups does not count."""
    owner = (stored.holder, stored.topic, stored.group)
    if owner in work.busy:
        return 0.0
    return math.inf if stored.settled is None or owner in work.idle else stored.settled
