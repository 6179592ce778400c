"""Adding messages to the log over Django's connections, through the publish gate, in one statement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from django.db import IntegrityError

from sqlqueue.database import insert_sql
from sqlqueue.database.error_codes import is_refusal
from sqlqueue.database.forwarding import GateElsewhere, any_forwarded, forward
from sqlqueue.database.generations import PRESENT, Known, as_of
from sqlqueue.database.ids import (
    ANY_SCHEDULED,
    FIND,
    FIND_LATEST,
    IN_LOG,
    IN_SCHEDULE,
    UNIQUE,
    Identity,
    each_once,
    identity_of,
    inserted,
    taken,
)
from sqlqueue.database.insert_sql import (
    COLUMNS,
    INSERTED,
    KEEP_DUPLICATE,
    MARK,
    MARK_DUPLICATE,
    PAYLOAD,
    REFRESH_FAILURE,
    FailedRow,
    LogRow,
    Stored,
)
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import find_existing
from sqlqueue.database.sizes import chunks
from sqlqueue.database.transactions import aside

SCHEDULER = -1  # the scheduler holds this row: one process at a time moves scheduled messages, which keeps their order
COLLECTOR = -2  # likewise the collector
REQUESTS = -3  # and the process that carries out operator requests
PERIODIC = -4  # and the process that publishes the ticks of periodic schedules
LAYOUT = -5  # and the process that takes a step of the change of a topic's partitions
ROW = 200  # bytes of a message's numbers and times, and of what stands between its values
DUTIES = (SCHEDULER, COLLECTOR, REQUESTS, PERIODIC, LAYOUT)


def take_duty(log: Log, duty: int) -> bool:
    """Hold one of the DUTIES until the transaction ends; False if another process has it. Never waits."""
    text = "SELECT slot FROM sqlqueue_publish_gate WHERE slot = %s{skip}"  # index: the primary key
    return log.execute(text, (duty,)).fetchone() is not None


def insert_one(log: Log, row: LogRow, may_repeat: bool = False, look: bool = True) -> tuple[int | None, bool]:
    """Add one message; return its offset, and whether it is new. may_repeat: its id may have been published before, or
    be scheduled (then nothing is added, and there is no offset). look: False once the caller has looked. Nor is there
    an offset of a message that is forwarded (database.forwarding).

    It looks before it adds: InnoDB keeps what a duplicate has locked until the transaction ends, the first one and the
    gap before it, and at REPEATABLE READ the log's very end, where every publisher of every topic would wait.
    """
    if may_repeat and look and (existing := find_existing(log, row)):
        return existing.offset, False
    try:
        if log.dialect.driver_tells_number and not may_repeat:
            return _insert(log, [row]).lastrowid, True
        return _insert_named(log, row, may_repeat)
    except GateElsewhere:
        return None, bool(_forwarded(log, [row], may_repeat))


def _insert_named(log: Log, row: LogRow, may_repeat: bool) -> tuple[int | None, bool]:
    if log.dialect.vendor == "mysql":
        offset = _insert(log, [row], MARK_DUPLICATE).lastrowid
        return (offset - MARK, False) if offset >= MARK else (offset, True)
    while True:
        new = _insert(log, [row], (KEEP_DUPLICATE if may_repeat else "") + ' RETURNING "offset"').fetchone()
        if new:
            return new[0], True
        offset = find_offset(log, row)
        if offset is not None:  # else it has been collected between the two statements
            return offset, False


def find_offset(log: Log, row: LogRow, latest: bool = False) -> int | None:
    """Return the offset of a row's id in the log, None if it has none. latest: as last committed, whatever the
    transaction's snapshot; that locks it."""
    found = log.execute(FIND_LATEST if latest else FIND, identity_of(row)).fetchone()
    return found[0] if found else None


def insert_many(log: Log, rows: Sequence[LogRow]) -> None:
    """Add messages of new ids, all or none of them, in as few statements as the server takes."""
    _in_statements(log, rows, _insert_or_forward)


def _insert_or_forward(log: Log, rows: Sequence[LogRow]) -> None:
    try:
        _insert(log, rows)
    except GateElsewhere:
        _forwarded(log, rows, may_repeat=False)


def _forwarded(log: Log, rows: Sequence[LogRow], may_repeat: bool) -> set[Identity]:
    """Forward messages; return the identities of those that are new. Raises GateElsewhere for one whose
    payload the server copies: it is none of a publisher's."""
    if isinstance(rows[0].payload, Stored):
        raise GateElsewhere
    return forward(log, rows, may_repeat)


def insert_new(log: Log, rows: Sequence[LogRow], overtakes: bool = False, tell: bool = True) -> set[Identity]:
    """Add those of the messages whose ids the log does not have, all or none of them. Of those with the same id the
    first counts.

    overtakes: into the log only, whatever was forwarded; raises GateElsewhere
    tell: return their identities, of which MySQL has to be asked
    """
    new: set[Identity] = set()
    _in_statements(log, rows, lambda log, chunk: new.update(_insert_new(log, chunk, overtakes, tell)))
    return new


def _in_statements(log: Log, rows: Sequence[LogRow], insert: Callable[[Log, Sequence[LogRow]], Any]) -> None:
    several = list(chunks(log, rows, size_of=row_size))
    # One statement is all or nothing by itself.
    with log.atomic(savepoint=False) if len(several) > 1 else nullcontext():
        for chunk in several:
            insert(log, chunk)


def row_size(row: LogRow) -> float:
    """Return how many bytes a row takes in a statement at most, at little cost; infinite for a payload that the server
    copies, so that it gets a statement of its own."""
    payload = row.payload
    if isinstance(payload, Stored):
        return math.inf
    texts = len(payload) + len(row.key) + len(row.id) + len(row.headers or "")
    return ROW + len(row.topic) + len(row.target_group) + 4 * texts + (2 * len(row.body) if row.body else 0)


def _insert_new(log: Log, rows: Sequence[LogRow], overtakes: bool, tell: bool) -> Iterable[Identity]:
    once = each_once(rows)
    if log.dialect.vendor != "mysql":
        ending = f"{KEEP_DUPLICATE} RETURNING topic, message_id, partition_key"
        return [tuple(found) for found in _insert(log, list(once.values()), ending).fetchall()]
    known = ids_in_log(log, list(once.values()))  # it looks first, as insert_one does
    new = [row for identity, row in once.items() if identity not in known]
    if not new:
        return ()
    try:
        first = _insert(log, new, MARK_DUPLICATE, overtakes).lastrowid
    except GateElsewhere:
        if overtakes:
            raise
        return _forwarded(log, new, may_repeat=True)
    return inserted(log, INSERTED, first, list(map(identity_of, new))) if tell else ()


def ids_in_log(log: Log, rows: Sequence[LogRow]) -> set[Identity]:
    """Return which of these rows' ids are in the log."""
    return _taken(log, IN_LOG, rows)


def ids_scheduled(log: Log, rows: Sequence[LogRow]) -> set[Identity]:
    """Return which of these rows' ids are scheduled."""
    topics = {row.topic for row in rows}
    if not any(log.execute(ANY_SCHEDULED, (topic,)).fetchone() for topic in topics):
        return set()
    return _taken(log, IN_SCHEDULE, rows)


def _taken(log: Log, table: str, rows: Sequence[LogRow]) -> set[Identity]:
    known: set[Identity] = set()
    for some in chunks(log, [identity_of(row) for row in rows]):
        found = log.execute(*taken(log.dialect, table, some)).fetchall()
        known.update((topic, id, key) for topic, id, key in found)
    return known


def insert_failed(log: Log, row: LogRow, failed: FailedRow) -> bool:
    """Add a dead letter; one that is there already (the message was replayed and failed again) shows the newest
    failure. Return False if the message to copy has been deleted."""
    ending = " " + log.dialect.upsert(UNIQUE, REFRESH_FAILURE)
    return bool(_insert(log, [(*row[: len(COLUMNS)], *failed)], ending, overtakes=True).rowcount)


def _insert(log: Log, rows: Sequence[Sequence[Any]], ending: str = "", overtakes: bool = False) -> Any:
    """Insert rows in one statement; return the cursor. If they were placed by another generation of the layouts than is
    in force, nothing was added: they are placed anew, and the statement is run again, through the same slot.

    Raises GateElsewhere if the gate names another server than this one; and, for rows that do not overtake, while
    forwarded messages are still on their way into the log.
    """
    known, at = log.layout, insert_sql.slot() if log.dialect.slotted else 0
    if known.named:
        _refuse_to_overtake(log, rows, overtakes)
    try:
        cursor = log.execute(*insert_sql.insertion(log.dialect.vendor, rows, ending, known, at))
    except IntegrityError as error:
        if not is_refusal(error):
            raise
        return _insert_as_it_is_now(log, rows, ending, overtakes, at, known, error)
    if cursor.rowcount or not log.dialect.refuses_silently:
        return cursor
    return _insert_as_it_is_now(log, rows, ending, overtakes, at, known, cursor)


def _insert_as_it_is_now(
    log: Log, rows: Sequence[Sequence[Any]], ending: str, overtakes: bool, at: int, known: Known, refused: Any
) -> Any:
    """Do so after a statement that has added nothing, as often as something new is learned; if it is not, raise the
    database's refusal. refused: that error, or the cursor of a statement that just adds nothing.

    A statement of its own has let go of a slot's row: when it is asked why it was refused, that may have turned. So it
    is run once more in a transaction, where the row stays locked, and the answer is about what the statement has seen.
    Nowhere else: SQLite commits nothing before the rows of RETURNING are read, which the caller does.
    """
    silent = not isinstance(refused, Exception)
    locked = not log.dialect.slotted or log.connection.in_atomic_block
    with nullcontext() if locked else log.atomic():
        while True:
            before, learned = known, learn(log, at, known)
            if learned is None or (learned == before and locked):
                break  # the gate lacks a row, or names another server; or there was nothing new to add
            known = learned
            if known.named:
                _refuse_to_overtake(log, rows, overtakes)
            locked = True
            try:
                refused = log.execute(*insert_sql.insertion(log.dialect.vendor, rows, ending, known, at))
            except IntegrityError as error:
                if not is_refusal(error):
                    raise
                refused = error
            else:
                if refused.rowcount or not silent:
                    return refused
        if learned is not None and learned.named:
            raise GateElsewhere
        if silent:
            return refused
        raise refused


def _refuse_to_overtake(log: Log, rows: Sequence[Sequence[Any]], overtakes: bool) -> None:
    if not (overtakes or isinstance(rows[0][PAYLOAD], Stored)) and any_forwarded(log):
        raise GateElsewhere


def learn(log: Log, at: int, before: Known) -> Known | None:
    """Return what is true of the layouts now, as far as the gate's slot tells it, and remember that; None if the gate
    lacks the row.

    MySQL: the slot's row stays locked until the transaction ends. What its generation means is read beside the
    transaction, whose snapshot may be older, and without locks: a layout was committed before its generation came into
    force, and never changes.
    """
    row = log.execute(PRESENT[log.dialect.vendor], (at,) if log.dialect.slotted else ()).fetchone()
    if row is None:
        return None
    generation, named = int(row[0]), bool(row[1])
    if (generation, named) == (before.generation, before.named) and not before.turning:
        return before
    with aside(log) as run:
        log.layout = as_of(generation, named, lambda text, values: run(text, values).fetchall())
    return log.layout
