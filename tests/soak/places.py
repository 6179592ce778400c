"""Numbers of partitions and offsets in a run with shards: each shard has its own, so the checker adds to them which
one it is. Those of the first shard, and of runs without shards, stay as they are."""

from __future__ import annotations

SHARDS = ("a", "b", "c")
ALIASES = {"a": "default", "b": "queue_b", "c": "queue_c"}
PARTITIONS, OFFSETS = 10**6, 10**12  # more than a shard can have in a run


def partition_at(shard: str, partition: int) -> int:
    """Return the number of a shard's partition, unlike any of the others'. shard: "" without shards."""
    return partition + PARTITIONS * _index(shard)


def offset_at(shard: str, offset: int) -> int:
    """Return an offset of a shard, unlike any of the others'."""
    return offset + OFFSETS * _index(shard)


def shard_at(partition: int) -> str:
    """Return the shard of such a number."""
    return SHARDS[partition // PARTITIONS]


def _index(shard: str) -> int:
    return SHARDS.index(shard) if shard else 0


def shard_of_alias(alias: str) -> str:
    """Return the shard of an alias; that of the default one if there are no shards."""
    return next(shard for shard, each in ALIASES.items() if each == alias)
