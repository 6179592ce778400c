"""The progress of deliveries: stored by their consumer process, deleted by their settle.

A stored row has the fencing token of its writer. The writes of a former owner change nothing that its successor has
stored, for tokens only grow; and what it stores where there is nothing yet is not read, for its token is not that of
the offset row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlqueue.core.settle_plan import Attempt, SettlePlan
from sqlqueue.database.clock import moment
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import insert_all

COLUMNS = "topic, consumer_group, message_offset, done, total, note, updated_at, serial, fencing_token"
ROW = "(%s, %s, %s, %s, %s, %s, {now}, %s, %s)"
KEY = "message_offset, consumer_group"
# Of an earlier owner, or an earlier attempt of the same one. The columns that it reads are assigned last.
OLDER = (
    "sqlqueue_progress.fencing_token < {new:fencing_token} OR"
    " (sqlqueue_progress.fencing_token = {new:fencing_token} AND sqlqueue_progress.serial <= {new:serial})"
)
UPDATES = {name: "{new:" + name + "}" for name in COLUMNS.split(", ")[3:]}
CHUNK = 500
# The progress that the present owners of a message have stored. Indexes: the unique (message_offset, group); the offset
# rows' unique (topic, group, partition, priority).
PRESENT = """
    SELECT p.consumer_group, p.done, p.total, p.note, {updated} FROM sqlqueue_progress p
    JOIN sqlqueue_offset o ON o.topic = p.topic AND o.consumer_group = p.consumer_group
    AND o.fencing_token = p.fencing_token
    WHERE p.message_offset = %s AND o."partition" = %s AND o.priority = %s
"""


class Reported(NamedTuple):
    """What a handler says of its progress. total: None if it does not know."""

    done: float
    total: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a handler is: done of total (None: unknown), a note, and when that was stored."""

    done: float
    total: float | None
    note: str
    updated_at: datetime


def store(log: Log, reported: Sequence[tuple[Attempt, Reported]]) -> None:
    """Store the progress of attempts that this process makes. One statement for up to 500."""
    rows = [_values(attempt, one) for attempt, one in reported]
    upsert = log.dialect.upsert(KEY, UPDATES, OLDER)
    insert_all(log, f"sqlqueue_progress ({COLUMNS})", ROW, upsert, rows, CHUNK)


def _values(attempt: Attempt, reported: Reported) -> tuple[object, ...]:
    lease = attempt.lease
    return (lease.ref.topic, lease.ref.group, attempt.offset, *reported, attempt.serial, lease.token)


def delete_settled(log: Log, plans: Iterable[SettlePlan]) -> None:
    """Delete the stored progress of what plans settle, in the current transaction."""
    for plan in plans:
        if not plan.lease.stored_progress:
            continue
        settled = {each.offset for each in plan.settled}
        offsets = sorted(plan.lease.stored_progress & settled)
        for start in range(0, len(offsets), CHUNK):
            some = offsets[start : start + CHUNK]
            text = log.dialect.delete("sqlqueue_progress", "message_offset", len(some), ("consumer_group",))
            log.execute(text, (*some, plan.lease.ref.group))


def present(log: Log, offset: int, partition: int, priority: int) -> dict[str, Progress]:
    """Return the progress of a message in each group whose handler has reported some."""
    text = PRESENT.replace("{updated}", log.dialect.epoch("p.updated_at"))
    rows = log.execute(text, (offset, partition, priority)).fetchall()
    return {
        group: Progress(_number(done), None if total is None else _number(total), note, moment(updated))
        for group, done, total, note, updated in rows
    }


def _number(value: float) -> float:
    """Return whole numbers as such: the column holds floats."""
    return int(value) if float(value).is_integer() else value
