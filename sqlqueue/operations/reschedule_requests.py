"""Reschedulings: operator requests to make many waiting deliveries of a group due."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef, Q

from sqlqueue.core.bounds import MOST_ATTEMPTS, checked_rate, checked_whole
from sqlqueue.core.keys import KEY_LENGTH, checked_text
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError, seconds
from sqlqueue.log import layouts
from sqlqueue.log.groups import registered
from sqlqueue.models import DeliveryState, Message, Request
from sqlqueue.models.consumer_group import DeliveryStateQuerySet
from sqlqueue.models.request import DONE, RESCHEDULE, RUNNING
from sqlqueue.operations.reschedule import reschedule_rows

AT_ONCE = 500  # deliveries of one step
PARTITIONS_OF_A_STEP = 100
MOST_COUNTED = 100_000
FAILING, POSTPONED = "failing", "postponed"
ERROR_LENGTH = 200  # characters of `error`


@dataclass(frozen=True, slots=True)
class WaitingDeliveries:
    """Selects deliveries of a group that wait for their time.

    which: all (""), the failing or the postponed ones; error: only those whose last error contains this text (any
    case); above, through: of messages above this offset, up to that one; key: of this key only, "" for any.
    """

    topic: str
    group: str
    which: str = ""
    error: str = ""
    above: int = 0
    through: int | None = None
    key: str = ""

    def partitions(self, log: Log) -> list[int] | None:
        """Return the partitions that the key has, or has had, messages in: one of each epoch; None without a key."""
        if not self.key:
            return None
        return sorted({epoch.partition_of(self.key) for epoch in layouts.epochs(log, self.topic)})

    def rows(self, log: Log) -> DeliveryStateQuerySet:
        """Return the query of their delivery states. Index: the states' unique key, by topic and group (and partitions,
        with a key); the keys: the log's primary key."""
        found = DeliveryState.objects.using(log.alias).unsettled().filter(topic=self.topic, consumer_group=self.group)
        found = found.filter(in_flight=NOT_IN_FLIGHT, invisible_until__gt=DatabaseNow(), message_offset__gt=self.above)
        if self.through is not None:
            found = found.filter(message_offset__lte=self.through)
        if self.which:
            found = found.filter(Q(retry_count__gt=0) if self.which == FAILING else Q(retry_count__lte=0))
        if self.error:
            found = found.filter(last_error__icontains=self.error)
        if self.key:
            of_key = Message.objects.using(log.alias).filter(offset=OuterRef("message_offset"), partition_key=self.key)
            found = found.filter(Exists(of_key), partition__in=self.partitions(log))
        return found

    def count(self, log: Log) -> int:
        """Return how many there are now, at most MOST_COUNTED."""
        return self.rows(log)[:MOST_COUNTED].count()

    def check(self, log: Log) -> None:
        """Raise ConfigurationError for an invalid selection, and InvalidMessage for an invalid key."""
        checked_text(self.key, "key", KEY_LENGTH)
        if (self.group, self.topic) not in registered(log, [self.topic]):
            raise ConfigurationError(f"there is no group {self.group!r} in topic {self.topic!r}")
        if self.which not in ("", FAILING, POSTPONED):
            raise ConfigurationError(f"which must be {FAILING!r}, {POSTPONED!r} or '' for both, not {self.which!r}")
        if len(self.error) > ERROR_LENGTH:
            raise ConfigurationError(f"the text of the error has {len(self.error)} characters; {ERROR_LENGTH} at most")


def request_rescheduling(
    log: Log,
    waiting: WaitingDeliveries,
    *,
    delay: float = 0.0,
    attempts: int | None = None,
    rate: float | None = None,
    requested_by: str = "",
) -> Request:
    """Request that deliveries become due in `delay` seconds, in the order of partition, priority and offset; return the
    request, whose row shows its progress.

    attempts: what each then counts as having had, 0 for a fresh start; None leaves it. rate: at most so many a second.
    Later messages are not part of it; deliveries that are in flight or due when a step reaches them are left. Consumers
    notice within a heartbeat.

    Raises ConfigurationError if no selected delivery waits, for a group that is not registered, and for an invalid rate
    or number of attempts; InvalidMessage for an invalid delay or key.
    """
    waiting.check(log)
    delay, rate = seconds(delay), checked_rate(rate)
    if attempts is not None:
        checked_whole(attempts, "attempts", MOST_ATTEMPTS)
    total = waiting.count(log)
    if not total:
        raise ConfigurationError(f"no such delivery of group {waiting.group!r} waits for its time: nothing to do")
    through = highest_offset(log) if waiting.through is None else waiting.through
    chosen = {"which": waiting.which, "error": waiting.error, "key": waiting.key, "above": waiting.above}
    made = Request.objects.using(log.alias).create(
        kind=RESCHEDULE,
        topic=waiting.topic,
        consumer_group=waiting.group,
        options={**chosen, "delay": delay, "attempts": attempts},
        through=through,
        rate=rate,
        total=total,
        ordered_by=requested_by,
    )
    made.refresh_from_db(using=log.alias)  # MySQL does not return what the columns' defaults are
    return made


def step(log: Log, request: Request, most: int) -> None:
    """Make the next deliveries of a rescheduling due, at most so many."""
    found, ended = _some(log, request, min(most, AT_ONCE))
    request.done += reschedule_rows(log, found, request.options["delay"], request.options["attempts"])
    request.state = DONE if ended else RUNNING


def _some(log: Log, request: Request, most: int) -> tuple[list[int], bool]:
    """Return the ids of the next rows, and whether there are no more; advance the request behind them. Reads an
    exact range of the index for each partition and priority."""
    left = _left(request)
    chosen, partitions = left.rows(log).order_by("message_offset"), left.partitions(log)
    found: list[int] = []
    for _ in range(PARTITIONS_OF_A_STEP):
        stream = {"partition": request.at_partition, "priority": request.at_priority}
        here = chosen.filter(**stream, message_offset__gt=request.at_offset)
        for id, offset in here.values_list("pk", "message_offset")[: most - len(found)]:
            found.append(id)
            request.at_offset = offset
        if len(found) == most:
            return found, False
        following = _next_partition(log, request, partitions)
        if following is None:
            return found, True
        request.at_partition, request.at_priority = following
        request.at_offset = 0
    return found, False


def _next_partition(log: Log, request: Request, partitions: Collection[int] | None) -> tuple[int, int] | None:
    """Return the next (partition, priority) in which the group has delivery states; of these partitions or (None)
    of all."""
    mine = {"topic": request.topic, "consumer_group": request.consumer_group}
    rows = DeliveryState.objects.using(log.alias).filter(**mine)
    if partitions is not None:
        rows = rows.filter(partition__in=partitions)
    next_priority: dict[str, Any] = {"partition": request.at_partition, "priority__gt": request.at_priority}
    for some in (rows.filter(**next_priority), rows.filter(partition__gt=request.at_partition)):
        found = some.order_by("partition", "priority").values_list("partition", "priority").first()
        if found is not None:
            return found
    return None


def _left(request: Request) -> WaitingDeliveries:
    given = request.options
    chosen = (given["which"], given["error"], given["above"], request.through, given["key"])
    return WaitingDeliveries(request.topic, request.consumer_group, *chosen)
