"""Numbers of partitions and offsets in a run with databases: each database has its own, so the checker adds to them
which one it is. Those of the first database, and of runs without databases, stay as they are."""

from __future__ import annotations

ALIASES = ("default", "queue_b", "queue_c")
PARTITIONS, OFFSETS = 10**6, 10**12  # more than a database can have in a run


def partition_at(database: str, partition: int) -> int:
    """Return the number of a database's partition, unlike any of the others'. database: "" without databases."""
    return partition + PARTITIONS * _index(database)


def offset_at(database: str, offset: int) -> int:
    """Return an offset of a database, unlike any of the others'."""
    return offset + OFFSETS * _index(database)


def database_at(partition: int) -> str:
    """Return the database of such a number."""
    return ALIASES[partition // PARTITIONS]


def _index(database: str) -> int:
    return ALIASES.index(database) if database else 0
