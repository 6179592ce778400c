"""Tells effects what operators and callers do to messages: that they are settled without an outcome, or to be settled
again. Nothing is read unless an app has registered an effect of messages with a header."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product
from typing import Any, Final

from django.db.models import Max, QuerySet

from sqlqueue.core.effects import of_headers, owner_of, registered, with_header
from sqlqueue.database.log import Log
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log import layouts
from sqlqueue.models import ConsumerGroup, DeliveryState, Message, Offset, ScheduledMessage, Topic

AT_ONCE = 1_000
HARMLESS: Final = frozenset({"priority", "due_at"})  # the columns that make no other message of one


def replaced(log: Log, topic: str, group: str, headers: Any) -> None:
    """A scheduled message with these headers is replaced, in the caller's transaction. group: its target group."""
    for effect in of_headers(headers):
        effect.withdrawn(log, topic, group, [headers])


def withdraw_scheduled(log: Log, numbers: Collection[int], *, owned: bool) -> None:
    """These scheduled messages are deleted, in the caller's transaction. One statement for each effect locks those that
    have it, so that none of them enters the log. owned: some may be in an app's own topics."""
    rows = ScheduledMessage.objects.using(log.alias).filter(pk__in=list(numbers)).select_for_update().order_by("pk")
    withdrawn = [(effect, rows.filter(headers__has_key=effect.header), "headers") for effect in with_header()]
    if owned:
        owners = [effect for effect in registered() if effect.topics]
        withdrawn += [(effect, rows.filter(topic__startswith=effect.topics), "message_id") for effect in owners]
    for effect, its, column in withdrawn:
        by_target: dict[tuple[str, str], list[Any]] = {}
        for topic, group, value in its.values_list("topic", "target_group", column):
            by_target.setdefault((topic, group), []).append(value)
        for (topic, group), values in by_target.items():
            effect.withdrawn(log, topic, group, values)


def scheduled_with_effect(rows: QuerySet[ScheduledMessage]) -> bool:
    """Tell whether one of these scheduled messages has an effect by its headers."""
    return any(rows.filter(headers__has_key=effect.header).exists() for effect in with_header())


def refuse_edit(topic: str, changes: Collection[str]) -> None:
    """Raise InvalidMessage for an edit of a scheduled message that is in an app's own topic: who may correct messages
    may not choose what code runs. changes: the columns."""
    if (owner := owner_of(topic)) is not None and not HARMLESS.issuperset(changes):
        raise InvalidMessage(
            f"only their app publishes in topics that begin with {owner.topics!r}: of a message that waits there, the "
            "time and the priority can be changed; take it back, and let the app publish another one"
        )


def withdraw(log: Log, topic: str, group: str, offsets: Collection[int]) -> None:
    """Messages are settled for a group ("": for all) without an outcome, in the caller's transaction."""
    for effect in with_header():
        effect.withdrawn(log, topic, group, _headers(log, effect.header, offsets))


def give_back(log: Log, topic: str, group: str, offsets: Collection[int]) -> None:
    """Copies of messages, or of dead letters, are published for a group, in the caller's transaction."""
    for effect in with_header():
        effect.returned(log, topic, group, _headers(log, effect.header, offsets))


def before_move(
    log: Log, group: str, topic: str, partition: int | None, target: int, *, keeps_states: bool = False
) -> None:
    """A group's offset rows (of one partition or all) are moved to `target`: called before it, in the transaction that
    has locked them. keeps_states: a purge, which deletes the states at or below the target and keeps the others; a move
    does the reverse."""
    for effect in with_header():
        where = (log, effect.header, group, topic, partition, target, keeps_states)
        skipped = _Headers(_skipped(*where))
        effect.withdrawn(log, topic, group, skipped)
        if skipped.read and not keeps_states:
            effect.returned(log, topic, group, _read_again(*where))


class _Headers:
    """Headers that are read as they are taken. read: they were asked for, so the effect knows the topic."""

    def __init__(self, headers: Iterator[Any]):
        self._headers, self.read = headers, False

    def __iter__(self) -> Iterator[Any]:
        self.read = True
        return self._headers


def _headers(log: Log, header: str, offsets: Collection[int]) -> Iterator[Any]:
    rows = Message.objects.using(log.alias).filter(offset__in=list(offsets), headers__has_key=header).order_by()
    yield from rows.values_list("headers", flat=True)


def _skipped(
    log: Log, header: str, group: str, topic: str, partition: int | None, target: int, keeps_states: bool
) -> Iterator[Any]:
    """Yield the headers of messages up to the target that are not settled, and will be."""
    for row in _offsets(log, group, topic, partition):
        for found in _between(log, header, group, row, row.offset_acked if keeps_states else row.position, target):
            kept = [] if keeps_states else _states(log, row).filter(message_offset__in=list(found))
            with_row = {state.message_offset for state in kept}
            yield from (headers for offset, headers in found.items() if offset not in with_row)


def _read_again(
    log: Log, header: str, group: str, topic: str, partition: int | None, target: int, keeps_states: bool
) -> Iterator[Any]:
    """Yield the headers of messages above the target that may be settled, and will not be."""
    for row in _offsets(log, group, topic, partition):
        last = _states(log, row).aggregate(last=Max("message_offset"))["last"] or 0
        for found in _between(log, header, group, row, target, max(row.position, last)):
            yield from found.values()


def _offsets(log: Log, group: str, topic: str, partition: int | None) -> Iterator[Offset]:
    """Yield the offset rows of a group; one for each that no process has acquired yet, at the group's start."""
    mine = {"topic": topic, "consumer_group": group}
    priorities = Topic.objects.using(log.alias).get(name=topic).priorities
    start = ConsumerGroup.objects.using(log.alias).get(**mine).start
    known = {(one.partition, one.priority): one for one in Offset.objects.using(log.alias).filter(**mine)}
    numbers = layouts.numbers(log, topic) if partition is None else [partition]
    for number, priority in product(numbers, range(priorities)):
        new = Offset(**mine, partition=number, priority=priority, position=start, offset_acked=start)
        yield known.get((number, priority), new)


def _states(log: Log, row: Offset) -> QuerySet[DeliveryState]:
    stream = {"topic": row.topic, "partition": row.partition, "priority": row.priority}
    return DeliveryState.objects.using(log.alias).filter(consumer_group=row.consumer_group, **stream)


def _between(log: Log, header: str, group: str, row: Offset, low: int, high: int) -> Iterator[dict[int, Any]]:
    """Yield the headers of the messages with one of them in (low, high] of a partition that are for a group, by offset,
    some at a time."""
    stream = {"topic": row.topic, "partition": row.partition, "priority": row.priority}
    rows = Message.objects.using(log.alias).filter(**stream, target_group__in=("", group), offset__lte=high)
    while low < high and (
        page := list(rows.filter(offset__gt=low).order_by("offset").values_list("offset", flat=True)[:AT_ONCE])
    ):
        its = Message.objects.using(log.alias).filter(offset__in=page, headers__has_key=header).order_by("offset")
        yield dict(its.values_list("offset", "headers"))
        low = page[-1]
