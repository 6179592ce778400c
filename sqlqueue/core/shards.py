"""Shards: which one a key belongs to, and the list of a topic's shards as it is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

SEPARATOR = ","  # of the names that a topic's row holds
DIGITS = 15  # of the hexadecimal hash: a number that MySQL's CONV() keeps, too


def shard_of(text: str, shards: Sequence[str]) -> str:
    """Return the shard of a key, or of a keyless message's id, of these, whatever their order.

    The number that begins SHA-256 of its UTF-8 bytes, modulo their count, of the names in their order: what MySQL gives
    as `CAST(CONV(LEFT(SHA2(partition_key, 256), 15), 16, 10) AS UNSIGNED) % n`. A key's partition is its crc32, of
    which this is independent: every partition of a shard has its keys.
    """
    if len(shards) == 1:
        return shards[0]
    number = int(hashlib.sha256(text.encode()).hexdigest()[:DIGITS], 16)
    return sorted(shards)[number % len(shards)]


def numbered(number: int, shard: str) -> str:
    """Return an offset, or another number of one shard's, as part of an id: with the shard's name, if it has one."""
    return f"{shard}:{number}" if shard else str(number)


def as_stored(shards: Sequence[str]) -> str:
    """Return a list of shards as a topic's row holds it."""
    return SEPARATOR.join(sorted(shards))


def from_stored(text: str) -> tuple[str, ...]:
    """Return the list of shards that a topic's row holds; () if it names none."""
    return tuple(text.split(SEPARATOR)) if text else ()
