"""What an operator's move of a group means for batches: members that it reads again are not settled any more, and those
that it skips are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Any

from django.db.models import F, QuerySet

from sqlqueue.database.log import Log, home_log
from sqlqueue.log import layouts
from sqlqueue.log.batch_parts import members
from sqlqueue.models import (
    Batch,
    BatchGroup,
    BatchPart,
    BatchProgress,
    BlockedRange,
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    Topic,
    dead_letter_topic,
)

AT_ONCE = 1_000


def before_move(
    log: Log, group: str, topic: str, partition: int | None, target: int, *, keeps_states: bool = False
) -> None:
    """Count what a move of a group's offset rows (of one partition or all) to `target` changes: before it, in the
    transaction that has locked them.

    keeps_states: a purge, which deletes the states at or below the target and keeps the others; a move does the
    reverse. Counts nothing, with one statement, if no batch that is not over has members of the topic.
    """
    if not _open_with_members(log, topic):
        return
    for row in _offsets(log, group, topic, partition):
        _count(log, group, row, target, keeps_states)


def _open_with_members(log: Log, topic: str) -> bool:
    """Tell whether a batch that is not over has members of a topic: they are on DATABASE."""
    if log != home_log():
        return False
    parts = BatchPart.objects.using(log.alias).filter(topic=topic)
    return parts.filter(batch__in=Batch.objects.using(log.alias).filter(over=False).values("id")).exists()


def _open(log: Log, ids: Collection[str]) -> Iterator[list[str]]:
    """Yield those of these batches that are not over, some at a time."""
    wanted = sorted(ids)
    for start in range(0, len(wanted), AT_ONCE):
        rows = Batch.objects.using(log.alias).filter(over=False, id__in=wanted[start : start + AT_ONCE])
        if found := list(rows.values_list("id", flat=True)):
            yield found


def _offsets(log: Log, group: str, topic: str, partition: int | None) -> Iterator[Offset]:
    """Yield the offset rows of a group; one for each that no process has acquired yet, at the group's start."""
    options = Topic.objects.using(log.alias).get(name=topic)
    start = ConsumerGroup.objects.using(log.alias).get(topic=topic, consumer_group=group).start
    known = {
        (one.partition, one.priority): one
        for one in Offset.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    }
    numbers = layouts.numbers(log, topic) if partition is None else [partition]
    for number, priority in product(numbers, range(options.priorities)):
        new = Offset(topic=topic, consumer_group=group, partition=number, priority=priority, position=start)
        yield known.get((number, priority), new)


def forget_group(log: Log, group: str, topic: str) -> None:
    """Forget what batches that are not over wait for from a group that is removed, in the caller's transaction: also
    those members that are for it alone. A later group of its name is another one, which may not see them."""
    of = {"topic": topic, "consumer_group": group}
    known: list[QuerySet[Any]] = [
        model._default_manager.using(log.alias).filter(**of) for model in (BatchProgress, BatchGroup)
    ]
    known.append(BatchPart.objects.using(log.alias).filter(topic=topic, target_group=group))
    batches = {id for rows in known for id in rows.values_list("batch", flat=True).distinct().order_by()}
    for some in _open(log, batches):
        for rows in known:
            rows.filter(batch__in=some).delete()


def _count(log: Log, group: str, row: Offset, target: int, keeps_states: bool) -> None:
    stream = {"topic": row.topic, "partition": row.partition, "priority": row.priority}
    mine = {**stream, "consumer_group": group}
    acked: Counter[str] = Counter()
    dead: Counter[str] = Counter()
    low = 0 if keeps_states else min(row.position, target)
    high = target if keeps_states else max(row.position, target)
    for found in _members(log, group, stream, low, high):
        offsets = list(found)
        states = DeliveryState.objects.using(log.alias).filter(**mine, message_offset__in=offsets)
        with_row = set(states.values_list("message_offset", flat=True))
        keys = dict(Message.objects.using(log.alias).filter(offset__in=offsets).values_list("offset", "partition_key"))
        blocked = _blocked(log, mine, keys)
        failed = _dead_letters(log, group, row.topic, keys) if target < max(row.position, high) else set()
        for offset, batch in found.items():
            counted = offset <= row.position and offset not in with_row and offset not in blocked
            skipped = offset > row.position and offset not in with_row
            after = offset <= target and (counted or skipped or keeps_states)
            if counted != after:
                died = offset in failed and (counted or keeps_states)  # what is skipped is not
                (dead if died else acked)[batch] += 1 if after else -1
    for batch in sorted(acked | dead | (-acked) | (-dead)):
        _write(log, {**mine, "batch": batch}, acked[batch], dead[batch])


def _members(log: Log, group: str, stream: dict[str, object], low: int, high: int) -> Iterator[dict[int, str]]:
    """Yield the members of batches in (low, high] of a partition that are for a group, some at a time."""
    rows = Message.objects.using(log.alias).filter(**stream, target_group__in=("", group), offset__lte=high)
    while True:
        page = list(rows.filter(offset__gt=low).order_by("offset").values_list("offset", flat=True)[:AT_ONCE])
        if not page:
            return
        if found := members(Message.objects.using(log.alias).filter(offset__in=page).order_by("offset")):
            yield found
        low = page[-1]


def _blocked(log: Log, mine: dict[str, object], keys: Mapping[int, str]) -> set[int]:
    ranges = BlockedRange.objects.using(log.alias).filter(**mine, partition_key__in=set(keys.values()))
    spans = {key: (low, high) for key, low, high in ranges.values_list("partition_key", "low", "high")}
    return {offset for offset, key in keys.items() if key in spans and spans[key][0] < offset <= spans[key][1]}


def _dead_letters(log: Log, group: str, topic: str, keys: Mapping[int, str]) -> set[int]:
    copies = [(dead_letter_topic(topic), f"{group}:{offset}", key) for offset, key in keys.items()]
    return {one.original_offset or 0 for one in Message.objects.using(log.alias).of_ids(copies, "original_offset")}


def _write(log: Log, where: dict[str, object], acked: int, dead: int) -> None:
    rows = BatchProgress.objects.using(log.alias)
    if not rows.filter(**where).update(acked=F("acked") + acked, dead=F("dead") + dead):
        rows.create(**where, acked=acked, dead=dead)
