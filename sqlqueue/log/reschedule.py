"""Reschedule: a person decides when a delivery is due, how many attempts it has had, or that it is done.

The owner of a partition goes by what it has read. It reads a row again when that is due, and looks every heartbeat for
rows that have become due in the database (or were acked there by a person, which a negative number of attempts tells).
So what has a row is changed in its row; for what has none yet (it was not read, or lies in its key's range), the
partition is taken from its owner, and whoever takes it next meets the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlqueue.core.bounds import MOST_ATTEMPTS, checked_whole
from sqlqueue.core.plan import NOT_IN_FLIGHT
from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.exceptions import seconds
from sqlqueue.log.fetch import BY_HAND
from sqlqueue.log.groups import lock_topic, revoke
from sqlqueue.log.redeliver import check_priority, copy
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Message, Offset

AT_ONCE = 500
COLUMNS = 'consumer_group, topic, "partition", priority, message_offset, in_flight, retry_count, acked, invisible_until'
DUE_AT = "UPDATE sqlqueue_delivery_state SET invisible_until = {later}, retry_count = %s WHERE id = %s"  # primary key
KEY = 'topic, consumer_group, "partition", priority, message_offset'


class Changed(NamedTuple):
    """How many deliveries were changed, and how many were not, because a handler has them, or they are done."""

    changed: int
    left: int


def reschedule(
    alias: str,
    group: str,
    topic: str,
    offsets: Iterable[int],
    *,
    delay: float = 0.0,
    attempts: int | None = None,
) -> Changed:
    """Make deliveries that wait (for a retry, their time, or another of their key) due in `delay` seconds.

    attempts: what they count as having had, 0 for a fresh start; None leaves that. What is with a handler is left, and
    what has no row: it is due anyway. The owner notices within a heartbeat.
    """
    if attempts is not None:
        checked_whole(attempts, "attempts", MOST_ATTEMPTS)
    return _all(alias, _reschedule, group, topic, offsets, seconds(delay), attempts)


def acknowledge(alias: str, group: str, topic: str, offsets: Iterable[int]) -> Changed:
    """Ack messages on behalf of a group, which then never gets them (again). What is with a handler is left.

    A message that the group has not read yet, or that waits behind another one of its key, costs its partition's owner
    the lease: what it has in hand there is delivered again.
    """
    return _all(alias, _acknowledge, group, topic, offsets)


def reprioritize(
    alias: str, group: str, topic: str, offsets: Iterable[int], priority: int, *, delay: float = 0.0
) -> Changed:
    """Give deliveries that wait, or were not read yet, another priority, and make them due in `delay` seconds.

    The log is not touched: each is acked on behalf of the group and delivered to it as a copy with a fresh start, in
    one transaction. What is with a handler is left, and what is done.

    Raises InvalidMessage for a priority that the topic does not have.
    """
    check_priority(alias, topic, priority)
    return _all(alias, _reprioritize, group, topic, offsets, priority, seconds(delay))


def _all(
    alias: str, verb: Callable[..., int], group: str, topic: str, offsets: Iterable[int], *options: object
) -> Changed:
    wanted = sorted(set(offsets))
    changed = 0
    for start in range(0, len(wanted), AT_ONCE):
        changed += faults.run(alias, verb, alias, group, topic, wanted[start : start + AT_ONCE], *options)
    return Changed(changed, len(wanted) - changed)


def _waiting(alias: str, group: str, topic: str, messages: Sequence[Message]) -> list[DeliveryState]:
    """Lock and return the rows of these messages that wait. By their whole unique key: nothing else is touched."""
    found: list[DeliveryState] = []
    for (partition, priority), offsets in _by_stream(messages).items():
        rows = DeliveryState.objects.using(alias).filter(
            topic=topic,
            consumer_group=group,
            partition=partition,
            priority=priority,
            message_offset__in=offsets,
        )
        found += [row for row in rows.select_for_update() if not row.acked and row.in_flight == NOT_IN_FLIGHT]
    return found


def _by_stream(messages: Sequence[Message]) -> dict[tuple[int, int], dict[int, str]]:
    """Return the messages of each stream: their keys, by offset."""
    streams: dict[tuple[int, int], dict[int, str]] = {}
    for message in messages:
        streams.setdefault((message.partition, message.priority), {})[message.offset] = message.partition_key
    return streams


def _messages(alias: str, group: str, topic: str, offsets: Sequence[int]) -> list[Message]:
    """Those that are for the group."""
    columns = ("offset", "topic", "partition", "priority", "partition_key")
    found = Message.objects.using(alias).filter(offset__in=offsets, topic=topic, target_group__in=("", group))
    return list(found.only(*columns))


def _reschedule(alias: str, group: str, topic: str, offsets: Sequence[int], delay: float, attempts: int | None) -> int:
    rows = _waiting(alias, group, topic, _messages(alias, group, topic, offsets))
    for row in rows:
        count = row.retry_count if attempts is None else attempts
        execute(alias, DUE_AT, (round(delay * 1_000_000), count if count > 0 else BY_HAND, row.pk))
    return len(rows)


def _acknowledge(alias: str, group: str, topic: str, offsets: Sequence[int]) -> int:
    return len(_acked(alias, group, topic, offsets))


def _reprioritize(alias: str, group: str, topic: str, offsets: Sequence[int], priority: int, delay: float) -> int:
    return copy(alias, topic, group, _acked(alias, group, topic, offsets), priority, delay)


def _acked(alias: str, group: str, topic: str, offsets: Sequence[int]) -> list[int]:
    """Ack what can be, and return that."""
    lock_topic(alias, topic)
    messages = _messages(alias, group, topic, offsets)
    rows = _waiting(alias, group, topic, messages)
    DeliveryState.objects.using(alias).filter(pk__in=[row.pk for row in rows]).update(
        acked=True, retry_count=BY_HAND, invisible_until=DatabaseNow()
    )
    done = [row.message_offset for row in rows]
    for (partition, priority), wanted in _by_stream(messages).items():
        if _unread(alias, group, topic, partition, priority, wanted):
            revoke(alias, group, topic, partition)
            unread = _unread(alias, group, topic, partition, priority, wanted)  # as the owner has left it
            _add_acked(alias, group, topic, partition, priority, unread)
            done += unread
    return done


def _unread(
    alias: str, group: str, topic: str, partition: int, priority: int, messages: Mapping[int, str]
) -> list[int]:
    """Return those that stand above the claim, or in their key's range, and have no row."""
    mine = {"topic": topic, "consumer_group": group, "partition": partition, "priority": priority}
    place = Offset.objects.using(alias).filter(**mine).first()
    if place is None:  # nobody has ever owned it: it is at the group's start
        claimed = (
            ConsumerGroup.objects.using(alias).values_list("start", flat=True).get(topic=topic, consumer_group=group)
        )
    else:
        claimed = max(place.position, place.claimed_to)
    # Before the rows: what is taken up from a range in between has one.
    covering = BlockedRange.objects.using(alias).filter(**mine).covering(messages, *messages.values())
    spans = {key: (low, high) for key, low, high in covering.values_list("partition_key", "low", "high")}

    def waits(offset: int) -> bool:
        low, high = spans.get(messages[offset], (0, 0))
        return low < offset <= high

    unsettled = [offset for offset in messages if offset > claimed or waits(offset)]
    rows = DeliveryState.objects.using(alias).filter(**mine, message_offset__in=unsettled)
    known = set(rows.values_list("message_offset", flat=True)) if unsettled else set()
    return [offset for offset in unsettled if offset not in known]


def _add_acked(alias: str, group: str, topic: str, partition: int, priority: int, offsets: Sequence[int]) -> None:
    if not offsets:
        return
    values: list[object] = []
    for offset in offsets:
        values += (group, topic, partition, priority, offset, NOT_IN_FLIGHT, BY_HAND, True)
    rows = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s, {now})"] * len(offsets))
    text = f"INSERT INTO sqlqueue_delivery_state ({COLUMNS}) VALUES {rows} {dialect(alias).ignore(KEY)}"
    execute(alias, text, values)
