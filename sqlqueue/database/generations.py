"""Generations: which partitions publishers put the topics' keys into, and since when.

A publish statement says by which generation of the layouts its rows were placed, and adds nothing where another one is
in force (see insert_sql). Then its publisher learns that one and places them anew. What a generation means never
changes, so what is known of one stays true.

Where a topic's keys go over to other shards, a generation also says which of them are still here: see `Moved`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlqueue.core.shards import Lists, lists_from, shard_of
from sqlqueue.exceptions import InvalidMessage

EPOCH_SLOTS = 64  # the parts of a topic's keys that go over to a new epoch one after another (MySQL)
STEADY, TURNING = "steady", "turning"

# The generation in force. MySQL: that of a row of the gate, which stays locked until the transaction ends. PostgreSQL:
# a sequence, of which every snapshot sees the present value. Index: the primary key.
OF_SLOT = "SELECT generation FROM sqlqueue_publish_gate WHERE slot = %s{share}"
PRESENT = {
    "sqlite": "SELECT generation FROM sqlqueue_publish_gate WHERE slot = 0",
    "postgresql": "SELECT last_value FROM sqlqueue_generation",
}
NOT_FOR_US = -1  # the generation of the row that only former versions read, see refuse_former_publishers
# Tables of a few rows; index of the first: the unique key of (topic, generation).
LAYOUTS = f"""
    SELECT topic, epoch, phase, partitions, base, shards, shard FROM sqlqueue_layout
    WHERE generation > {NOT_FOR_US} AND generation <= %s ORDER BY topic, generation
"""
TURNED = "SELECT slot FROM sqlqueue_epoch_slot WHERE topic = %s AND epoch = %s"


class Moved(InvalidMessage):
    """A message belongs to another shard, or may: its publisher has to choose one anew, by what this process has
    learned meanwhile of the topic's layout."""

    def __init__(self, topic: str, key: str):
        what = f"key {key!r}" if key else "a message without a key"
        super().__init__(
            f"{what} of topic {topic!r} has moved to another shard, with which the open transaction does not commit:"
            " use publish_on_commit, or relay=True; or publish it once more"
        )


class Block(NamedTuple):
    """The partition numbers of an epoch."""

    epoch: int
    base: int
    partitions: int


class Placing(NamedTuple):
    """Where a topic's keys go. earlier: where those of a slot go until that has turned; None if all have. lists: the
    shards over which the keys have been spread, the last ones with this block; empty if they never were over others;
    former: the same with the earlier block; here: this shard's name."""

    block: Block
    earlier: Block | None = None
    lists: Lists = ()
    former: Lists = ()
    here: str = ""

    @property
    def going_over(self) -> bool:
        """Whether keys are going over to other shards."""
        return self.earlier is not None and len(self.former) < len(self.lists)

    def version(self, turned: bool) -> int:
        """Return the version of the list of shards that holds for keys that were here. turned: their slot has."""
        if self.going_over and not turned:
            return len(self.lists) - 2
        return max(len(self.lists) - 1, 0)


class Known(NamedTuple):
    """What a publisher knows: the topics that have a layout as of this generation, and, while one of them is turning,
    which of its slots have turned. named: the gate names a server, see named_server."""

    generation: int = 0
    placings: Mapping[str, Placing] = {}
    turning: str = ""
    turned: frozenset[int] = frozenset()
    named: bool = False

    @property
    def stored(self) -> int:
        """The generation as the gate's rows have it."""
        return stored(self.generation) if self.named else self.generation

    def has_turned(self, topic: str, text: str) -> bool:
        """Tell whether the slot of a key, or of a keyless message's id, has turned, if its topic is turning."""
        placing = self.placings.get(topic)
        if placing is None or placing.earlier is None:
            return True
        return slot_of(zlib.crc32(text.encode())) in self.turned


class Condition(NamedTuple):
    """The slot of a topic that is turning, and the epoch that it must be in."""

    topic: str
    slot: int
    epoch: int


FIRST = Known()  # what holds until a topic is altered: each has the partitions of its own row
Reads = Callable[[str, Sequence[object]], Sequence[Sequence[Any]]]


def stored(generation: int) -> int:
    """Return a generation as the rows of a gate have it that names a server: below 0, so that the statements of those
    who do not know about that are refused."""
    return -1 - generation


def read(stored: int) -> int:
    """Return the generation of a row of the gate, whether that names a server or not."""
    return -1 - stored if stored < 0 else stored


def placed(
    rows: Sequence[Any], known: Known, named: bool = False, sure: bool = True
) -> tuple[Sequence[Any], list[Condition]]:
    """Return rows in the partitions that they belong to, and the conditions under which that is true. Rows of topics
    that were never altered stay as they are.

    Raises Moved for a row of another shard. sure: the shard was chosen with all this in mind. Else also for rows that
    this shard alone cannot say it of: where they belong by an earlier list, or have ids of their own (`named`) and no
    key.
    """
    if not any(row[0] in known.placings for row in rows):
        return rows, []
    conditions: set[Condition] = set()
    return [_placed(row, known, conditions, named, sure) for row in rows], sorted(conditions)


def _placed(row: Any, known: Known, conditions: set[Condition], named: bool, sure: bool) -> Any:
    topic, _, _, key, id, *_ = row
    placing = known.placings.get(topic)
    if placing is None:
        return row
    crc = zlib.crc32((key or id).encode())
    slot = slot_of(crc)
    block, conditional = placing.block, placing.earlier is not None
    if placing.earlier is not None and slot not in known.turned:
        block = placing.earlier
    if placing.lists:
        was_here, is_here = _is_here(placing, key)
        if not sure and (not was_here or (named and not key)):
            raise Moved(topic, key)
        if placing.going_over and not was_here:  # its slot says nothing: it is another shard that has let it go
            block, conditional = placing.block, False
        if block == placing.block and not is_here:
            raise Moved(topic, key)
    if conditional:
        conditions.add(Condition(topic, slot, block.epoch))
    return row._replace(partition=block.base + crc % block.partitions)


def _is_here(placing: Placing, key: str) -> tuple[bool, bool]:
    """Tell whether a key belongs here by the list before the present one, and by that. One that is none, to any."""
    before, now = placing.lists[-2:] if len(placing.lists) > 1 else (placing.lists[-1],) * 2
    if not key:
        return placing.here in before, placing.here in now
    return shard_of(key, before) == placing.here, shard_of(key, now) == placing.here


def slot_of(crc: int) -> int:
    """Return the slot of a key, by its crc32: not by the bits that choose its partition."""
    return crc // EPOCH_SLOTS % EPOCH_SLOTS


def as_of(found: int, run: Reads) -> Known:
    """Return what a row of the gate means that has this generation. run: runs a statement and returns its rows, those
    of now, whatever the caller's snapshot."""
    generation, named = read(found), found < 0
    if not generation:
        return Known(named=named)
    placings: dict[str, Placing] = {}
    for topic, epoch, phase, partitions, base, shards, here in run(LAYOUTS, (generation,)):
        before = placings[topic] if phase == TURNING else None
        placings[topic] = Placing(
            Block(epoch, base, partitions),
            None if before is None else before.block,
            lists_from(shards),
            () if before is None else before.lists,
            here,
        )
    turning = next((topic for topic, placing in placings.items() if placing.earlier is not None), "")
    if not turning:
        return Known(generation, placings, named=named)
    turned = run(TURNED, (turning, placings[turning].block.epoch))
    return Known(generation, placings, turning, frozenset(slot for (slot,) in turned), named)
