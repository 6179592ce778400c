"""Generations: which partitions publishers put the topics' keys into, and since when.

A publish statement says by which generation of the layouts its rows were placed, and adds nothing where another one is
in force (see insert_sql). Then its publisher learns that one and places them anew. What a generation means never
changes, so what is known of one stays true.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

EPOCH_SLOTS = 64  # the parts of a topic's keys that go over to a new epoch one after another (MySQL)
STEADY, TURNING = "steady", "turning"

# The generation in force, and whether a server is named. MySQL: of a row of the gate, which stays locked until the
# transaction ends. PostgreSQL: a sequence, of which every snapshot sees the present value. Index: the primary key.
PRESENT = {
    "mysql": "SELECT generation, writer <> '' FROM sqlqueue_publish_gate WHERE slot = %s{share}",
    "sqlite": "SELECT generation, 0 FROM sqlqueue_publish_gate WHERE slot = 0",
    "postgresql": "SELECT last_value, 0 FROM sqlqueue_generation",
}
# Tables of a few rows; index of the first: the unique key of (topic, generation).
LAYOUTS = """
    SELECT topic, epoch, phase, partitions, base FROM sqlqueue_layout WHERE generation <= %s ORDER BY topic, generation
"""
TURNED = "SELECT slot FROM sqlqueue_epoch_slot WHERE topic = %s AND epoch = %s"


class Block(NamedTuple):
    """The partition numbers of an epoch."""

    epoch: int
    base: int
    partitions: int


class Placing(NamedTuple):
    """Where a topic's keys go. earlier: where those of a slot go until that has turned; None if all have."""

    block: Block
    earlier: Block | None = None


class Known(NamedTuple):
    """What a publisher knows: the topics that have a layout as of this generation, and, while one of them is turning,
    which of its slots have turned. named: the gate names a server, see writer."""

    generation: int = 0
    placings: Mapping[str, Placing] = {}
    turning: str = ""
    turned: frozenset[int] = frozenset()
    named: bool = False


class Condition(NamedTuple):
    """The slot of a topic that is turning, and the epoch that it must be in."""

    topic: str
    slot: int
    epoch: int


FIRST = Known()  # what holds until a topic is altered: each has the partitions of its own row
Reads = Callable[[str, Sequence[object]], Sequence[Sequence[Any]]]


def placed(rows: Sequence[Any], known: Known) -> tuple[Sequence[Any], list[Condition]]:
    """Return rows in the partitions that they belong to, and the conditions under which that is true. Rows of topics
    that were never altered stay as they are."""
    if not any(row[0] in known.placings for row in rows):
        return rows, []
    conditions: set[Condition] = set()
    return [_placed(row, known, conditions) for row in rows], sorted(conditions)


def _placed(row: Any, known: Known, conditions: set[Condition]) -> Any:
    topic, _, _, key, id, *_ = row
    placing = known.placings.get(topic)
    if placing is None:
        return row
    crc = zlib.crc32((key or id).encode())
    block = placing.block
    if placing.earlier is not None:
        slot = crc // EPOCH_SLOTS % EPOCH_SLOTS  # not by the bits that choose the partition
        if slot not in known.turned:
            block = placing.earlier
        conditions.add(Condition(topic, slot, block.epoch))
    return row._replace(partition=block.base + crc % block.partitions)


def as_of(generation: int, named: bool, run: Reads) -> Known:
    """Return what a generation means. named: the gate names a server; run: runs a statement and returns its rows, those
    of now, whatever the caller's snapshot."""
    if not generation:
        return Known(named=named)
    placings: dict[str, Placing] = {}
    for topic, epoch, phase, partitions, base in run(LAYOUTS, (generation,)):
        earlier = placings[topic].block if phase == TURNING else None
        placings[topic] = Placing(Block(epoch, base, partitions), earlier)
    turning = next((topic for topic, placing in placings.items() if placing.earlier is not None), "")
    if not turning:
        return Known(generation, placings, named=named)
    turned = run(TURNED, (turning, placings[turning].block.epoch))
    return Known(generation, placings, turning, frozenset(slot for (slot,) in turned), named)
