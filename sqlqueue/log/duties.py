"""Duties that one process of all does now and then: what they cost does not grow with the processes."""

from __future__ import annotations

from sqlqueue.database.log import Log
from sqlqueue.models.subscriber import AHEAD

COLLECT, SURVEY = "collect", "survey"

# One that was begun before the clock was set back is due, too. Index: the primary key.
DUE = "began_at <= {earlier} OR began_at > {later}"
LOOK = f"SELECT CASE WHEN {DUE} THEN 1 ELSE 0 END FROM sqlqueue_duty WHERE name = %s"
# Does not wait for another process that begins it: of hundreds that have seen it due, one writes.
TAKE = f"SELECT name FROM sqlqueue_duty WHERE name = %s AND ({DUE}){{skip}}"
BEGIN = f"UPDATE sqlqueue_duty SET began_at = {{now}} WHERE name = %s AND ({DUE})"


def begin(log: Log, name: str, rest: float) -> bool:
    """Tell whether this process is to do a duty now: none has begun it in the last `rest` seconds. Then it counts as
    begun.

    One statement for every process that need not. A process that is killed at it leaves it to the next one that asks
    after that time.
    """
    times = (round(rest * 1_000_000), round(AHEAD.total_seconds() * 1_000_000))
    row = log.execute(LOOK, (*times, name)).fetchone()
    if row is None:
        return bool(
            log.insert_missing("sqlqueue_duty (name, began_at)", "(%s, {now})", {name: (name,)}, "name", "name")
        )
    if not row[0]:
        return False
    with log.atomic():
        taken = log.execute(TAKE, (name, *times)).fetchone()
        return taken is not None and bool(log.execute(BEGIN, (name, *times)).rowcount)
