"""Republishes, reschedules, reprioritizes and acknowledges single deliveries.

The owner of a partition works from memory. It reads a delivery state again when it is due, and looks every heartbeat
for states of waiting messages that are due or acked in the database. So a delivery with a row is changed in its row.
For one without a row (it is unread, or in a blocked range) the lease is revoked, and the next owner reads the new row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sqlqueue.core.bounds import MOST_ATTEMPTS, checked_whole
from sqlqueue.core.keys import GROUP_LENGTH, checked_name, new_id
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT
from sqlqueue.database import retries
from sqlqueue.database.gate import insert_many
from sqlqueue.database.insert_sql import LogRow, Stored
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import copy_scheduled, insert_scheduled
from sqlqueue.exceptions import InvalidMessage, seconds
from sqlqueue.log import withdrawing
from sqlqueue.log.groups import lock_topic, revoke
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.placement import worked_on
from sqlqueue.log.topics import topic_info
from sqlqueue.models import DeliveryState, Message
from sqlqueue.stats.group_status import LIMITED, WAITING, open_in, registered_groups


def republish(
    topic: str,
    group: str,
    offsets: Iterable[int],
    *,
    priority: int | None = None,
    delay: float = 0.0,
    database: str = "",
) -> int:
    """Publish copies of a topic's messages for one group, in the order of their offsets; return how many.

    The messages in the log stay. A copy has that target group and a fresh id, and stands at the log's end. priority: of
    the copies (None: as before); delay: in so many seconds. Offsets that the log does not hold are left out. database:
    the one that they are on, if the topic is on several.

    A copy of a batch's member is that member again.

    Raises InvalidMessage for a priority that the topic does not have, and for an invalid delay.
    """
    wanted = sorted(set(offsets))
    (log,) = worked_on(topic, database, wanted)
    delay = seconds(delay)
    checked_name(group, "group", GROUP_LENGTH)
    if priority is not None:
        check_priority(log, topic, priority)
    return in_chunks(log, wanted, _copy, group, topic, priority, delay).changed


def check_priority(log: Log, topic: str, priority: int) -> None:
    """Raise InvalidMessage for a priority that the topic does not have."""
    priorities = topic_info(log, topic).priorities
    if not 0 <= priority < priorities:
        raise InvalidMessage(f"priority {priority} is not one of topic {topic!r}, which has {priorities}")


def _copy(log: Log, offsets: Sequence[int], group: str, topic: str, priority: int | None, delay: float) -> int:
    """Publish copies for a group in the caller's transaction, which must be short; return how many."""
    messages = Message.objects.using(log.alias).filter(offset__in=offsets, topic=topic).order_by("offset").as_stored()
    rows = [
        LogRow(
            topic,
            message.partition,
            message.priority if priority is None else priority,
            message.partition_key,
            new_id(),
            payload,
            headers,
            group,
            scheduled_for=delay or None,
        )
        for message in messages
        for payload, headers in (message.to_copy(),)
    ]
    if delay > 0:
        for row in rows:
            if isinstance(row.payload, Stored):
                copy_scheduled(log, row)
            else:
                insert_scheduled(log, [row])
    elif rows:
        insert_many(log, rows)
        notify_after_commit(log)
    withdrawing.give_back(log, topic, group, offsets)
    return len(rows)


AT_ONCE = 500
CHUNK = 100  # rows that one statement changes
COLUMNS = 'consumer_group, topic, "partition", priority, message_offset, in_flight, retry_count, acked, invisible_until'
# What a row is given: its id, its attempts, and in how long it is due. Index: the primary key.
GIVEN = ("row_id", "attempts", "microseconds")
KEY = 'topic, consumer_group, "partition", priority, message_offset'


class Changed(NamedTuple):
    """How many deliveries were changed, and how many were left because they are in flight or done."""

    changed: int
    left: int


def reschedule(
    log: Log,
    group: str,
    topic: str,
    offsets: Iterable[int],
    *,
    delay: float = 0.0,
    attempts: int | None = None,
) -> Changed:
    """Make waiting deliveries (failed, postponed or blocked) due in `delay` seconds.

    attempts: what they count as having had, 0 for a fresh start; None leaves it. Deliveries in flight are left, and
    those without a row: they are due anyway. The owner notices within a heartbeat.
    """
    if attempts is not None:
        checked_whole(attempts, "attempts", MOST_ATTEMPTS)
    return in_chunks(log, offsets, _reschedule, group, topic, seconds(delay), attempts)


def acknowledge(log: Log, group: str, topic: str, offsets: Iterable[int]) -> Changed:
    """Ack messages on behalf of a group, which then never gets them (again). Deliveries in flight are left.

    For a message that the group has not read, or that is blocked, the lease of its partition is revoked: what is in
    flight there is delivered again.
    """
    return in_chunks(log, offsets, _acknowledge, group, topic)


def reprioritize(
    log: Log, group: str, topic: str, offsets: Iterable[int], priority: int, *, delay: float = 0.0
) -> Changed:
    """Give waiting or unread deliveries another priority, and make them due in `delay` seconds.

    The log is not changed: each is acked on behalf of the group and republished for it as a copy, in one transaction.
    Deliveries that are in flight or done are left.

    Raises InvalidMessage for a priority that the topic does not have.
    """
    check_priority(log, topic, priority)
    return in_chunks(log, offsets, _reprioritize, group, topic, priority, seconds(delay))


def in_chunks(log: Log, numbers: Iterable[int], change: Callable[..., int], *options: object) -> Changed:
    """Change what these numbers name, AT_ONCE of them in a transaction. change: gets the log, some of them and the
    options, and returns how many it has changed."""
    wanted = sorted(set(numbers))
    changed = 0
    for start in range(0, len(wanted), AT_ONCE):
        changed += retries.run(log, change, log, wanted[start : start + AT_ONCE], *options)
    return Changed(changed, len(wanted) - changed)


def _waiting(log: Log, group: str, topic: str, messages: Sequence[Message]) -> list[DeliveryState]:
    """Lock and return the rows of these messages that wait; by their whole unique key, so that no other row is
    locked."""
    found: list[DeliveryState] = []
    for (partition, priority), some in _by_stream(messages).items():
        rows = DeliveryState.objects.using(log.alias).filter(
            topic=topic,
            consumer_group=group,
            partition=partition,
            priority=priority,
            message_offset__in=[message.offset for message in some],
        )
        found += [row for row in rows.select_for_update() if not row.acked and row.in_flight == NOT_IN_FLIGHT]
    return found


def _by_stream(messages: Iterable[Message]) -> dict[tuple[int, int], list[Message]]:
    """Return the messages by partition and priority."""
    found: dict[tuple[int, int], list[Message]] = {}
    for message in messages:
        found.setdefault((message.partition, message.priority), []).append(message)
    return found


def _messages(log: Log, group: str, topic: str, offsets: Sequence[int]) -> list[Message]:
    """Those that are for the group."""
    columns = ("offset", "topic", "partition", "priority", "partition_key", "target_group")
    found = Message.objects.using(log.alias).filter(offset__in=offsets, topic=topic, target_group__in=("", group))
    return list(found.only(*columns))


def _reschedule(log: Log, offsets: Sequence[int], group: str, topic: str, delay: float, attempts: int | None) -> int:
    rows = _waiting(log, group, topic, _messages(log, group, topic, offsets))
    _make_due(log, [(row.pk, row.retry_count) for row in rows], delay, attempts)
    return len(rows)


def reschedule_rows(log: Log, ids: Sequence[int], delay: float, attempts: int | None) -> int:
    """Reschedule delivery states by the ids of their rows, in the caller's transaction; return how many were changed.
    Rows that another transaction has locked are being settled or dispatched, and are left."""
    if not ids:
        return 0
    # With the lock: a plain read might show them as they were before it.
    lock = log.dialect.lock_free("sqlqueue_delivery_state", "id", len(ids), ("retry_count", "acked", "in_flight"))
    found = log.execute(lock, ids).fetchall()
    waiting = [(id, count) for id, count, acked, mark in found if not acked and mark == NOT_IN_FLIGHT]
    _make_due(log, waiting, delay, attempts)
    return len(waiting)


def _make_due(log: Log, rows: Sequence[tuple[int, int]], delay: float, attempts: int | None) -> None:
    """Change locked rows, given as (id, attempts so far). One statement for each CHUNK."""
    syntax = log.dialect
    later = syntax.sql("{later}").replace("%s", GIVEN[2])
    changes = f"invisible_until = {later}, retry_count = attempts"
    for start in range(0, len(rows), CHUNK):
        some = rows[start : start + CHUNK]
        values: list[object] = []
        for id, so_far in some:
            values += (id, so_far if attempts is None else attempts, round(delay * 1_000_000))
        log.execute(syntax.update("sqlqueue_delivery_state", GIVEN, len(some), changes), values)


def _acknowledge(log: Log, offsets: Sequence[int], group: str, topic: str) -> int:
    return len(acknowledge_here(log, group, topic, offsets))


def _reprioritize(log: Log, offsets: Sequence[int], group: str, topic: str, priority: int, delay: float) -> int:
    return _copy(log, acknowledge_here(log, group, topic, offsets), group, topic, priority, delay)


def acknowledge_here(log: Log, group: str, topic: str, offsets: Sequence[int]) -> list[int]:
    """Acknowledge in the caller's transaction, as acknowledge() does; return the offsets that were acked."""
    lock_topic(log, topic)
    messages = _messages(log, group, topic, offsets)
    rows = _waiting(log, group, topic, messages)
    DeliveryState.objects.using(log.alias).filter(pk__in=[row.pk for row in rows]).update(acked=True)
    done = [row.message_offset for row in rows]
    left = [message for message in messages if message.offset not in set(done)]
    for (partition, priority), some in _by_stream(left).items():
        if _unread(log, group, topic, some):
            revoke(log, group, topic, partition, falls=False)
            unread = _unread(log, group, topic, some)  # as the owner has left it
            _add_acked(log, group, topic, partition, priority, unread)
            done += unread
    withdrawing.withdraw(log, topic, group, done)
    return done


def _unread(log: Log, group: str, topic: str, messages: Sequence[Message]) -> list[int]:
    """Return the offsets that are above the claim or in their key's blocked range, and have no row."""
    found = open_in(log, messages, registered_groups(log, [topic], consumer_group=group))
    waits = {offset: one for (offset, _), one in found.items() if one.state in (WAITING, LIMITED)}
    return [offset for offset, one in waits.items() if one.next_attempt_at is None]  # only a row has a time


def _add_acked(log: Log, group: str, topic: str, partition: int, priority: int, offsets: Sequence[int]) -> None:
    if not offsets:
        return
    values: list[object] = []
    for offset in offsets:
        values += (group, topic, partition, priority, offset, NOT_IN_FLIGHT, 0, True)
    rows = ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s, {now})"] * len(offsets))
    text = f"INSERT INTO sqlqueue_delivery_state ({COLUMNS}) VALUES {rows} {log.dialect.ignore(KEY)}"
    log.execute(text, values)
