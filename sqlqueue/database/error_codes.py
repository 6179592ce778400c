"""Error codes: classifies database errors by number or SQLSTATE.

What is in no list is OTHER: it may be the environment's, and may pass. Only DATA is for good.
"""

from __future__ import annotations

import enum
from typing import Final


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
ELSEWHERE = -1  # no server's number: forwarding.GateElsewhere
# The errors of MySQL, of MariaDB and of their client libraries. The names are those of the servers' own lists:
# performance_schema.events_errors_summary_global_by_error of MySQL, errmsg-utf8.txt of MariaDB, and errmsg.h (CR_). A
# number that both servers have means the same, or is met on one of them only.
MYSQL_ERRORS: Final = {
    # The transaction, or the statement, was rolled back for the sake of another one: run again, it may succeed.
    ErrorKind.CONTENTION: """
        1020 ER_CHECKREAD  1205 ER_LOCK_WAIT_TIMEOUT  1213 ER_LOCK_DEADLOCK  1402 ER_XA_RBROLLBACK
        1412 ER_TABLE_DEF_CHANGED  1613 ER_XA_RBTIMEOUT  1614 ER_XA_RBDEADLOCK  1615 ER_NEED_REPREPARE
        1689 ER_LOCK_ABORTED  1964 ER_PRIOR_COMMIT_FAILED  3058 ER_USER_LOCK_DEADLOCK
        3101 ER_TRANSACTION_ROLLBACK_DURING_COMMIT  3177 ER_LOCK_REFUSED_BY_ENGINE  3572 ER_LOCK_NOWAIT
    """,
    # The server, the way to it, its room, or what an operator has set. Also every error of connecting.
    ErrorKind.GONE: """
        1015 ER_CANT_LOCK  1016 ER_CANT_OPEN_FILE  1021 ER_DISK_FULL  1024 ER_ERROR_ON_READ  1026 ER_ERROR_ON_WRITE
        1030 ER_GET_ERRNO  1036 ER_OPEN_AS_READONLY  1037 ER_OUTOFMEMORY  1038 ER_OUT_OF_SORTMEMORY
        1040 ER_CON_COUNT_ERROR  1041 ER_OUT_OF_RESOURCES  1042 ER_BAD_HOST_ERROR  1043 ER_HANDSHAKE_ERROR
        1044 ER_DBACCESS_DENIED_ERROR  1045 ER_ACCESS_DENIED_ERROR  1047 ER_UNKNOWN_COM_ERROR  1049 ER_BAD_DB_ERROR
        1053 ER_SERVER_SHUTDOWN  1077 ER_NORMAL_SHUTDOWN  1079 ER_SHUTDOWN_COMPLETE  1080 ER_FORCING_CLOSE
        1081 ER_IPSOCK_ERROR  1114 ER_RECORD_FILE_FULL  1129 ER_HOST_IS_BLOCKED  1130 ER_HOST_NOT_PRIVILEGED
        1135 ER_CANT_CREATE_THREAD  1152 ER_ABORTING_CONNECTION  1154 ER_NET_READ_ERROR_FROM_PIPE
        1155 ER_NET_FCNTL_ERROR  1156 ER_NET_PACKETS_OUT_OF_ORDER  1157 ER_NET_UNCOMPRESS_ERROR  1158 ER_NET_READ_ERROR
        1159 ER_NET_READ_INTERRUPTED  1160 ER_NET_ERROR_ON_WRITE  1161 ER_NET_WRITE_INTERRUPTED
        1180 ER_ERROR_DURING_COMMIT  1181 ER_ERROR_DURING_ROLLBACK  1184 ER_NEW_ABORTING_CONNECTION
        1197 ER_TRANS_CACHE_FULL  1203 ER_TOO_MANY_USER_CONNECTIONS  1206 ER_LOCK_TABLE_FULL
        1207 ER_READ_ONLY_TRANSACTION  1223 ER_CANT_UPDATE_WITH_READLOCK  1226 ER_USER_LIMIT_REACHED
        1251 ER_NOT_SUPPORTED_AUTH_MODE  1290 ER_OPTION_PREVENTS_STATEMENT  1297 ER_GET_TEMPORARY_ERRMSG
        1317 ER_QUERY_INTERRUPTED  1461 ER_MAX_PREPARED_STMT_COUNT_REACHED  1637 ER_TOO_MANY_CONCURRENT_TRXS
        1698 ER_ACCESS_DENIED_NO_PASSWORD_ERROR  1705 ER_STMT_CACHE_FULL  1712 ER_INDEX_CORRUPT
        1792 ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION  1817 ER_INNODB_INDEX_CORRUPT  1820 ER_MUST_CHANGE_PASSWORD
        1836 ER_READ_ONLY_MODE  1862 ER_MUST_CHANGE_PASSWORD_LOGIN  1873 ER_ACCESS_DENIED_CHANGE_USER_ERROR
        1874 ER_INNODB_READ_ONLY  1877 ER_TABLE_CORRUPT  1927 ER_CONNECTION_KILLED  1969 ER_STATEMENT_TIMEOUT
        3015 ER_ENGINE_OUT_OF_MEMORY  3019 ER_INNODB_UNDO_LOG_FULL  3024 ER_QUERY_TIMEOUT  3032 ER_SERVER_OFFLINE_MODE
        3068 ER_NET_OK_PACKET_TOO_LARGE  3098 ER_BEFORE_DML_VALIDATION_ERROR  3100 ER_RUN_HOOK_ERROR
        3118 ER_ACCOUNT_HAS_BEEN_LOCKED  3159 ER_SECURE_TRANSPORT_REQUIRED  3168 ER_SERVER_ISNT_AVAILABLE
        3169 ER_SESSION_WAS_KILLED  3675 ER_DISK_FULL_NOWAIT  3781 ER_GR_HOLD_WAIT_TIMEOUT  3782 ER_GR_HOLD_KILLED
        3879 ER_DB_ACCESS_DENIED  3955 ER_USER_ACCESS_DENIED_FOR_USER_ACCOUNT_BLOCKED_BY_PASSWORD_LOCK
        3985 ER_MDL_OUT_OF_RESOURCES  3989 ER_SCHEMA_READ_ONLY  4031 ER_CLIENT_INTERACTION_TIMEOUT
        4081 ER_DA_GLOBAL_CONN_LIMIT  4082 ER_DA_CONN_LIMIT  4145 ER_BACKUP_LOCK_IS_ACTIVE  4150 ER_USER_IS_BLOCKED
        4151 ER_ACCOUNT_HAS_BEEN_LOCKED  6126 ER_ACCESS_DENIED_NO_PROXY_GRANT  6127 ER_ACCESS_DENIED_NO_PROXY
        6400 ER_SERVER_OFFLINE_MODE_REASON  6444 ER_ACCESS_DENIED_FIREWALL  2000 CR_UNKNOWN_ERROR
        2001 CR_SOCKET_CREATE_ERROR  2002 CR_CONNECTION_ERROR  2003 CR_CONN_HOST_ERROR  2004 CR_IPSOCK_ERROR
        2005 CR_UNKNOWN_HOST  2006 CR_SERVER_GONE_ERROR  2007 CR_VERSION_ERROR  2008 CR_OUT_OF_MEMORY
        2009 CR_WRONG_HOST_INFO  2012 CR_SERVER_HANDSHAKE_ERR  2013 CR_SERVER_LOST  2014 CR_COMMANDS_OUT_OF_SYNC
        2026 CR_SSL_CONNECTION_ERROR  2027 CR_MALFORMED_PACKET  2047 CR_CONN_UNKNOW_PROTOCOL
        2048 CR_INVALID_CONN_HANDLE  2050 CR_FETCH_CANCELED  2051 CR_NO_DATA  2053 CR_NO_RESULT_SET
        2055 CR_SERVER_LOST_EXTENDED  2056 CR_STMT_CLOSED  2058 CR_ALREADY_CONNECTED  2059 CR_AUTH_PLUGIN_CANNOT_LOAD
        2060 CR_DUPLICATE_CONNECTION_ATTR  2061 CR_AUTH_PLUGIN_ERR  2062 CR_INSECURE_API_ERR  2064 CR_SSL_FIPS_MODE_ERR
    """,
    ErrorKind.DUPLICATE: "1062 ER_DUP_ENTRY",
    # The values of a row, its size, or what a constraint or a trigger says of it.
    ErrorKind.DATA: """
        1022 ER_DUP_KEY  1048 ER_BAD_NULL_ERROR  1138 ER_INVALID_USE_OF_NULL  1153 ER_NET_PACKET_TOO_LARGE
        1169 ER_DUP_UNIQUE  1216 ER_NO_REFERENCED_ROW  1217 ER_ROW_IS_REFERENCED  1263 ER_WARN_NULL_TO_NOTNULL
        1264 ER_WARN_DATA_OUT_OF_RANGE  1265 WARN_DATA_TRUNCATED  1292 ER_TRUNCATED_WRONG_VALUE
        1300 ER_INVALID_CHARACTER_STRING  1301 ER_WARN_ALLOWED_PACKET_OVERFLOWED  1364 ER_NO_DEFAULT_FOR_FIELD
        1365 ER_DIVISION_BY_ZERO  1366 ER_TRUNCATED_WRONG_VALUE_FOR_FIELD  1367 ER_ILLEGAL_VALUE_FOR_TYPE
        1406 ER_DATA_TOO_LONG  1411 ER_WRONG_VALUE_FOR_TYPE  1416 ER_CANT_CREATE_GEOMETRY_OBJECT
        1441 ER_DATETIME_FUNCTION_OVERFLOW  1451 ER_ROW_IS_REFERENCED_2  1452 ER_NO_REFERENCED_ROW_2
        1586 ER_DUP_ENTRY_WITH_KEY_NAME  1644 ER_SIGNAL_EXCEPTION  1690 ER_DATA_OUT_OF_RANGE
        1761 ER_FOREIGN_DUPLICATE_KEY_WITH_CHILD_INFO  1762 ER_FOREIGN_DUPLICATE_KEY_WITHOUT_CHILD_INFO
        1859 ER_DUP_UNKNOWN_IN_INDEX  1916 ER_DATA_OVERFLOW  1917 ER_DATA_TRUNCATED  1918 ER_BAD_DATA
        3140 ER_INVALID_JSON_TEXT  3141 ER_INVALID_JSON_TEXT_IN_PARAM  3144 ER_INVALID_JSON_CHARSET
        3145 ER_INVALID_JSON_CHARSET_IN_FUNCTION  3146 ER_INVALID_TYPE_FOR_JSON  3147 ER_INVALID_CAST_TO_JSON
        3150 ER_JSON_VALUE_TOO_BIG  3151 ER_JSON_KEY_TOO_BIG  3155 ER_NUMERIC_JSON_VALUE_OUT_OF_RANGE
        3156 ER_INVALID_JSON_VALUE_FOR_CAST  3157 ER_JSON_DOCUMENT_TOO_DEEP  3158 ER_JSON_DOCUMENT_NULL_KEY
        3665 ER_MISSING_JSON_TABLE_VALUE  3666 ER_WRONG_JSON_TABLE_VALUE  3669 ER_JT_VALUE_OUT_OF_RANGE
        3673 ER_BAD_NULL_ERROR_NOT_IGNORED  3752 ER_WARN_DATA_OUT_OF_RANGE_FUNCTIONAL_INDEX
        3819 ER_CHECK_CONSTRAINT_VIOLATED  3853 ER_INVALID_JSON_TYPE  3854 ER_CANNOT_CONVERT_STRING
        3903 ER_INVALID_JSON_VALUE_FOR_FUNC_INDEX  3904 ER_JSON_VALUE_OUT_OF_RANGE_FOR_FUNC_INDEX
        3907 ER_FUNCTIONAL_INDEX_DATA_IS_TOO_LONG  3966 ER_MISSING_JSON_VALUE  3967 ER_MULTIPLE_JSON_VALUES
        3988 ER_IMPOSSIBLE_STRING_CONVERSION  4025 ER_CONSTRAINT_FAILED  6527 ER_TEMPORAL_FUNCTION_OVERFLOW
        2020 CR_NET_PACKET_TOO_LARGE  2032 CR_DATA_TRUNCATED
    """,
    ErrorKind.SCHEMA: "1054 ER_BAD_FIELD_ERROR  1146 ER_NO_SUCH_TABLE",
    # The transaction has ended, or is in another state than the program left it in.
    ErrorKind.BROKEN: "1305 ER_SP_DOES_NOT_EXIST  1568 ER_CANT_CHANGE_TX_CHARACTERISTICS",
    # A right, or a setting of the session: the connection works, and an operator can change that.
    ErrorKind.OTHER: """
        1095 ER_KILL_DENIED_ERROR  1104 ER_TOO_BIG_SELECT  1105 ER_UNKNOWN_ERROR  1142 ER_TABLEACCESS_DENIED_ERROR
        1143 ER_COLUMNACCESS_DENIED_ERROR  1175 ER_UPDATE_WITHOUT_KEY_IN_SAFE_MODE  1227 ER_SPECIFIC_ACCESS_DENIED_ERROR
        1370 ER_PROCACCESS_DENIED_ERROR  3164 ER_AUDIT_API_ABORT  6038 ER_SPECIFIC_ACCESS_DENIED
        6544 ER_AUDIT_LOG_ABORT
    """,
}
MYSQL = {int(number): kind for kind, listed in MYSQL_ERRORS.items() for number in listed.split()[::2]}
MYSQL[ELSEWHERE] = ErrorKind.CONTENTION
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
