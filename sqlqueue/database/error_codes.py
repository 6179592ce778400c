"""Error codes: classifies database errors by number or SQLSTATE.

What is in no list is OTHER: it may be the environment's, and may pass. Only DATA is for good.
"""

from __future__ import annotations

import enum
from typing import Final

from sqlqueue.database import mysql_errors


class ErrorKind(enum.Enum):
    """What a database error means for the operation that met it."""

    CONTENTION = "a deadlock, a lock that was not granted in time: rolled back, run it again"
    GONE = "the connection or the server is gone, or cannot write: whether a commit succeeded is unknown"
    DUPLICATE = "the row is there already"
    DATA = "the row's own: a value, its size, or a constraint; no retry helps"
    SCHEMA = "a table or a column is missing: the tables are to be migrated"
    BROKEN = "the transaction had failed or ended before: an error in it was swallowed, or SQL has ended it"
    OTHER = "not known: it may be the environment's, and pass"


FOR_GOOD: Final = (ErrorKind.DATA, ErrorKind.DUPLICATE, ErrorKind.BROKEN)
ELSEWHERE = -1  # no server's number: detour.GateElsewhere
MYSQL = {
    number: kind for kind in ErrorKind for number in mysql_errors.numbers(getattr(mysql_errors, kind.name, ""))
} | {ELSEWHERE: ErrorKind.CONTENTION}
SQLITE = {  # primary result codes, https://www.sqlite.org/rescode.html
    5: ErrorKind.CONTENTION,  # SQLITE_BUSY
    6: ErrorKind.CONTENTION,  # SQLITE_LOCKED
    15: ErrorKind.CONTENTION,  # SQLITE_PROTOCOL: the file's lock was not to be had
    17: ErrorKind.CONTENTION,  # SQLITE_SCHEMA: the tables have changed while it ran
    3: ErrorKind.GONE,  # SQLITE_PERM
    7: ErrorKind.GONE,  # SQLITE_NOMEM
    8: ErrorKind.GONE,  # SQLITE_READONLY
    9: ErrorKind.GONE,  # SQLITE_INTERRUPT
    10: ErrorKind.GONE,  # SQLITE_IOERR
    11: ErrorKind.GONE,  # SQLITE_CORRUPT
    13: ErrorKind.GONE,  # SQLITE_FULL
    14: ErrorKind.GONE,  # SQLITE_CANTOPEN
    26: ErrorKind.GONE,  # SQLITE_NOTADB
    18: ErrorKind.DATA,  # SQLITE_TOOBIG
    19: ErrorKind.DATA,  # SQLITE_CONSTRAINT
    20: ErrorKind.DATA,  # SQLITE_MISMATCH
}
SQLITE_UNIQUE = {2067, 1555}  # SQLITE_CONSTRAINT_UNIQUE, SQLITE_CONSTRAINT_PRIMARYKEY
SQLITE_ERROR = {  # SQLITE_ERROR, 1, has no further number, so its text is what there is
    "no such table": ErrorKind.SCHEMA,
    "no such column": ErrorKind.SCHEMA,
    "has no column named": ErrorKind.SCHEMA,
    "no such savepoint": ErrorKind.BROKEN,
    "no transaction is active": ErrorKind.BROKEN,
    "within a transaction": ErrorKind.BROKEN,
    "malformed JSON": ErrorKind.DATA,
    "integer overflow": ErrorKind.DATA,
}
POSTGRESQL = {  # SQLSTATE, or its class: https://www.postgresql.org/docs/current/errcodes-appendix.html
    "08": ErrorKind.GONE,  # connection exceptions
    "21": ErrorKind.DATA,  # cardinality violation
    "22": ErrorKind.DATA,  # data exceptions
    "23": ErrorKind.DATA,  # integrity constraints
    "23505": ErrorKind.DUPLICATE,  # unique_violation
    "25": ErrorKind.BROKEN,  # invalid transaction states
    "25006": ErrorKind.GONE,  # read_only_sql_transaction
    "25P03": ErrorKind.GONE,  # idle_in_transaction_session_timeout: the connection was ended
    "25P04": ErrorKind.GONE,  # transaction_timeout: likewise
    "28": ErrorKind.GONE,  # invalid authorization: it could not connect
    "2D": ErrorKind.BROKEN,  # invalid transaction termination
    "3B": ErrorKind.BROKEN,  # savepoint exceptions
    "3D": ErrorKind.GONE,  # invalid_catalog_name: there is no such database to connect to
    "40": ErrorKind.CONTENTION,  # transaction rollback: serialization_failure, deadlock_detected
    "40002": ErrorKind.DATA,  # transaction_integrity_constraint_violation
    "40003": ErrorKind.GONE,  # statement_completion_unknown
    "42P01": ErrorKind.SCHEMA,  # undefined_table
    "42703": ErrorKind.SCHEMA,  # undefined_column
    "44": ErrorKind.DATA,  # with_check_option_violation
    "53": ErrorKind.GONE,  # insufficient resources
    "54": ErrorKind.DATA,  # program limit exceeded: a key too large for an index, JSON nested too deeply
    "55P03": ErrorKind.CONTENTION,  # lock_not_available
    "57": ErrorKind.GONE,  # operator intervention: shut down, starting up, statement cancelled
    "58": ErrorKind.GONE,  # system errors, such as the disk's
    "72": ErrorKind.CONTENTION,  # snapshot_too_old
    "P0001": ErrorKind.DATA,  # raise_exception: a trigger refuses the row
    "P0004": ErrorKind.DATA,  # assert_failure: likewise
}


def classify(error: BaseException) -> ErrorKind:
    """Return what a database error (Django's, or the driver's) means."""
    cause = error.__cause__ if _is_djangos(error) and error.__cause__ is not None else error
    code = getattr(cause, "sqlite_errorcode", None)  # Python 3.11 and later
    if code is not None:
        return _of_sqlite(code, str(cause))
    if type(cause).__module__.startswith("sqlite3"):  # Python 3.10 keeps the number to itself
        if "readonly" in str(cause):
            return ErrorKind.GONE
        if "locked" in str(cause) or "busy" in str(cause):
            return ErrorKind.CONTENTION
        return _by_class(cause, _of_sqlite(1, str(cause)))
    state = getattr(cause, "sqlstate", None)
    if state:
        return POSTGRESQL.get(state) or POSTGRESQL.get(state[:2], ErrorKind.OTHER)
    number = cause.args[0] if cause.args else None
    if number == 0 or type(cause).__name__ == "InterfaceError":
        return ErrorKind.GONE  # mysqlclient and psycopg say so of a connection that is closed
    if any(kind.__module__ == "psycopg" and kind.__name__ == "OperationalError" for kind in type(cause).__mro__):
        return ErrorKind.GONE  # no SQLSTATE: could not connect, was lost on the way, is closed, the pool has none left
    return _by_class(cause, MYSQL.get(number, ErrorKind.OTHER) if isinstance(number, int) else ErrorKind.OTHER)


def _of_sqlite(code: int, text: str) -> ErrorKind:
    if code in SQLITE_UNIQUE:
        return ErrorKind.DUPLICATE
    if code == 1:
        return next((kind for words, kind in SQLITE_ERROR.items() if words in text), ErrorKind.OTHER)
    return SQLITE.get(code & 0xFF, ErrorKind.OTHER)


def _by_class(error: BaseException, kind: ErrorKind) -> ErrorKind:
    """Return the kind of an error whose number says nothing: what its class says (PEP 249), or Django's."""
    if kind is not ErrorKind.OTHER:
        return kind
    names = {each.__name__ for each in type(error).__mro__}
    if "TransactionManagementError" in names:
        return ErrorKind.BROKEN
    return ErrorKind.DATA if names & {"DataError", "IntegrityError"} else kind


def is_refusal(error: BaseException) -> bool:
    """Tell whether a publish statement was refused by the gate, which makes the first row's topic NULL."""
    cause = error.__cause__ if _is_djangos(error) and error.__cause__ is not None else error
    if cause.args and cause.args[0] == 1048:  # ER_BAD_NULL_ERROR, of MySQL
        return True
    return type(cause).__module__.startswith("sqlite3") and "sqlqueue_message.topic" in str(cause)


def _is_djangos(error: BaseException) -> bool:
    """Django raises its own errors from the drivers', which have the numbers."""
    return any(kind.__module__ == "django.db.utils" for kind in type(error).__mro__)
