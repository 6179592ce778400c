"""The transaction in which a statement would run, what it sees, whether it is still the one that was begun, and
statements beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import Error, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.insert_sql import HERE
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import CONNECTIONS_TRIED
from sqlqueue.exceptions import BrokenTransaction

View = TypeVar("View", bound=Callable[..., object])
Key = TypeVar("Key")
Value = TypeVar("Value")

THIS = f"SELECT {HERE}"
IN_CLUSTER = "SHOW SESSION VARIABLES LIKE 'wsrep_on'"
# A transaction's own: no other one can release it.
SET = "SAVEPOINT sqlqueue_guard"
RELEASE = "RELEASE SAVEPOINT sqlqueue_guard"
BEGUN = "SELECT TRANSACTION_TIMESTAMP()"
ENDED = (
    "the handler returned, but its transaction had ended before: a deadlock or another error that it swallowed has "
    "rolled it back, or SQL that commits, such as DDL, has ended it"
)


def outside_transactions(view: View) -> View:
    """Keep a view out of ATOMIC_REQUESTS, of every alias: which one is the queue's is not known before the setting has
    been read, and a mistake there is for the system checks to tell, not for the import of the urls."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def in_test_case(connection: object) -> bool:
    """Tell whether the transaction is a TestCase's, whose rows must vanish with it."""
    return any(getattr(block, "_from_testcase", False) for block in getattr(connection, "atomic_blocks", ()))


def in_callers_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether a transaction is open that is not a TestCase's."""
    if not connection.in_atomic_block:
        return not connection.get_autocommit() if connection.connection is not None else False
    return not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def remember_once_committed(log: Log, known: MutableMapping[Key, Value], key: Key, value: Value) -> None:
    """Remember what was read of a row, unless the transaction that may have inserted it is rolled back. A TestCase's
    always is, although its commit hooks may be run (captureOnCommitCallbacks)."""
    connection = log.connection
    if not connection.in_atomic_block:
        known[key] = value
    elif not in_test_case(connection):
        log.on_commit(lambda: known.setdefault(key, value))


def refusal(connection: BaseDatabaseWrapper) -> str:
    """Return why a statement would not be a transaction of its own; "" if it would, or is a test's."""
    if connection.in_atomic_block and not in_test_case(connection):
        why, what = "inside a transaction", "call this outside of transaction.atomic() (and of ATOMIC_REQUESTS)"
    elif not connection.in_atomic_block and not connection.get_autocommit():
        why, what = "while autocommit is off", "leave AUTOCOMMIT out of DATABASES, or call set_autocommit(True) first"
    else:
        return ""
    return f"{why}, for its locks would hold up every publisher until that ends: {what}"


@contextmanager
def fresh_reads(log: Log) -> Iterator[None]:
    """Let the transaction that begins in this block see what was committed before each of its statements.

    An operation locks, and then reads what the lock protects. At REPEATABLE READ and SERIALIZABLE PostgreSQL's snapshot
    is that of the first statement, which may have waited for the lock: what its last holder has committed is not in it.
    (MySQL's is that of the first read which locks nothing, and no operation reads before it locks.) The driver says the
    level with BEGIN: it costs no statement. Inside a caller's transaction it changes nothing.
    """
    connection = log.connection
    if connection.vendor != "postgresql" or connection.in_atomic_block or not connection.get_autocommit():
        yield
        return
    from django.db.backends.postgresql.psycopg_any import IsolationLevel  # only there where PostgreSQL is used

    driver = connection.connection
    before = driver.isolation_level
    driver.isolation_level = IsolationLevel.READ_COMMITTED
    try:
        yield
    finally:
        if not driver.closed:
            driver.isolation_level = before


@contextmanager
def aside(log: Log) -> Iterator[Callable[[str, Any], Any]]:
    """Yield a function that executes statements outside the caller's transaction, on a separate connection; inside it
    if it is a test case's, which has to see what they do.

    In a cluster of several writable nodes it leads to the transaction's node: another one may not have carried out yet
    what this transaction has seen. Raises OperationalError if it cannot be reached.
    """
    connection = log.connection
    if not in_callers_transaction(connection) or not log.dialect.gated or in_test_case(connection):
        yield lambda text, values: log.execute(text, values)
        return
    separate = _beside(connection) if connection.vendor == "mysql" else connection.copy()

    def run(text: str, values: Any) -> Any:
        cursor.execute(log.dialect.sql(text), values)
        return cursor

    try:
        with separate.cursor() as cursor:
            yield run
    finally:
        separate.close()


def _beside(connection: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    """Return another connection to the server that this one leads to."""
    elsewhere: list[BaseDatabaseWrapper] = []
    try:
        for _ in range(CONNECTIONS_TRIED):
            elsewhere.append(separate := connection.copy())
            if _last(separate, IN_CLUSTER) != "ON" or _last(separate, THIS) == _last(connection, THIS):
                return elsewhere.pop()
            # Kept until another one is found: a balancer would lead to the server with the fewest connections again.
        raise OperationalError("no second connection leads to the node of this transaction: run it again")
    finally:
        for each in elsewhere:
            each.close()


def _last(connection: BaseDatabaseWrapper, text: str) -> object:
    """Return the last column of a statement's row; None without a row."""
    with connection.cursor() as cursor:
        cursor.execute(text)
        return (cursor.fetchone() or (None,))[-1]


class Guard:
    """Tells whether a transaction in which application code runs is still the one that was begun for it.

    A deadlock rolls a whole transaction back, on SQLite some other errors do, and on MySQL DDL commits it. Code that
    goes on after that goes on in another transaction, with no word of it; what was to be committed with its writes
    would be committed without them.

    Set at the beginning of the transaction that `atomic` has just opened, where a connection that is lost shows.

    On MySQL and SQLite it is a savepoint: two statements. A failed transaction of PostgreSQL's refuses every statement;
    there the guard is the time at which the transaction began, which {begun} gives to a statement that is needed
    anyway.
    """

    def __init__(self, log: Log):
        self._log, self._begun = log, None
        if log.connection.vendor == "postgresql":  # psycopg puts the beginning off until the first statement
            self._begun = log.execute(BEGUN).fetchone()[0]
        else:
            log.execute(SET)

    def release(self) -> None:
        """Raise BrokenTransaction if the transaction has ended meanwhile."""
        if self._begun is not None:
            return
        try:
            self._log.execute(RELEASE)
        except TransactionManagementError:
            raise  # it is to be rolled back, and Django says why
        except Error as error:
            if classify(error) is not ErrorKind.BROKEN:
                raise
            raise BrokenTransaction(ENDED) from error

    def compare(self, begun: object) -> None:
        """Raise BrokenTransaction if the value of {begun} is another transaction's."""
        if begun != self._begun:
            raise BrokenTransaction(ENDED)
