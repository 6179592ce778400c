"""The last unique message of each key: its row is locked, and then it is looked whether that message is pending.

Pending is what is scheduled, or in the log and not settled by every registered group that gets it; one whose group is
not registered yet waits for it. What has expired is pending only while a handler has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlqueue.core.keys import new_id
from sqlqueue.database import retries
from sqlqueue.database.gate import COLLECTOR, take_duty
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import chunks, insert_all
from sqlqueue.database.transactions import aside

TABLE = "sqlqueue_unique_message"
INTO = f"{TABLE} (digest, topic, partition_key, message_id, published_at)"
ROW = "(%s, %s, %s, %s, {now})"
# Changes nothing where there is a row already, but locks it.
LOCK = {"topic": f"{TABLE}.topic"}
RENEW = {"message_id": "{new:message_id}", "published_at": "{new:published_at}"}
CHUNK = 500
# Of a message in the log, for one group: whether it is still to be delivered, and whether a handler may have it.
ABOVE_OR_BLOCKED = 'CASE WHEN m."offset" > COALESCE(o.position, g.start) OR r.id IS NOT NULL THEN 1 ELSE 0 END'
OPEN = "CASE WHEN s.acked = {false} THEN 1 ELSE 0 END"
CLAIMED = 'CASE WHEN m."offset" > o.position AND m."offset" <= o.claimed_to THEN 1 ELSE 0 END'
# The rows by their digests, and where their messages are: on the schedule, in the log, and there once for each group
# that gets it. One statement, so one moment: a message on its way into the log is in one of them. Indexes: the primary
# key; the unique ones of the ids; those of the group, its offset row, delivery state and blocked range.
LOOK = f"""
    SELECT wanted.digest, wanted.message_id, c.id, m."offset",
    CASE WHEN g.id IS NULL THEN 1 WHEN s.id IS NULL THEN {ABOVE_OR_BLOCKED} ELSE {OPEN} END,
    CASE WHEN m.expires_at IS NULL OR m.expires_at > {{now}} THEN 1 WHEN s.id IS NULL THEN {CLAIMED}
    ELSE s.in_flight END FROM {{given}} {{then}} sqlqueue_unique_message AS wanted ON wanted.digest = given.digest
    LEFT JOIN {{schedule_of_wanted}} AS c
    ON c.topic = wanted.topic AND c.message_id = wanted.message_id AND c.partition_key = wanted.partition_key
    LEFT JOIN {{log_of_wanted}} AS m
    ON m.topic = wanted.topic AND m.message_id = wanted.message_id AND m.partition_key = wanted.partition_key
    LEFT JOIN sqlqueue_consumer_group g
    ON g.topic = m.topic AND (m.target_group = '' OR g.consumer_group = m.target_group)
    LEFT JOIN sqlqueue_offset o
    ON o.topic = g.topic AND o.consumer_group = g.consumer_group AND o."partition" = m."partition"
    AND o.priority = m.priority
    LEFT JOIN sqlqueue_delivery_state s
    ON s.topic = g.topic AND s.consumer_group = g.consumer_group AND s."partition" = m."partition"
    AND s.priority = m.priority AND s.message_offset = m."offset"
    LEFT JOIN sqlqueue_blocked_range r
    ON r.topic = g.topic AND r.consumer_group = g.consumer_group AND r."partition" = m."partition"
    AND r.priority = m.priority AND r.partition_key = m.partition_key
    AND r.low < m."offset" AND r.high >= m."offset"
"""
# The rows in the order of their digests, and whether their messages are not that new. Index: the primary key.
BEYOND = f"SELECT digest, published_at <= {{earlier}} FROM {TABLE} WHERE digest > %s ORDER BY digest LIMIT %s"
LEFT_ALONE = 600.0  # seconds from the publish: keys that are in use keep their rows
MOST_BATCHES = 20  # of CHUNK rows, in one purge


class Pending(NamedTuple):
    """A message that is pending: `scheduled`, or at this offset of the log. age: seconds since it was published with
    unique_for."""

    id: str
    offset: int | None
    scheduled: bool
    age: float


def digest_of(row: LogRow) -> str:
    """Return what names the topic and key of a message in one short column."""
    return hashlib.sha256(f"{row.topic}\0{row.key}".encode()).hexdigest()


def lock(log: Log, rows: Mapping[str, LogRow], named: Collection[str]) -> tuple[dict[str, Pending], set[str]]:
    """Lock the rows of these digests, in the caller's transaction; return which of their messages are pending, by
    digest, and the digests that had no row.

    A digest without a row gets one, with the id that is given. named: digests of which that may be an id of an earlier
    message that was published without unique_for: their rows get the id of no message; all other ids are
    fresh. Waits for transactions that have locked one of them.
    """
    held = _hold(log, {digest: row._replace(id=new_id()) if digest in named else row for digest, row in rows.items()})
    added = {digest for digest, (id, _) in held.items() if id == rows[digest].id and digest not in named}
    known = {digest: one for digest, one in held.items() if digest not in added}
    return _pending_of(log, known), added


def renew(log: Log, rows: Iterable[tuple[str, LogRow]]) -> None:
    """Store these messages as the last ones of their digests, which this transaction has locked."""
    insert_all(log, INTO, ROW, log.dialect.upsert("digest", RENEW), _values(rows), CHUNK)


def _values(rows: Iterable[tuple[str, LogRow]]) -> list[tuple[object, ...]]:
    """In the order of their keys: two publishers with some of them in common wait for each other in one direction."""
    return sorted(((digest, row.topic, row.key, row.id) for digest, row in rows), key=lambda row: row[1:3])


def _hold(log: Log, rows: Mapping[str, LogRow]) -> dict[str, tuple[str, float]]:
    """Lock rows, adding those that are missing; return of each the id of its message, and how many seconds ago that was
    published."""
    found: dict[str, tuple[str, float]] = {}
    syntax = log.dialect
    age = syntax.remaining("published_at")
    for some in chunks(log, _values(rows.items()), CHUNK):
        text = f"INSERT INTO {INTO} VALUES {', '.join([ROW] * len(some))} {syntax.upsert('digest', LOCK)}"
        if not syntax.slotted:
            text += f" RETURNING digest, message_id, {age}"
        cursor = log.execute(text, [value for values in some for value in values])
        if syntax.slotted:  # this reads what was committed last, too: it locks what is locked already
            text = syntax.lock_free(TABLE, "digest", len(some), ("message_id", age))
            cursor = log.execute(text, [digest for digest, *_ in some])
        found.update({digest: (id, -float(left)) for digest, id, left in cursor.fetchall()})
    return found


def _pending_of(log: Log, held: Mapping[str, tuple[str, float]]) -> dict[str, Pending]:
    ages = {digest: age for digest, (_, age) in held.items()}
    found = _look(log, ages, log.execute)
    # InnoDB at REPEATABLE READ: a snapshot may be older than the row that it has just locked.
    newer = {digest: ages[digest] for digest, (id, _) in held.items() if digest not in found or found[digest][0] != id}
    if newer:
        with aside(log) as run:
            found |= _look(log, newer, run)
    return {digest: pending for digest, (_, pending) in found.items() if pending is not None}


def _look(log: Log, ages: Mapping[str, float], run: Callable[[str, Any], Any]) -> dict[str, tuple[str, Pending | None]]:
    """Return of each of these digests the id that its row has in the snapshot that is read, and its message, if that is
    pending. ages: of these messages."""
    found: dict[str, tuple[str, Pending | None]] = {}
    digests = list(ages)
    for start in range(0, len(digests), CHUNK):
        some = digests[start : start + CHUNK]
        text = log.dialect.joined("given", ("digest",), len(some), LOOK)
        for digest, id, number, offset, unsettled, may_run in run(text, some).fetchall():
            pending = found.get(digest, (id, None))[1]
            if number is not None or (offset is not None and unsettled and may_run):
                pending = Pending(id, offset, offset is None, ages[digest])
            found[digest] = id, pending
    return found


# -- deleting ---------------------------------------------------------------------------------------------------------


class Purged(NamedTuple):
    """How many rows were deleted, and where the next purge goes on, "" at the beginning."""

    rows: int
    beyond: str


def purge(log: Log, beyond: str, stop: Callable[[], bool] = lambda: False) -> Purged:
    """Delete rows whose messages are not pending any more, of the next MOST_BATCHES * CHUNK rows behind a digest.

    It waits for no publisher, and one that waits for it adds the row again. One process at a time.
    """
    total = 0
    for _ in range(MOST_BATCHES):
        if stop():
            break
        found = log.execute(BEYOND, (round(LEFT_ALONE * 1_000_000), beyond, CHUNK)).fetchall()
        if old := [digest for digest, old_enough in found if old_enough]:
            total += retries.run(log, _purge, log, old)
        beyond = found[-1][0] if len(found) == CHUNK else ""
        if not beyond:
            break
    return Purged(total, beyond)


def _purge(log: Log, digests: Sequence[str]) -> int:
    if not take_duty(log, COLLECTOR):
        return 0
    free = log.execute(log.dialect.lock_free(TABLE, "digest", len(digests)), digests).fetchall()
    still = _look(log, {digest: 0.0 for (digest,) in free}, log.execute) if free else {}
    if over := [digest for (digest,) in free if digest not in still or still[digest][1] is None]:
        log.execute(log.dialect.delete(TABLE, "digest", len(over)), over)
    return len(over)
