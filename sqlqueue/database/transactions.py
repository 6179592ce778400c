"""The transaction in which a statement would run, and what it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import TypeVar

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue.database.log import Log

View = TypeVar("View", bound=Callable[..., object])
Key = TypeVar("Key")
Value = TypeVar("Value")


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
