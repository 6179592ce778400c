"""The rows that say where a topic's keys go, which change of them is under way on a database, and how far it is; its
steps are taken by operations.repartition."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlqueue.database import turning
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.generations import EPOCH_SLOTS, Block
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.insert_sql import SLOTS
from sqlqueue.database.log import Log
from sqlqueue.log import layouts
from sqlqueue.models import EpochSlot, Layout

GATE: Final = "publishers"
KEYS: Final = "keys"
END: Final = "end"
LAST: Final = "publishers again"
TRANSACTIONS: Final = "transactions"


class Change(NamedTuple):
    """A topic's change from an epoch to a later one, as of its newest layout. going: publishers go over; else they all
    have, or none of them will."""

    topic: str
    generation: int
    earlier: Block
    later: Block
    going: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step has met: `left` of `of` rows, or transactions, of a stage are still to be turned, or to end."""

    stage: str
    left: int
    of: int


def under_way(log: Log) -> Change | None:
    """Return the change that is under way on a database; None if there is none. One statement then."""
    topic = EpochSlot.objects.using(log.alias).values_list("topic", flat=True).first()
    if topic is None:
        return None
    layouts = Layout.objects.using(log.alias).filter(topic=topic).order_by("-generation")
    last = layouts.values_list("generation", "phase", "epoch", "base", "partitions").first()
    if last is None:  # the topic was dropped between the two looks
        return None
    generation, phase, later = last[0], last[1], Block(*last[2:])
    if phase == Layout.STEADY and log.dialect.slotted:
        return Change(topic, generation, later, later, False)  # all slots are in the epoch that remains
    before = layouts.filter(phase=Layout.STEADY).exclude(epoch=later.epoch)
    return Change(topic, generation, Block(*before.values_list("epoch", "base", "partitions")[0]), later, True)


def standing(log: Log, change: Change) -> Progress:
    """Return what a change waits for, by what the tables say."""
    if log.dialect.slotted:
        return _slotted(log, change)
    return Progress(GATE if turning.newest_generation(log) < change.generation else TRANSACTIONS, 1, 1)


def _slotted(log: Log, change: Change) -> Progress:
    behind = len(turning.behind(log, turning.GATE_ROWS, change.generation))
    if behind or not change.going:
        return Progress(GATE if change.going else LAST, behind, SLOTS)
    unturned = len(turning.behind(log, turning.KEY_SLOTS, change.topic, change.later.epoch))
    return Progress(KEYS, unturned, EPOCH_SLOTS) if unturned else Progress(END, 1, 1)


def may_abort(log: Log, change: Change) -> bool:
    """Tell whether a change of a topic's partitions may be taken back still: none of its keys has gone over."""
    if not change.going or not log.dialect.slotted:
        return False
    return not EpochSlot.objects.using(log.alias).filter(topic=change.topic, epoch=change.later.epoch).exists()


# Generations of one database differ by chance: one that a failover has lost is not taken for the next one.
FURTHER: Final = 10_000


def later_block(log: Log, topic: str, partitions: int) -> Block:
    """Return the block of a topic's further epoch; its first epoch gets a row with that. Raises ConfigurationError if
    there is no such topic."""
    first, *others = layouts.epochs(log, topic, retired=True)
    if not others:
        block = Block(0, 0, first.partitions)
        Layout.objects.using(log.alias).create(topic=topic, generation=0, phase=Layout.STEADY, **block._asdict())
    last = others[-1] if others else first
    return Block(last.number + 1, last.base + last.partitions, partitions)


def insert_turning(log: Log, topic: str, present: int, later: Block) -> None:
    """Insert a layout to which the keys of the present epoch are about to go over, and their slots (MySQL)."""
    Layout.objects.using(log.alias).create(topic=topic, generation=_next(log), phase=Layout.TURNING, **later._asdict())
    EpochSlot.objects.using(log.alias).bulk_create(
        [EpochSlot(topic=topic, slot=slot, epoch=present) for slot in range(EPOCH_SLOTS)]
    )


def _next(log: Log) -> int:
    return max(turning.newest_generation(log), turning.newest_layout(log)) + random.randint(1, FURTHER)


def write_end(log: Log, topic: str, epoch: int) -> None:
    """Store the end of an epoch, if it has none: to it no publisher can add any more, and all of it is visible."""
    rows = Layout.objects.using(log.alias).filter(topic=topic, epoch=epoch, end=None)
    if rows.exists():
        rows.update(end=highest_offset(log))


def stay(log: Log, change: Change) -> None:
    """Let the earlier epoch remain. The later one never was."""
    add(log, change.topic, change.earlier)
    never = Layout.objects.using(log.alias).filter(topic=change.topic, epoch=change.later.epoch)
    never.update(end=0, retired_at=DatabaseNow())


def add(log: Log, topic: str, block: Block) -> int:
    """Let a block be the topic's steady layout from a new generation on; return that."""
    generation = _next(log)
    Layout.objects.using(log.alias).create(topic=topic, generation=generation, phase=Layout.STEADY, **block._asdict())
    return generation
