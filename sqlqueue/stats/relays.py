"""Counts what waits for its way from one shard to each other one."""

from __future__ import annotations

from dataclasses import dataclass

from sqlqueue.conf import settings
from sqlqueue.database.statements import dialect, execute
from sqlqueue.stats import sampling

# The first ones of a shard, and the seconds since the oldest of them. Index: (refused, shard, id).
RELAYED = """
    SELECT %s, COUNT(*), MIN({left}) FROM (SELECT created_at FROM sqlqueue_relayed_message
    WHERE refused = %s AND shard = %s ORDER BY id LIMIT %s) AS relayed
"""


@dataclass(frozen=True, slots=True)
class RelaySurvey:
    """What waits for its way to a shard: how many messages, and how many that it refuses, up to 10,000 of each; age:
    seconds since the oldest that waits was published, 0 for none."""

    shard: str
    waiting: int
    refused: int
    age: float


def relays_from(alias: str) -> tuple[RelaySurvey, ...]:
    """Return what waits on a shard for each other one; nothing without SHARDS. One statement."""
    here = settings.shard_name(alias)
    others = [name for name in settings.shards if name != here]
    if not here or not others:
        return ()
    syntax = dialect(alias)
    select = syntax.branch.format(RELAYED.replace("{left}", syntax.remaining("created_at")).strip())
    values: list[object] = []
    for number, name in enumerate(others):
        for refused in (False, True):
            values += [2 * number + refused, refused, name, sampling.MOST_ROWS]
    rows = execute(alias, " UNION ALL ".join([select] * 2 * len(others)), values).fetchall()
    counts = {number: (count, left) for number, count, left in rows}
    found = []
    for number, name in enumerate(others):
        waiting, left = counts[2 * number]
        found.append(RelaySurvey(name, waiting, counts[2 * number + 1][0], max(0.0, -float(left or 0))))
    return tuple(found)
