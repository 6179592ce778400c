"""Turning publishers over to a new generation of the layouts, as each database does it.

MySQL: the generation is a column of the gate's rows, which publishers hold in share mode. A row that no publisher
holds is locked without waiting, and turned; so no transaction that published through it by the former generation is
still open. The slots of a topic's keys are turned in the same way. Rows are turned some at a time: a publisher that
meets one of them waits for a commit, and no publisher ever waits behind one that waits.

PostgreSQL: the generation is the value of a sequence, which is changed at once; a transaction that holds the gate
then may have read the former one, and is waited for. SQLite: one transaction does all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.db import Error

from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.generations import PRESENT
from sqlqueue.database.log import Log
from sqlqueue.database.sequence import SET, require_right

AT_ONCE = 16  # rows that are turned by one transaction
WAIT = 1  # seconds for which a row that is never free is waited for; who wants it waits as long

MAKE_SEQUENCE = "CREATE SEQUENCE IF NOT EXISTS sqlqueue_generation MINVALUE 0 START WITH 0"
# Every publisher reads it, and who may insert into the log may not read its sequences.
SHOW_SEQUENCE = "GRANT SELECT ON SEQUENCE sqlqueue_generation TO PUBLIC"
USED = "SELECT PG_SEQUENCE_LAST_VALUE('sqlqueue_generation')"  # what publishers read: NULL before the first SETVAL
NEWEST_LAYOUT = "SELECT MAX(generation) FROM sqlqueue_layout"
CHANGING = "SELECT id FROM sqlqueue_epoch_slot LIMIT 1"
HIGHEST = "SELECT MAX(generation) FROM sqlqueue_publish_gate WHERE slot >= 0"
GIVEN = ("row_key", "number")  # a row, and what it is turned to
LIMIT = "SET SESSION innodb_lock_wait_timeout = %s"
LIMITED = "SELECT @@SESSION.innodb_lock_wait_timeout"


class Rows(NamedTuple):
    """Rows that are turned: their table, its primary key, the column that changes, and which ones to turn."""

    table: str
    key: str
    column: str
    behind: str


# Index: the primary key; (topic, slot). Parameters: the generation; a topic and its epoch.
GATE_ROWS = Rows("sqlqueue_publish_gate", "slot", "generation", "slot >= 0 AND generation <> %s")
KEY_SLOTS = Rows("sqlqueue_epoch_slot", "id", "epoch", "topic = %s AND epoch <> %s")


def make_sequence(log: Log) -> None:
    """Make what holds the generation beside the gate's rows, if the database needs it and has not got it."""
    if log.connection.vendor != "postgresql":
        return
    if log.execute("SELECT TO_REGCLASS('sqlqueue_generation')").fetchone()[0] is None:
        log.execute(MAKE_SEQUENCE)
        log.execute(SHOW_SEQUENCE)
    if log.execute(USED).fetchone()[0] is None:
        put_in_force(log, 0)


def newest_layout(log: Log) -> int:
    """Return the newest generation of which there is a layout, which is in force or about to be; 0 without any."""
    return log.execute(NEWEST_LAYOUT).fetchone()[0] or 0


def catch_up(log: Log) -> None:
    """Let the newest layout's generation hold where what holds it is behind, and no change is under way: a dump may
    bring the layouts alone, and neither tables nor logical replication bring the sequence. Publishers would go back to
    an epoch that has ended. Raises ConfigurationError if the database's user may not."""
    newest = newest_layout(log)
    if not newest or log.execute(CHANGING).fetchone():
        return  # the process that carries the change on does it
    if log.connection.vendor == "postgresql":
        if newest_generation(log) < newest:
            refuse_who_may_not(log)
            put_in_force(log, newest)
    elif behind(log, GATE_ROWS, newest):
        put_in_force(log, newest)


def newest_generation(log: Log) -> int:
    """Return the newest generation that is in force for anybody."""
    text = PRESENT["postgresql"] if log.connection.vendor == "postgresql" else HIGHEST
    return log.execute(text).fetchone()[0] or 0


def refuse_who_may_not(log: Log) -> None:
    """Raise ConfigurationError, with what to do, unless this user may put a generation in force: on PostgreSQL that
    takes a right that changing rows does not."""
    may_not = f"the user of database {log.alias!r} may not tell publishers of new partitions: "
    require_right(log, "sqlqueue_generation", SET, may_not)


def put_in_force(log: Log, generation: int) -> None:
    """Let a generation hold from now on. PostgreSQL: whatever becomes of the transaction. SQLite: with it."""
    if log.connection.vendor == "postgresql":
        log.execute("SELECT SETVAL('sqlqueue_generation', %s)", (generation,))
    else:
        log.execute("UPDATE sqlqueue_publish_gate SET generation = %s WHERE slot >= 0", (generation,))


def behind(log: Log, rows: Rows, *values: object) -> list[int]:
    """Return the keys of the rows to turn."""
    text = f"SELECT {rows.key} FROM {rows.table} WHERE {rows.behind} ORDER BY slot"
    return [key for (key,) in log.execute(text, values).fetchall()]


def switch(log: Log, rows: Rows, number: int, keys: Sequence[int], wait: bool = False) -> int:
    """Turn those of these rows that no publisher holds to a generation or an epoch, in the caller's transaction, with
    one statement: who wants one of them waits for the commit. Return how many. wait: for WAIT seconds if all are
    held."""
    free = _locked(log, rows, keys, wait)
    if free:
        text = log.dialect.update(rows.table, GIVEN, len(free), f"{rows.column} = {GIVEN[1]}", key=rows.key)
        log.execute(text, [value for key in free for value in (key, number)])
    return len(free)


def _locked(log: Log, rows: Rows, keys: Sequence[int], wait: bool) -> list[int]:
    text = log.dialect.lock_free(rows.table, rows.key, len(keys))
    if not wait:
        return [found for (found,) in log.execute(text, keys).fetchall()]
    before = log.execute(LIMITED).fetchone()[0]
    log.execute(LIMIT, (WAIT,))
    try:
        return [found for (found,) in log.execute(text.replace("{skip}", "{update}"), keys).fetchall()]
    except Error as error:
        if classify(error) is not ErrorKind.CONTENTION:
            raise
        return []
    finally:
        log.execute(LIMIT, (before,))
