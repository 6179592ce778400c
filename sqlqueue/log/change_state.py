"""Which change of a topic's partitions or shards is under way on a database, and how far it is.

operations.repartition and operations.reshard take its steps; what is here only looks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlqueue.database import turning
from sqlqueue.database.generations import EPOCH_SLOTS, Block
from sqlqueue.database.insert_sql import SLOTS
from sqlqueue.database.statements import dialect
from sqlqueue.models import EpochSlot, Layout

GATE: Final = "publishers"
KEYS: Final = "keys"
END: Final = "end"
LAST: Final = "publishers again"
OTHERS: Final = "shards"
TABLE: Final = "table"
TRANSACTIONS: Final = "transactions"


class Change(NamedTuple):
    """A topic's change from an epoch to a later one, as of its newest layout. going: publishers go over; else they all
    have, or none of them will; shards: the lists of shards of the later epoch if its keys go over to others, see
    core.shards; announced: no key has gone over, for not all shards are known to be ready."""

    topic: str
    generation: int
    earlier: Block
    later: Block
    going: bool
    shards: str = ""
    announced: bool = False


class Progress(NamedTuple):
    """What a step has met: `left` of `of` rows, or transactions, of a stage are still to be turned, or to end."""

    stage: str
    left: int
    of: int


def under_way(alias: str) -> Change | None:
    """Return the change that is under way on a database; None if there is none. One statement then."""
    topic = EpochSlot.objects.using(alias).values_list("topic", flat=True).first()
    if topic is None:
        return None
    layouts = Layout.objects.using(alias).filter(topic=topic).order_by("-generation")
    last = layouts.values_list("generation", "phase", "shards", "epoch", "base", "partitions").first()
    if last is None:  # the topic was dropped between the two looks
        return None
    generation, phase, shards, later = last[0], last[1], last[2], Block(*last[3:])
    steady = phase == Layout.STEADY
    if steady and (dialect(alias).slotted or layouts.filter(epoch__gt=later.epoch).exists()):
        return Change(topic, generation, later, later, False)  # all slots are in the epoch that remains
    before = layouts.filter(phase=Layout.STEADY).exclude(epoch=later.epoch)
    former, *earlier = before.values_list("shards", "epoch", "base", "partitions")[0]
    spread = shards if shards != former else ""
    announced = bool(spread) and not steady
    return Change(topic, generation, Block(*earlier), later, True, spread, announced)


def standing(alias: str, change: Change, closing: bool) -> Progress:
    """Return what a change waits for, by what the tables say. closing: of its shards: keys may go over."""
    if dialect(alias).slotted:
        return _slotted(alias, change, closing)
    if turning.newest_generation(alias) < change.generation:
        return Progress(GATE if change.going else LAST, 1, 1)
    if not change.going:
        return Progress(LAST, 0, 1)
    if change.announced:
        return Progress(KEYS if closing else OTHERS, 1, 1)
    return Progress(TRANSACTIONS if dialect(alias).gated else END, 1, 1)


def _slotted(alias: str, change: Change, closing: bool) -> Progress:
    behind = len(turning.gate_rows_behind(alias, change.generation))
    if behind or not change.going:
        return Progress(GATE if change.going else LAST, behind, SLOTS)
    if change.shards and not closing:
        return Progress(OTHERS, 1, 1)
    unturned = len(turning.slots_unturned(alias, change.topic, change.later.epoch))
    return Progress(KEYS, unturned, EPOCH_SLOTS) if unturned else Progress(END, 1, 1)


def may_abort(alias: str, change: Change) -> bool:
    """Tell whether a change of a topic's partitions may be taken back still: none of its keys has gone over."""
    if not change.going or not dialect(alias).slotted:
        return False
    return not EpochSlot.objects.using(alias).filter(topic=change.topic, epoch=change.later.epoch).exists()
