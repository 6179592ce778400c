"""What became of a message, for each group."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlqueue.core.plan import NOT_IN_FLIGHT
from sqlqueue.models import ConsumerGroup, DeliveryState, Message, Offset, Topic

UNREAD = "unread"  # the group has not come so far
HANDED = "in hand"  # with a handler, or about to be
FAILING = "failing"  # waits for its next attempt
WAITING = "waiting"  # postponed, or behind another message of its key
ACKED = "acked"
DEAD = "dead"
OTHERS = "for another group"


@dataclass(frozen=True, slots=True)
class Fate:
    """state: one of the words above; attempts: as far as they are remembered; due_at: of what waits; letter: the offset
    of the dead letter."""

    group: str
    state: str
    attempts: int = 0
    due_at: datetime | None = None
    error: str = ""
    letter: int | None = None


def fates(alias: str, message: Message) -> list[Fate]:
    """Return what became of a message in every registered group of its topic. Four statements for each."""
    groups = ConsumerGroup.objects.using(alias).filter(topic=message.topic).order_by("consumer_group")
    return [fate(alias, message, group) for group in groups.values_list("consumer_group", flat=True)]


def fate(alias: str, message: Message, group: str) -> Fate:
    """Return what became of a message in a group. A dead letter that was replayed or discarded counts as acked: it was
    settled, and nothing tells them apart any more."""
    if message.target_group not in ("", group):
        return Fate(group, OTHERS)
    mine = {
        "topic": message.topic,
        "consumer_group": group,
        "partition": message.partition,
        "priority": message.priority,
    }
    place = Offset.objects.using(alias).filter(**mine).first()
    # After the offset row: what a settle moves behind the position in between is found there.
    row = DeliveryState.objects.using(alias).filter(**mine, message_offset=message.offset).first()
    if row is not None and not row.acked:
        attempts, error = max(0, row.retry_count), row.last_error or ""
        if row.in_flight != NOT_IN_FLIGHT:
            return Fate(group, HANDED, attempts, None, error)
        return Fate(group, FAILING if attempts else WAITING, attempts, row.invisible_until, error)
    if row is None:
        registered = ConsumerGroup.objects.using(alias).filter(topic=message.topic, consumer_group=group).first()
        start = registered.start if registered else 0
        if message.offset > (place.position if place else start):
            return Fate(group, HANDED if place and message.offset <= place.claimed_to else UNREAD)
    # In whatever partition the dead-letter topic has for this one: a look into its unique key for each.
    partitions = Topic.objects.using(alias).values_list("partitions", flat=True).filter(name=message.topic).first() or 0
    letter = (
        Message.objects.using(alias)
        .dead_letters(group, message.topic)
        .filter(partition__in=range(partitions), message_id=f"{group}:{message.offset}")
        .first()
    )
    if letter is not None:
        return Fate(group, DEAD, letter.failure_count, None, letter.last_error or "", letter.offset)
    return Fate(group, ACKED)
