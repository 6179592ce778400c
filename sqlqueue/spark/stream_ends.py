"""A stream's offsets as Spark keeps them in its checkpoint: how far the log of each shard is read. Pure.

All partitions of a shard are read to the same offset, so it says one number for each shard. Without shards it is
{"offset": 4711}, with them {"shards": {"a": 4711, "b": 12}}. A checkpoint of the time before SHARDS is one of
DATABASE's shard, on which existing topics stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlqueue.exceptions import ConfigurationError

Ends = dict[str, int]  # by shard; "" where there is only one
ONE, SEVERAL = "offset", "shards"


def as_offset(ends: Ends) -> dict[str, Any]:
    """Return ends as Spark's offset."""
    return {ONE: ends[""]} if "" in ends else {SEVERAL: dict(sorted(ends.items()))}


def ends_of(offset: Mapping[str, Any], shards: Collection[str], home: str, begin: Mapping[str, int]) -> Ends:
    """Return the ends that an offset says, of these shards; begin: those of shards that it does not know.

    Raises ConfigurationError for an offset of another kind of log.
    """
    if SEVERAL in offset:
        known: Mapping[str, int] = offset[SEVERAL]
        if "" in shards:
            raise ConfigurationError(
                f"the checkpoint is of a log on the shards {', '.join(known)}, and this project has no SHARDS: give "
                "the query a new checkpoint"
            )
    else:
        known = {"" if "" in shards else home: offset[ONE]}
    return {shard: known.get(shard, begin[shard]) for shard in shards}
