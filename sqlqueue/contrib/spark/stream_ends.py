"""A stream's offsets as Spark keeps them in its checkpoint: how far the log of each database is read. Pure.

All partitions of a database are read to the same offset, so it says one number for each database. Without databases it
is {"offset": 4711}, with them {"databases": {"a": 4711, "b": 12}}. One of a time when there was one log is
DATABASE's. Beside it stands the checkpoint's identity, which its first offset
gets and all others repeat; one of an earlier version has none until its next batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlqueue.exceptions import ConfigurationError

Ends = dict[str, int]  # by database; "" where there is only one
ONE, SEVERAL, CHECKPOINT = "offset", "databases", "checkpoint"


def as_offset(ends: Ends, checkpoint: str = "") -> dict[str, Any]:
    """Return ends as Spark's offset, with the checkpoint's identity."""
    offset: dict[str, Any] = {ONE: ends[""]} if "" in ends else {SEVERAL: dict(sorted(ends.items()))}
    return {**offset, CHECKPOINT: checkpoint} if checkpoint else offset


def checkpoint_of(offset: Mapping[str, Any]) -> str:
    """Return the identity of the checkpoint that an offset is of; "" if it has none."""
    return str(offset.get(CHECKPOINT, ""))


def ends_of(offset: Mapping[str, Any], databases: Collection[str], home: str, begin: Mapping[str, int]) -> Ends:
    """Return the ends that an offset says, of these databases; begin: those of databases that it does not know.

    Raises ConfigurationError for an offset of another kind of log.
    """
    if SEVERAL in offset:
        known: Mapping[str, int] = offset[SEVERAL]
        if "" in databases:
            raise ConfigurationError(
                f"the checkpoint is of a log on the databases {', '.join(known)}, and this project has one log: give "
                "the query a new checkpoint and a new output folder"
            )
    else:
        known = {"" if "" in databases else home: offset[ONE]}
    return {database: known.get(database, begin[database]) for database in databases}
