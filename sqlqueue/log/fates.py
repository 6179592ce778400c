"""What became of a message, for each group."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlqueue.core.plan import NOT_IN_FLIGHT
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, Message, Offset, Topic, dead_letter_topic

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
    """Return what became of a message in every registered group of its topic. Six statements, however many groups."""
    groups = ConsumerGroup.objects.using(alias).filter(topic=message.topic).order_by("consumer_group")
    return _fates(alias, message, dict(groups.values_list("consumer_group", "start")))


def fate(alias: str, message: Message, group: str) -> Fate:
    """Return what became of a message in a group. A dead letter that was replayed or discarded counts as acked: it was
    settled, and nothing tells them apart any more."""
    groups = ConsumerGroup.objects.using(alias).filter(topic=message.topic, consumer_group=group)
    return _fates(alias, message, {group: groups.values_list("start", flat=True).first() or 0})[0]


def _fates(alias: str, message: Message, starts: dict[str, int]) -> list[Fate]:
    """starts: groups, with the offset that each began at."""
    its = [group for group in starts if message.target_group in ("", group)]
    stream = {"topic": message.topic, "partition": message.partition, "priority": message.priority}
    offsets = Offset.objects.using(alias).filter(**stream, consumer_group__in=its)
    places = {place.consumer_group: place for place in offsets}
    # After the offset rows: what a settle moves behind the position in between is found there. What is taken up from a
    # range in between has a row; so the ranges come before the rows.
    ranges = BlockedRange.objects.using(alias).covering([message.offset], message.partition_key)
    blocked = set(ranges.filter(**stream, consumer_group__in=its).values_list("consumer_group", flat=True))
    states = DeliveryState.objects.using(alias).filter(**stream, consumer_group__in=its, message_offset=message.offset)
    rows = {row.consumer_group: row for row in states}
    found = {
        group: _open(message, group, starts[group], places.get(group), rows.get(group), group in blocked)
        for group in its
    }
    letters = _letters(alias, message, [group for group in its if found[group] is None])
    return [
        Fate(group, OTHERS) if group not in found else found[group] or _settled(group, letters.get(group))
        for group in starts
    ]


def _open(
    message: Message, group: str, start: int, place: Offset | None, row: DeliveryState | None, blocked: bool
) -> Fate | None:
    """What is not settled yet; None: it is. blocked: its key's range covers it."""
    if row is not None and not row.acked:
        attempts, error = max(0, row.retry_count), row.last_error or ""
        if row.in_flight != NOT_IN_FLIGHT:
            return Fate(group, HANDED, attempts, None, error)
        return Fate(group, FAILING if attempts else WAITING, attempts, row.invisible_until, error)
    if row is None and message.offset > (place.position if place else start):
        return Fate(group, HANDED if place and message.offset <= place.claimed_to else UNREAD)
    return Fate(group, WAITING) if row is None and blocked else None


def _settled(group: str, letter: Message | None) -> Fate:
    if letter is None:
        return Fate(group, ACKED)
    return Fate(group, DEAD, letter.failure_count, None, letter.last_error or "", letter.offset)


def _letters(alias: str, message: Message, groups: list[str]) -> dict[str, Message]:
    """The dead letters of a message. In whatever partition the dead-letter topic has for this one: a look into its
    unique key for each."""
    graveyard = dead_letter_topic(message.topic)
    names = Topic.objects.using(alias).filter(name=graveyard)
    partitions = names.values_list("partitions", flat=True).first() if groups else None
    if not partitions:
        return {}
    letters = (
        Message.objects.using(alias)
        .dead_letters(topic=message.topic)
        .filter(partition__in=range(partitions), message_id__in=[f"{group}:{message.offset}" for group in groups])
        .only("offset", "failed_group", "failure_count", "last_error")
    )
    return {letter.failed_group: letter for letter in letters}
