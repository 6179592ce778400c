"""Adding messages to the log over Django's connections, through the publish gate, in one statement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from django.db import connections, transaction

from sqlqueue.database.chunks import in_chunks
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.entry import (
    COUNT_NEW,
    FIND,
    KEEP_DUPLICATE,
    MARK,
    MARK_DUPLICATE,
    REFRESH_FAILURE,
    FailedRow,
    LogRow,
    Stored,
    each_once,
    insertion,
    known_places,
)
from sqlqueue.database.weight import weight

SCHEDULER = -1  # whoever moves scheduled messages into the log holds this row: one at a time keeps their order
COLLECTOR = -2  # likewise whoever collects
REPLAYER = -3  # and whoever carries out the replays of dead letters
DUTIES = (SCHEDULER, COLLECTOR, REPLAYER)


def take_duty(alias: str, duty: int) -> bool:
    """Hold one of the DUTIES until the transaction ends; False if another process has it. Never waits."""
    text = "SELECT slot FROM sqlqueue_publish_gate WHERE slot = %s{skip}"  # index: the primary key
    return execute(alias, text, (duty,)).fetchone() is not None


def insert_one(alias: str, row: LogRow, may_repeat: bool) -> tuple[int, bool]:
    """Add one message; return its offset, and whether it is new. may_repeat: its id may have been published before."""
    if connections[alias].vendor == "mysql":
        found = _find(alias, row) if may_repeat and connections[alias].in_atomic_block else None
        if found:
            return found, False
        offset = _insert(alias, [row], MARK_DUPLICATE if may_repeat else "").lastrowid
        return (offset - MARK, False) if offset >= MARK else (offset, True)
    while True:
        new = _insert(alias, [row], (KEEP_DUPLICATE if may_repeat else "") + ' RETURNING "offset"').fetchone()
        if new:
            return new[0], True
        found = _find(alias, row)
        if found:  # else it has been collected between the two statements
            return found, False


def _find(alias: str, row: LogRow) -> int | None:
    found = execute(alias, FIND, (row.topic, row.partition, row.id)).fetchone()
    return found[0] if found else None


def insert_many(alias: str, rows: Sequence[LogRow], may_repeat: bool) -> int:
    """Add messages, all or none of them, in as few statements as the server takes; return how many of them were new."""
    several = list(in_chunks(alias, rows, weigh=_weigh))
    # One statement is all or nothing by itself.
    with transaction.atomic(using=alias, savepoint=False) if len(several) > 1 else nullcontext():
        return sum(_insert_chunk(alias, chunk, may_repeat) for chunk in several)


def _weigh(row: LogRow) -> float:
    """What the server copies itself has a statement of its own."""
    return math.inf if isinstance(row.payload, Stored) else weight(row)


def _insert_chunk(alias: str, rows: Sequence[LogRow], may_repeat: bool) -> int:
    if not may_repeat:
        _insert(alias, rows)
        return len(rows)
    if connections[alias].vendor != "mysql":
        return int(_insert(alias, rows, KEEP_DUPLICATE).rowcount)
    new = _new_ones(alias, rows)
    return _new_rows(alias, _insert(alias, new, MARK_DUPLICATE).lastrowid, len(new)) if new else 0


def _new_ones(alias: str, rows: Sequence[LogRow]) -> list[LogRow]:
    """Return the rows whose ids are not in the log yet, as far as can be seen, each id once."""
    new = each_once(rows)
    text, values = known_places(new)
    with connections[alias].cursor() as cursor:  # not by execute(), which remembers every text, and this one varies
        cursor.execute(text, values)
        for found in cursor.fetchall():
            new.pop(tuple(found))
    return list(new.values())


def insert_failed(alias: str, row: LogRow, failed: FailedRow) -> bool:
    """Add a dead letter; one that is there already (the message was replayed and failed again) shows the newest
    failure. False: there is none, for what was to be copied has been deleted."""
    ending = " " + dialect(alias).upsert('topic, "partition", message_id', REFRESH_FAILURE)
    return bool(_insert(alias, [(*row, *failed)], ending).rowcount)


def _insert(alias: str, rows: Sequence[Sequence[Any]], ending: str = "") -> Any:
    """Insert rows in one statement; return the cursor."""
    return execute(alias, *insertion(connections[alias].vendor, rows, ending))


def _new_rows(alias: str, first: int, rows: int) -> int:
    """Return how many rows of an INSERT that marks duplicates were new. first: its LAST_INSERT_ID, the offset of the
    first new one.

    The offsets of one statement follow each other: the server takes them together, for it sees how many rows there are.
    (Its own account of duplicates is a sentence in the server's language, and its count of rows includes them.)
    """
    if first >= MARK:
        return 0
    return 1 if rows == 1 else int(execute(alias, COUNT_NEW, (first, first + rows - 1)).fetchone()[0])
