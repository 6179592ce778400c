"""Adding messages to the log over Django's connections, through the publish gate, in one statement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

from django.db import IntegrityError

from sqlqueue.database import detour, insert_sql
from sqlqueue.database.aside import aside
from sqlqueue.database.detour import GateElsewhere
from sqlqueue.database.error_codes import is_refusal
from sqlqueue.database.generations import OF_SLOT, PRESENT, Known, as_of
from sqlqueue.database.ids import (
    ANY_SCHEDULED,
    FIND,
    FIND_EITHER,
    FIND_LATEST,
    IN_LOG,
    IN_SCHEDULE,
    UNIQUE,
    Identity,
    each_once,
    identity_of,
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
from sqlqueue.database.sizes import chunks

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
    an offset of a message that takes the detour (database.detour).

    It looks before it adds: InnoDB keeps what a duplicate has locked until the transaction ends, the first one and the
    gap before it, and at REPEATABLE READ the log's very end, where every publisher of every topic would wait.
    """
    if may_repeat and look and (offsets := find(log, row)):
        return max(offsets) or None, False
    try:
        if log.dialect.driver_tells_number and not may_repeat:
            return _insert(log, [row]).lastrowid, True
        return _insert_named(log, row, may_repeat)
    except GateElsewhere:
        return None, bool(_detoured(log, [row], may_repeat))


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


def find(log: Log, row: LogRow) -> list[int]:
    """Return where a row's id is taken: an offset of the log, 0 for the schedule; both, if it was published and
    scheduled in transactions that did not see each other."""
    return [offset for (offset,) in log.execute(FIND_EITHER, identity_of(row) * 2).fetchall()]


def find_offset(log: Log, row: LogRow, latest: bool = False) -> int | None:
    """Return the offset of a row's id in the log, None if it has none. latest: as last committed, whatever the
    transaction's snapshot; that locks it."""
    found = log.execute(FIND_LATEST if latest else FIND, identity_of(row)).fetchone()
    return found[0] if found else None


def insert_many(log: Log, rows: Sequence[LogRow], may_repeat: bool) -> None:
    """Add messages, all or none of them, in as few statements as the server takes. may_repeat: only those whose ids the
    log does not have."""
    _in_statements(log, rows, _insert_unknown if may_repeat else _insert_or_detour)


def _insert_or_detour(log: Log, rows: Sequence[LogRow]) -> None:
    try:
        _insert(log, rows)
    except GateElsewhere:
        _detoured(log, rows, may_repeat=False)


def _detoured(log: Log, rows: Sequence[LogRow], may_repeat: bool) -> set[Identity]:
    """Let messages take the detour; return the identities of those that are new. Raises GateElsewhere for one whose
    payload the server copies: it is none of a publisher's."""
    if isinstance(rows[0].payload, Stored):
        raise GateElsewhere
    return detour.put(log, rows, may_repeat)


def insert_new(log: Log, rows: Sequence[LogRow], overtakes: bool = False) -> set[Identity]:
    """Add those of the messages whose ids the log does not have, all or none of them; return their identities. Of those
    with the same id the first counts. overtakes: into the log only, whatever takes the detour; raises GateElsewhere."""
    new: set[Identity] = set()
    _in_statements(log, rows, lambda log, chunk: new.update(_insert_new(log, chunk, overtakes)))
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


def _insert_unknown(log: Log, rows: Sequence[LogRow]) -> None:
    _insert_new(log, rows, overtakes=False, tell=False)


def _insert_new(log: Log, rows: Sequence[LogRow], overtakes: bool, tell: bool = True) -> Iterable[Identity]:
    """tell: return which were new, of which MySQL has to be asked."""
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
        return _detoured(log, new, may_repeat=True)
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
    with log.connection.cursor() as cursor:  # not by execute(), which remembers every text, and this one varies
        for some in chunks(log, [identity_of(row) for row in rows]):
            cursor.execute(*taken(log.dialect, table, some))
            known.update((topic, id, key) for topic, id, key in cursor.fetchall())
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
    messages that took the detour are still on their way into the log.
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
            before, known = known, learn(log, at, known)
            if known == before and locked:
                break  # the gate lacks a row, or names another server; or there was nothing new to add
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
        if known.named and detour.is_named(log, at):
            raise GateElsewhere
        if silent:
            return refused
        raise refused


def _refuse_to_overtake(log: Log, rows: Sequence[Sequence[Any]], overtakes: bool) -> None:
    if not (overtakes or isinstance(rows[0][PAYLOAD], Stored)) and detour.in_use(log):
        raise GateElsewhere


def learn(log: Log, at: int, before: Known) -> Known:
    """Return what is true of the layouts now, as far as the gate's slot tells it, and remember that.

    MySQL: the slot's row stays locked until the transaction ends. What its generation means is read beside the
    transaction, whose snapshot may be older, and without locks: a layout was committed before its generation came into
    force, and never changes.
    """
    vendor = log.dialect.vendor
    row = log.execute(*((PRESENT[vendor],) if vendor in PRESENT else (OF_SLOT, (at,)))).fetchone()
    if row is None or (row[0] == before.stored and not before.turning):
        return before
    with aside(log) as run:
        log.layout = as_of(int(row[0]), lambda text, values: run(text, values).fetchall())
    return log.layout


def inserted(log: Log, text: str, first: int, identities: Sequence[Identity]) -> Iterable[Identity]:
    """Return which rows of an INSERT that marks duplicates were new. first: its LAST_INSERT_ID, the number of the
    first new one; text: the statement that reads the identities of the rows in a range of numbers.

    The numbers of one statement follow each other: the server takes them together, for it sees how many rows there are.
    (The server reports duplicates only as a sentence in its own language, and its row count includes them.)
    """
    if first >= MARK:
        return ()
    if len(identities) == 1:
        return identities
    found = log.execute(text, (first, first + len(identities) - 1)).fetchall()
    return {tuple(identity) for identity in found} & set(identities)
