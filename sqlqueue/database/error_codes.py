"""Error codes: classifies database errors by number or SQLSTATE. Needs no Django."""

from __future__ import annotations

import enum


class ErrorKind(enum.Enum):
    """What a database error means for the operation that met it."""

    CONTENTION = "a deadlock, a lock that was not granted in time: rolled back, run it again"
    GONE = "the connection or the server is gone, or cannot write: whether a commit succeeded is unknown"
    DUPLICATE = "the row is there already"
    OTHER = "no retry helps: the cause has to be corrected"


ELSEWHERE = -1  # no server's number: detour.GateElsewhere
MYSQL = {
    ELSEWHERE: ErrorKind.CONTENTION,
    # https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html and …/client-error-reference.html
    1205: ErrorKind.CONTENTION,  # ER_LOCK_WAIT_TIMEOUT
    1213: ErrorKind.CONTENTION,  # ER_LOCK_DEADLOCK
    1020: ErrorKind.CONTENTION,  # ER_CHECKREAD: record has changed since last read (MariaDB's snapshot isolation)
    3572: ErrorKind.CONTENTION,  # ER_LOCK_NOWAIT
    1062: ErrorKind.DUPLICATE,  # ER_DUP_ENTRY
    2002: ErrorKind.GONE,  # CR_CONNECTION_ERROR
    2003: ErrorKind.GONE,  # CR_CONN_HOST_ERROR
    2005: ErrorKind.GONE,  # CR_UNKNOWN_HOST
    2006: ErrorKind.GONE,  # CR_SERVER_GONE_ERROR
    2013: ErrorKind.GONE,  # CR_SERVER_LOST
    2014: ErrorKind.GONE,  # CR_COMMANDS_OUT_OF_SYNC
    2026: ErrorKind.GONE,  # CR_SSL_CONNECTION_ERROR
    2055: ErrorKind.GONE,  # CR_SERVER_LOST_EXTENDED
    1021: ErrorKind.GONE,  # ER_DISK_FULL
    1040: ErrorKind.GONE,  # ER_CON_COUNT_ERROR: too many connections
    1053: ErrorKind.GONE,  # ER_SERVER_SHUTDOWN
    1114: ErrorKind.GONE,  # ER_RECORD_FILE_FULL
    1129: ErrorKind.GONE,  # ER_HOST_IS_BLOCKED
    1152: ErrorKind.GONE,  # ER_ABORTING_CONNECTION
    1158: ErrorKind.GONE,  # ER_NET_READ_ERROR
    1159: ErrorKind.GONE,  # ER_NET_READ_INTERRUPTED
    1160: ErrorKind.GONE,  # ER_NET_ERROR_ON_WRITE
    1161: ErrorKind.GONE,  # ER_NET_WRITE_INTERRUPTED
    1184: ErrorKind.GONE,  # ER_NEW_ABORTING_CONNECTION
    1203: ErrorKind.GONE,  # ER_TOO_MANY_USER_CONNECTIONS
    1226: ErrorKind.GONE,  # ER_USER_LIMIT_REACHED
    1290: ErrorKind.GONE,  # ER_OPTION_PREVENTS_STATEMENT: read only
    1317: ErrorKind.GONE,  # ER_QUERY_INTERRUPTED
    1792: ErrorKind.GONE,  # ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
    1836: ErrorKind.GONE,  # ER_READ_ONLY_MODE
    1927: ErrorKind.GONE,  # ER_CONNECTION_KILLED (MariaDB)
    3100: ErrorKind.GONE,  # ER_RUN_HOOK_ERROR
    3169: ErrorKind.GONE,  # ER_SESSION_WAS_KILLED
    4031: ErrorKind.GONE,  # ER_CLIENT_INTERACTION_TIMEOUT
}
SQLITE = {  # primary result codes, https://www.sqlite.org/rescode.html
    5: ErrorKind.CONTENTION,  # SQLITE_BUSY
    6: ErrorKind.CONTENTION,  # SQLITE_LOCKED
    8: ErrorKind.GONE,  # SQLITE_READONLY
    10: ErrorKind.GONE,  # SQLITE_IOERR
    13: ErrorKind.GONE,  # SQLITE_FULL
    14: ErrorKind.GONE,  # SQLITE_CANTOPEN
}
SQLITE_UNIQUE = {2067, 1555}  # SQLITE_CONSTRAINT_UNIQUE, SQLITE_CONSTRAINT_PRIMARYKEY
POSTGRESQL = {  # SQLSTATE, or its class: https://www.postgresql.org/docs/current/errcodes-appendix.html
    "40001": ErrorKind.CONTENTION,  # serialization_failure
    "40P01": ErrorKind.CONTENTION,  # deadlock_detected
    "55P03": ErrorKind.CONTENTION,  # lock_not_available
    "23505": ErrorKind.DUPLICATE,  # unique_violation
    "25006": ErrorKind.GONE,  # read_only_sql_transaction
    "25P03": ErrorKind.GONE,  # idle_in_transaction_session_timeout: the connection was ended
    "25P04": ErrorKind.GONE,  # transaction_timeout: likewise
    "40003": ErrorKind.GONE,  # statement_completion_unknown
    "08": ErrorKind.GONE,  # connection exceptions
    "53": ErrorKind.GONE,  # insufficient resources
    "57": ErrorKind.GONE,  # operator intervention: shut down, starting up, statement cancelled
    "58": ErrorKind.GONE,  # system errors, such as the disk's
}


def classify(error: BaseException) -> ErrorKind:
    """Return what a database error (Django's, or the driver's) means."""
    cause = error.__cause__ if _is_djangos(error) and error.__cause__ is not None else error
    code = getattr(cause, "sqlite_errorcode", None)  # Python 3.11 and later
    if code is not None:
        return ErrorKind.DUPLICATE if code in SQLITE_UNIQUE else SQLITE.get(code & 0xFF, ErrorKind.OTHER)
    if type(cause).__module__.startswith("sqlite3"):  # Python 3.10 keeps the number to itself
        if "readonly" in str(cause):
            return ErrorKind.GONE
        return ErrorKind.CONTENTION if "locked" in str(cause) or "busy" in str(cause) else ErrorKind.OTHER
    state = getattr(cause, "sqlstate", None)
    if state:
        return POSTGRESQL.get(state) or POSTGRESQL.get(state[:2], ErrorKind.OTHER)
    number = cause.args[0] if cause.args else None
    if number == 0 or type(cause).__name__ == "InterfaceError":
        return ErrorKind.GONE  # mysqlclient and psycopg say so of a connection that is closed
    if any(kind.__module__ == "psycopg" and kind.__name__ == "OperationalError" for kind in type(cause).__mro__):
        return ErrorKind.GONE  # no SQLSTATE: could not connect, was lost on the way, is closed, the pool has none left
    return MYSQL.get(number, ErrorKind.OTHER) if isinstance(number, int) else ErrorKind.OTHER


def is_refusal(error: BaseException) -> bool:
    """Tell whether a publish statement was refused by the gate, which makes the first row's topic NULL."""
    cause = error.__cause__ if _is_djangos(error) and error.__cause__ is not None else error
    if cause.args and cause.args[0] == 1048:  # ER_BAD_NULL_ERROR, of MySQL
        return True
    return type(cause).__module__.startswith("sqlite3") and "sqlqueue_message.topic" in str(cause)


def _is_djangos(error: BaseException) -> bool:
    """Django raises its own errors from the drivers', which have the numbers."""
    return any(kind.__module__ == "django.db.utils" for kind in type(error).__mro__)
