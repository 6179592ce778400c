"""Connections without Django, for processes that have none: opened with the parameters that Django would use."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from sqlqueue.core.codec import DEEPEST
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.database.error_codes import ErrorKind, classify, is_refusal
from sqlqueue.database.generations import FIRST, OF_SLOT, PRESENT, Known, Moved, as_of
from sqlqueue.database.ids import (
    ANY_SCHEDULED,
    FIND_EITHER,
    IN_LOG,
    IN_SCHEDULE,
    Identity,
    each_once,
    identity_of,
    taken,
)
from sqlqueue.database.insert_sql import (
    KEEP_DUPLICATE,
    MARK,
    REFUSES_SILENTLY,
    SLOTS,
    STANDING,
    LogRow,
    insertion,
    slot,
)
from sqlqueue.database.server_session import Session, session_of_mysql, session_of_postgresql
from sqlqueue.database.session_values import change
from sqlqueue.database.validation import (
    DEEPEST_OF_MARIADB,
    DEEPEST_OF_MYSQL,
    MARK_SCHEDULED,
    SCHEDULE,
    SCHEDULED_LATER,
    scheduled,
)
from sqlqueue.database.weight import OVERHEAD, STATEMENT
from sqlqueue.exceptions import ConfigurationError, InvalidMessage

T = TypeVar("T")

TRIES = 8
ROWS_AT_ONCE = 100  # of stream(): in memory besides what its reader keeps
# An unbuffered result is sent as it is read: its reader may be busy with what it has for longer than a minute.
LONG_WRITES = ("SET SESSION net_write_timeout = 3600", "SET SESSION net_read_timeout = 3600")
PLAIN = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True)
class Access:
    """How to connect to a database. It is sent to other machines, and never shows its parameters."""

    vendor: str
    parameters: dict[str, Any] = field(repr=False)
    session: tuple[str, ...] = field(repr=False, default=())  # statements for a new connection


def access(alias: str) -> Access:
    """Return how Django connects to an alias (this one function needs Django)."""
    from django.db import connections

    connection = connections[alias]
    parameters = connection.get_connection_params()  # also sets what is read from the connection below
    parameters = {name: value for name, value in parameters.items() if _is_plain(value)}
    session: list[str] = []
    if connection.vendor == "mysql":
        level = getattr(connection, "isolation_level", None)
        session = [f"SET SESSION TRANSACTION ISOLATION LEVEL {level.upper()}"] if level else []
    elif connection.vendor == "sqlite":
        parameters.pop("detect_types", None)
        session = [command for command in getattr(connection, "init_commands", ()) if command.strip()]
    return Access(connection.vendor, parameters, tuple(session))


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(part) for name, part in value.items())
    return isinstance(value, PLAIN)


class Connection:
    """A connection in autocommit mode. Statements have the dialects' placeholders. Closed by leaving its `with`. Raises
    ConfigurationError if its session changes values."""

    def __init__(self, access: Access):
        self.vendor = access.vendor
        self._access = access
        self._dialect = DIALECTS[access.vendor]
        self._connection = _connect(access)
        self._statement: int | None = None
        self._packet: int | None = None
        self._known = FIRST

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, whatever it is doing."""
        self._connection.close()

    def execute(self, text: str, values: Sequence[object] = ()) -> Any:
        """Run a statement; return the driver's cursor."""
        cursor = self._connection.cursor()
        cursor.execute(self._sql(text, values), tuple(values))
        return cursor

    def stream(self, text: str, values: Sequence[object] = ()) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query as they come, a hundred at a time; a result of any size needs no memory here."""
        cursor = self._streaming_cursor()
        cursor.execute(self._sql(text, values), tuple(values))
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield list(rows)
        cursor.close()
        if self.vendor == "postgresql":
            self._connection.rollback()

    def server(self) -> Session:
        """Look at the server that this leads to."""
        if self.vendor == "mysql":
            return session_of_mysql(self.execute, "mariadb" in self._connection.get_server_info().lower())
        if self.vendor == "postgresql":
            return session_of_postgresql(self.execute, self._connection.info.server_version)
        return Session("")

    def statement_bytes(self) -> int:
        """Return how many bytes the values of one statement may have; MySQL is asked once."""
        if self._statement is None:
            packet = (
                self.execute("SELECT @@SESSION.max_allowed_packet").fetchone()[0] if self.vendor == "mysql" else None
            )
            self._statement = STATEMENT if packet is None else min(STATEMENT, int(packet) - OVERHEAD)
            self._packet = packet
        return self._statement

    def deepest_json(self) -> int:
        """Return how deep the arrays and objects of a JSON value may be nested."""
        if self.vendor != "mysql":
            return DEEPEST
        (version,) = self.execute("SELECT VERSION()").fetchone()
        return DEEPEST_OF_MARIADB if "mariadb" in version.lower() else DEEPEST_OF_MYSQL

    def check_sendable(self, size: int) -> None:
        """Raise InvalidMessage for values of more bytes than the server takes at once: it would end the connection."""
        if size > self.statement_bytes() and self._packet is not None and size + OVERHEAD > self._packet:
            raise InvalidMessage(
                f"a row takes {size} bytes to send, and the server takes {self._packet} at once (max_allowed_packet)"
            )

    def insert(self, rows: Sequence[LogRow], may_repeat: bool) -> int:
        """Add messages to the log in one statement; return how many were new, as far as can be seen.

        may_repeat: a row whose id is in the log already, or scheduled, is left out; then the whole may be run again,
        and is, after contention and lost connections.
        """
        return self.again(self._insert, rows, may_repeat, repeatable=may_repeat)

    def schedule(self, row: LogRow, delay: float) -> bool:
        """Schedule a message, `delay` seconds from now by the database's clock; return whether its id was new, in the
        schedule and in the log. Run again after contention and lost connections."""
        return self.again(self._schedule, row, delay)

    def _schedule(self, row: LogRow, delay: float) -> bool:
        if self.execute(FIND_EITHER, identity_of(row) * 2).fetchall():
            return False
        ending = MARK_SCHEDULED if self.vendor == "mysql" else KEEP_DUPLICATE
        values = (*scheduled(row), round(delay * 1_000_000))
        cursor = self.execute(f"{SCHEDULE} VALUES {SCHEDULED_LATER}{ending}", values)
        return cursor.lastrowid < MARK if self.vendor == "mysql" else bool(cursor.rowcount)

    def again(self, operation: Callable[..., T], *arguments: Any, repeatable: bool = True) -> T:
        """Run an operation of one statement; again after contention and, if `repeatable`, after lost connections."""
        for attempt in range(1, TRIES + 1):
            try:
                return operation(*arguments)
            except Exception as error:
                kind = classify(error)
                if attempt == TRIES or not (kind is ErrorKind.CONTENTION or (repeatable and kind is ErrorKind.GONE)):
                    raise
                time.sleep(random.uniform(0.01, 0.1) * 2**attempt)
                if kind is ErrorKind.GONE:
                    self._reconnect()
        raise AssertionError("unreachable")

    def _insert(self, rows: Sequence[LogRow], may_repeat: bool) -> int:
        ending = ""
        if may_repeat:
            new = each_once(rows)
            known = self._scheduled(new)
            if self.vendor == "mysql":
                # First by looking: InnoDB would lock, and write, for each duplicate.
                known |= self._taken(IN_LOG, new)
                ending = " " + self._dialect.ignore("failure_count")
            else:
                ending = KEEP_DUPLICATE
            rows = [row for identity, row in new.items() if identity not in known]
        if not rows:
            return 0
        cursor = self._inserted(rows, ending)
        return len(rows) if self.vendor == "mysql" else int(cursor.rowcount)

    def _inserted(self, rows: Sequence[LogRow], ending: str) -> Any:
        """Insert rows; return the cursor. If the gate refuses them and nothing new is to be learned, once more in a
        transaction, as gate._insert. Raises Moved for what belongs to another shard by now."""
        at = slot()
        try:
            return self._placed(rows, ending, at)
        except Exception as error:
            if not is_refusal(error):
                raise
        self.execute("BEGIN")
        try:
            cursor = self._placed(rows, ending, at)
        except BaseException:
            with contextlib.suppress(Exception):  # the connection may be lost
                self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")
        return cursor

    def _placed(self, rows: Sequence[LogRow], ending: str, at: int) -> Any:
        """Do so, placed anew as often as another generation of the layouts is in force (see gate._placed)."""
        sure = True
        while True:
            refused: Exception | None = None
            try:
                cursor = self.execute(*insertion(self.vendor, rows, ending, self._known, at, sure))
            except Exception as error:
                if not isinstance(error, Moved) and not is_refusal(error):
                    raise
                refused = error
            else:
                if cursor.rowcount or not REFUSES_SILENTLY[self.vendor]:
                    return cursor
            before, self._known, sure = self._known, self._learned(at), False
            if self._known == before:
                if refused is not None:
                    if self._known.named:
                        self._refuse_elsewhere(refused)
                    raise refused
                return cursor

    def _refuse_elsewhere(self, refused: Exception) -> None:
        """Raise ConfigurationError if the gate names another server: what is written here takes no detour."""
        found = self.execute(STANDING).fetchone()
        if found is not None and found[0] != found[2]:
            raise ConfigurationError(
                f"messages enter the log on the server {found[0].removeprefix('-')!r} of this cluster, and this is "
                f"{found[2]!r}: write through that one. Nothing of this statement was added"
            ) from refused

    def _learned(self, at: int) -> Known:
        text = PRESENT.get(self.vendor, OF_SLOT)
        asked: Sequence[tuple[int, ...]] = ((),) if self.vendor in PRESENT else ((at,), (at + SLOTS,))
        for values in asked:
            if row := self.execute(text, values).fetchone():
                if row[0] == self._known.stored and not self._known.turning:
                    break
                return as_of(row[0], lambda text, values: self.execute(text, values).fetchall())
        return self._known

    def _scheduled(self, identities: Collection[Identity]) -> set[Identity]:
        topics = {topic for topic, _, _ in identities}
        anything = any(self.execute(ANY_SCHEDULED, (topic,)).fetchone() for topic in topics)
        return self._taken(IN_SCHEDULE, identities) if anything else set()

    def _taken(self, table: str, identities: Collection[Identity]) -> set[Identity]:
        text, values = taken(self._dialect, table, identities)
        cursor = self._connection.cursor()
        cursor.execute(text % (("?",) * len(values)) if self.vendor == "sqlite" else text, tuple(values))
        return {(topic, id, key) for topic, id, key in cursor.fetchall()}

    def _reconnect(self) -> None:
        with contextlib.suppress(Exception):  # it was lost
            self._connection.close()
        try:
            self._connection = _connect(self._access)
        except Exception as error:
            if classify(error) is not ErrorKind.GONE:
                raise

    def _sql(self, text: str, values: Sequence[object]) -> str:
        text = self._dialect.sql(text)
        return text % (("?",) * len(values)) if self.vendor == "sqlite" else text

    def _streaming_cursor(self) -> Any:
        if self.vendor == "mysql":
            from MySQLdb.cursors import SSCursor

            return self._connection.cursor(SSCursor)
        if self.vendor == "postgresql":
            self._connection.autocommit = False  # such a cursor lives in a transaction
            return self._connection.cursor(name="sqlqueue")
        return self._connection.cursor()


def _connect(access: Access) -> Any:
    if access.vendor == "mysql":
        import MySQLdb

        connection = MySQLdb.connect(**access.parameters)
        connection.autocommit(True)
        session: Sequence[str] = (*access.session, *LONG_WRITES)
    elif access.vendor == "postgresql":
        import psycopg

        connection = psycopg.connect(**access.parameters, autocommit=True)
        session = access.session
    else:
        import sqlite3

        connection = sqlite3.connect(**{**access.parameters, "isolation_level": None})
        session = access.session
    cursor = connection.cursor()
    for statement in session:
        cursor.execute(statement)
    cursor.close()
    if changed := change(access.vendor, connection, partial(_run, connection)):
        connection.close()
        raise ConfigurationError(str(changed))
    return connection


def _run(connection: Any, text: str, values: Sequence[object]) -> Any:
    cursor = connection.cursor()
    cursor.execute(text, values)
    return cursor
