"""What a server allows: how many connections, how long they may idle, how long a statement waits for a lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import models

from sqlqueue.core.codec import DEEPEST, check_depth
from sqlqueue.database.insert_sql import ALL_COLUMNS, LogRow, Stored
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import LIGHT, OVERHEAD, packet, size
from sqlqueue.exceptions import InvalidMessage

DEEPEST_OF_MARIADB, DEEPEST_OF_MYSQL = 31, 100  # JSON_DEPTH_LIMIT; JSON_DOCUMENT_MAX_DEPTH
# Each handler thread has one, and there are as many threads again while some groups wait for the handlers of others.
# Of a consumer process: the control thread and its six background tasks. Periodic schedules have a seventh, and so have
# each other database and a cluster of several writable servers.
OWN_CONNECTIONS = 7
SHORT = LIGHT // 2  # bytes of a payload that is light, whatever its key and id are


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """ServerLimits of an alias's sessions, times in seconds; None: no limit, or one that cannot be read. pooled: the
    sessions are a pooler's, which has a limit of its own for its clients."""

    isolation: str
    max_connections: int | None = None
    connections: int | None = None  # open now, of all clients
    idle_timeout: float | None = None  # after which the server closes a connection that asks nothing
    lock_wait: float | None = None
    pooled: bool = False


def is_pooled(log: Log) -> bool:
    """Tell whether this thread's connection leads through a pooler, such as PgBouncer. It gives a client the number of
    no process, for the server's processes serve many. One statement on PostgreSQL."""
    connection: Any = log.connection
    if connection.vendor != "postgresql":
        return False
    (process,) = log.execute("SELECT PG_BACKEND_PID()").fetchone()
    return bool(process != connection.connection.info.backend_pid)


def deepest_json(log: Log) -> int:
    """Return how deep the arrays and objects of a JSON value may be nested."""
    connection = log.connection
    if connection.vendor != "mysql":
        return DEEPEST
    return DEEPEST_OF_MARIADB if connection.mysql_is_mariadb else DEEPEST_OF_MYSQL  # type: ignore[attr-defined]


def keeps_long_numbers(log: Log) -> bool:
    """Tell whether whole numbers of more than 64 bits in JSON come back as they are. MySQL makes doubles of them;
    MariaDB keeps the text."""
    connection = log.connection
    return connection.vendor != "mysql" or bool(connection.mysql_is_mariadb)  # type: ignore[attr-defined]


def check_row(log: Log, row: LogRow, most: int) -> None:
    """Raise InvalidMessage for a message that this server cannot keep, or Python could not read again, that has more
    bytes than `most`, or that the server does not take in one statement."""
    payload = row.payload
    if (  # every server keeps it, whatever the key and the id are
        row.headers is None
        and row.body is None
        and isinstance(payload, str)
        and 4 * len(payload) < min(SHORT, most)
        and payload.count("[") + payload.count("{") <= DEEPEST_OF_MARIADB
        and "\\u" not in payload
    ):
        return
    check_storable(log, row, most)
    to_send = size(row[: len(ALL_COLUMNS)]) + OVERHEAD
    if to_send > LIGHT and not isinstance(payload, Stored) and to_send > (limit := packet(log)):
        raise InvalidMessage(
            f"the message takes {to_send} bytes to send, and the server takes {limit} at once (max_allowed_packet): "
            "raise that, or keep what is large elsewhere, and publish where it is"
        )


def check_storable(log: Log, row: LogRow, most: int) -> None:
    """Raise InvalidMessage for a message that this server cannot keep, or Python could not read again, or that has
    more bytes than `most`."""
    if row.body is not None:
        stored = len(row.body)
    else:
        stored = _stored_bytes(log, row.payload, "payload") if isinstance(row.payload, str) else 0
    if row.headers is not None:
        stored += _stored_bytes(log, row.headers, "headers")
    check_size(stored, most)


def _stored_bytes(log: Log, text: str, kind: str) -> int:
    log.dialect.check_json(text, kind)
    if text.count("[") + text.count("{") > DEEPEST_OF_MARIADB:
        check_depth(text, kind, deepest_json(log))
    return len(text) if text.isascii() else len(text.encode())


def check_size(stored: int, most: int) -> None:
    """Raise InvalidMessage for a message of too many bytes."""
    if stored > most:
        raise InvalidMessage(
            f"payload and headers have {stored} bytes; {most} is the most (SQLQUEUE['MAX_PAYLOAD_BYTES']): keep what "
            "is large elsewhere, and publish where it is"
        )


def check_result(log: Log, text: str, most: int) -> None:
    """Raise InvalidMessage for the JSON text of a result that this server cannot keep or does not take in one
    statement, or that has more bytes than `most`."""
    stored = _stored_bytes(log, text, "result")
    to_send = size((text,)) + OVERHEAD
    fits = most if stored > most or to_send <= LIGHT else packet(log)
    if stored > most or to_send > fits:
        setting = "SQLQUEUE['MAX_PAYLOAD_BYTES']" if stored > most else "max_allowed_packet"
        raise InvalidMessage(
            f"result has {stored} bytes, and {fits} is the most ({setting}): keep what is large elsewhere, and return "
            "where it is"
        )


def limits(log: Log) -> ServerLimits:
    """Ask the server. Three statements at most."""
    connection = log.connection
    if connection.vendor == "mysql":
        return _mysql(log)
    if connection.vendor == "postgresql":
        return _postgresql(log)
    return ServerLimits("serializable", lock_wait=float(connection.settings_dict["OPTIONS"].get("timeout", 5)))


def _mysql(log: Log) -> ServerLimits:
    names = "@@max_connections, @@SESSION.wait_timeout, @@SESSION.innodb_lock_wait_timeout"
    level, most, idle, lock = log.execute(f"SELECT {isolation_variable(log)}, {names}").fetchone()
    _, count = log.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'").fetchone()
    return ServerLimits(_in_words(level), int(most), int(count), float(idle), float(lock))


def isolation_variable(log: Log) -> str:
    """Return the variable that has the isolation level on MySQL and MariaDB."""
    connection: Any = log.connection
    old = connection.mysql_is_mariadb and connection.mysql_version < (11, 1)
    return "@@tx_isolation" if old else "@@transaction_isolation"


def _postgresql(log: Log) -> ServerLimits:
    settings = {"transaction_isolation": "", "max_connections": "", "idle_session_timeout": "0", "lock_timeout": "0"}
    settings.update(log.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", [list(settings)]))
    (count,) = log.execute("SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend'").fetchone()
    idle, lock = (int(settings[name]) / 1000 or None for name in ("idle_session_timeout", "lock_timeout"))
    level, pooled = _in_words(settings["transaction_isolation"]), is_pooled(log)
    # An idle session is the pooler's, which replaces it.
    return ServerLimits(level, int(settings["max_connections"]), int(count), None if pooled else idle, lock, pooled)


def _in_words(level: str) -> str:
    return level.lower().replace("-", " ")


def missing_indexes(log: Log, tables: Sequence[type[models.Model]]) -> list[str]:
    """Return the indexes and unique keys of these tables that the database does not have, or not on these columns: by
    name, for statements name them."""
    missing: list[str] = []
    introspection = log.connection.introspection
    with log.connection.cursor() as cursor:
        for model in tables:
            table = model._meta.db_table
            present = introspection.get_constraints(cursor, table)
            wanted: list[Any] = [
                *model._meta.indexes,
                *(one for one in model._meta.constraints if isinstance(one, models.UniqueConstraint)),
            ]
            for index in wanted:
                columns = [str(model._meta.get_field(name).column) for name in index.fields]  # type: ignore[union-attr]
                found = present.get(index.name)
                if found is None or list(found["columns"]) != columns:
                    missing.append(f"{index.name} of {table} ({', '.join(columns)})")
    return missing
