"""The databases of a topic: which one a key belongs to, and their list as it is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

SEPARATOR = ","  # of the aliases that a topic's row holds
DIGITS = 15  # of the hexadecimal hash: a number that MySQL's CONV() keeps, too


def database_of(text: str, databases: Sequence[str]) -> str:
    """Return the alias of the database of a key, or of a keyless message's id, of these, whatever their order.

    The number that begins SHA-256 of its UTF-8 bytes, modulo their count, of the aliases in their order: what MySQL
    gives as `CAST(CONV(LEFT(SHA2(partition_key, 256), 15), 16, 10) AS UNSIGNED) % n`. A key's partition is its crc32,
    of which this is independent: every partition of each database has its keys.
    """
    if len(databases) == 1:
        return databases[0]
    number = int(hashlib.sha256(text.encode()).hexdigest()[:DIGITS], 16)
    return sorted(databases)[number % len(databases)]


def numbered(number: int, database: str) -> str:
    """Return an offset, or another number of one log's, as part of an id: with the database's alias, if it is given."""
    return f"{database}:{number}" if database else str(number)


def as_stored(databases: Sequence[str]) -> str:
    """Return the databases of a topic as its row holds them: nothing of a single one, whose alias is each project's
    own."""
    return SEPARATOR.join(sorted(databases)) if len(databases) > 1 else ""
