"""Whose transaction it is that a statement would run in, and what it sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


def in_test_case(connection: object) -> bool:
    """Tell whether the transaction is a TestCase's, whose rows must vanish with it."""
    return any(getattr(block, "_from_testcase", False) for block in getattr(connection, "atomic_blocks", ()))


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
def fresh_reads(alias: str) -> Iterator[None]:
    """Let the transaction that begins in this block see what was committed before each of its statements.

    A verb locks, and then reads what the lock protects. At REPEATABLE READ and SERIALIZABLE PostgreSQL's snapshot is
    that of the first statement, which may have waited for the lock: what its last holder has committed is not in it.
    (MySQL's is that of the first read which locks nothing, and no verb reads before it locks.) The driver says the
    level with BEGIN: it costs no statement. Inside somebody's transaction it changes nothing.
    """
    connection = connections[alias]
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
