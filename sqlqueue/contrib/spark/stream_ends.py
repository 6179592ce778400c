"""A stream's offsets as Spark keeps them in its checkpoint: how far the log of each database is read. Pure.

All partitions of a database are read to the same offset, so it says one number for each database: {"databases": {"a":
4711, "b": 12}, "checkpoint": …}. The checkpoint's identity is what its first offset gets and all others repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Ends = dict[str, int]  # by database


def as_offset(ends: Ends, checkpoint: str) -> dict[str, Any]:
    """Return ends as Spark's offset, with the checkpoint's identity."""
    return {"databases": dict(sorted(ends.items())), "checkpoint": checkpoint}


def checkpoint_of(offset: Mapping[str, Any]) -> str:
    """Return the identity of the checkpoint that an offset is of."""
    return str(offset["checkpoint"])


def ends_of(offset: Mapping[str, Any], begin: Mapping[str, int]) -> Ends:
    """Return the ends that an offset says, of the databases of `begin`, which are those that it does not know."""
    known: Mapping[str, int] = offset["databases"]
    return {database: known.get(database, first) for database, first in begin.items()}
