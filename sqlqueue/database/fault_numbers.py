"""The database's faults, told by their numbers, in this one place. Needs no Django."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """What an error of the database means for whoever ran the verb."""

    CONTENTION = "a deadlock, a lock that was not to be had in time: rolled back, run it again"
    GONE = "the connection or the server is gone, or cannot write: whether a commit came through is unknown"
    DUPLICATE = "the row is there already"
    OTHER = "nobody's to mend but a person's"


MYSQL = {
    # https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html and …/client-error-reference.html
    1205: Fault.CONTENTION,  # ER_LOCK_WAIT_TIMEOUT
    1213: Fault.CONTENTION,  # ER_LOCK_DEADLOCK
    1020: Fault.CONTENTION,  # ER_CHECKREAD: record has changed since last read (MariaDB's snapshot isolation)
    3572: Fault.CONTENTION,  # ER_LOCK_NOWAIT
    1062: Fault.DUPLICATE,  # ER_DUP_ENTRY
    2002: Fault.GONE,  # CR_CONNECTION_ERROR
    2003: Fault.GONE,  # CR_CONN_HOST_ERROR
    2005: Fault.GONE,  # CR_UNKNOWN_HOST
    2006: Fault.GONE,  # CR_SERVER_GONE_ERROR
    2013: Fault.GONE,  # CR_SERVER_LOST
    2014: Fault.GONE,  # CR_COMMANDS_OUT_OF_SYNC
    2026: Fault.GONE,  # CR_SSL_CONNECTION_ERROR
    2055: Fault.GONE,  # CR_SERVER_LOST_EXTENDED
    1021: Fault.GONE,  # ER_DISK_FULL
    1040: Fault.GONE,  # ER_CON_COUNT_ERROR: too many connections
    1053: Fault.GONE,  # ER_SERVER_SHUTDOWN
    1114: Fault.GONE,  # ER_RECORD_FILE_FULL
    1129: Fault.GONE,  # ER_HOST_IS_BLOCKED
    1152: Fault.GONE,  # ER_ABORTING_CONNECTION
    1158: Fault.GONE,  # ER_NET_READ_ERROR
    1159: Fault.GONE,  # ER_NET_READ_INTERRUPTED
    1160: Fault.GONE,  # ER_NET_ERROR_ON_WRITE
    1161: Fault.GONE,  # ER_NET_WRITE_INTERRUPTED
    1184: Fault.GONE,  # ER_NEW_ABORTING_CONNECTION
    1203: Fault.GONE,  # ER_TOO_MANY_USER_CONNECTIONS
    1226: Fault.GONE,  # ER_USER_LIMIT_REACHED
    1290: Fault.GONE,  # ER_OPTION_PREVENTS_STATEMENT: read only
    1317: Fault.GONE,  # ER_QUERY_INTERRUPTED
    1836: Fault.GONE,  # ER_READ_ONLY_MODE
    1927: Fault.GONE,  # ER_CONNECTION_KILLED (MariaDB)
    3100: Fault.GONE,  # ER_RUN_HOOK_ERROR
    3169: Fault.GONE,  # ER_SESSION_WAS_KILLED
    4031: Fault.GONE,  # ER_CLIENT_INTERACTION_TIMEOUT
}
SQLITE = {  # primary result codes, https://www.sqlite.org/rescode.html
    5: Fault.CONTENTION,  # SQLITE_BUSY
    6: Fault.CONTENTION,  # SQLITE_LOCKED
    8: Fault.GONE,  # SQLITE_READONLY
    10: Fault.GONE,  # SQLITE_IOERR
    13: Fault.GONE,  # SQLITE_FULL
    14: Fault.GONE,  # SQLITE_CANTOPEN
}
SQLITE_UNIQUE = {2067, 1555}  # SQLITE_CONSTRAINT_UNIQUE, SQLITE_CONSTRAINT_PRIMARYKEY
POSTGRESQL = {  # SQLSTATE, or its class: https://www.postgresql.org/docs/current/errcodes-appendix.html
    "40001": Fault.CONTENTION,  # serialization_failure
    "40P01": Fault.CONTENTION,  # deadlock_detected
    "55P03": Fault.CONTENTION,  # lock_not_available
    "23505": Fault.DUPLICATE,  # unique_violation
    "25006": Fault.GONE,  # read_only_sql_transaction
    "25P03": Fault.GONE,  # idle_in_transaction_session_timeout: the connection was ended
    "25P04": Fault.GONE,  # transaction_timeout: likewise
    "40003": Fault.GONE,  # statement_completion_unknown
    "08": Fault.GONE,  # connection exceptions
    "53": Fault.GONE,  # insufficient resources
    "57": Fault.GONE,  # operator intervention: shut down, starting up, statement cancelled
    "58": Fault.GONE,  # system errors, such as the disk's
}


def classify(error: BaseException) -> Fault:
    """Return what a database error (Django's, or the driver's) means."""
    cause = error.__cause__ if _is_djangos(error) and error.__cause__ is not None else error
    code = getattr(cause, "sqlite_errorcode", None)  # Python 3.11 and later
    if code is not None:
        return Fault.DUPLICATE if code in SQLITE_UNIQUE else SQLITE.get(code & 0xFF, Fault.OTHER)
    if type(cause).__module__.startswith("sqlite3"):  # Python 3.10 keeps the number to itself
        return Fault.CONTENTION if "locked" in str(cause) or "busy" in str(cause) else Fault.OTHER
    state = getattr(cause, "sqlstate", None)
    if state:
        return POSTGRESQL.get(state) or POSTGRESQL.get(state[:2], Fault.OTHER)
    number = cause.args[0] if cause.args else None
    if number == 0 or type(cause).__name__ == "InterfaceError":
        return Fault.GONE  # mysqlclient and psycopg say so of a connection that is closed
    if any(kind.__module__ == "psycopg" and kind.__name__ == "OperationalError" for kind in type(cause).__mro__):
        return Fault.GONE  # no SQLSTATE: could not connect, was lost on the way, is closed, the pool has none left
    return MYSQL.get(number, Fault.OTHER) if isinstance(number, int) else Fault.OTHER


def _is_djangos(error: BaseException) -> bool:
    """Django raises its own errors from the drivers', which have the numbers."""
    return any(kind.__module__ == "django.db.utils" for kind in type(error).__mro__)
