"""What tests ask of their own connections, in the words of each vendor."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import Error, connection

from sqlqueue.database.server_identity import look
from tests.logs import LOG
from tests.processes import wait_until


def needs_one() -> None:
    """Skip the test, as the mark `session` does, if this run shares the server's sessions among its connections."""
    if os.environ.get("POOLER"):
        pytest.skip("needs a session of the server to itself; this run shares them")


def isolate(level: str) -> None:
    """Give this connection's transactions an isolation level, until it is closed."""
    needs_one()
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        else:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")


def isolation_option(level: str) -> object:
    """Return an isolation level as Django's OPTIONS want it."""
    if connection.vendor != "postgresql":
        return level
    from psycopg import IsolationLevel  # only there when the suite runs on PostgreSQL

    return IsolationLevel[level.upper().replace(" ", "_")].value


def isolation_level() -> str:
    """Return the isolation level of this connection's transactions, such as "read committed"."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SHOW transaction_isolation")
        else:
            cursor.execute(
                "SELECT variable_value FROM information_schema.session_variables"
                " WHERE variable_name IN ('tx_isolation', 'transaction_isolation')"
                if connection.mysql_is_mariadb
                else "SELECT @@transaction_isolation"
            )
        return str(cursor.fetchone()[0]).lower().replace("-", " ")


def wait_for_locks(seconds: int) -> None:
    """Let this connection wait no longer for any lock, until it is closed."""
    needs_one()
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"SET lock_timeout = '{seconds}s'")
        else:
            cursor.execute(f"SET innodb_lock_wait_timeout = {seconds}")


def lock_wait() -> str:
    """Return for how long this connection waits for a lock, as the server says it."""
    needs_one()
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SHOW lock_timeout")
        else:
            cursor.execute("SELECT @@SESSION.innodb_lock_wait_timeout")
        return str(cursor.fetchone()[0])


def connection_id() -> int:
    """Return the server's number of this connection; PostgreSQL's is that of the process that serves it, behind a
    pooler until the transaction ends."""
    if not connection.in_atomic_block:
        needs_one()
    with connection.cursor() as cursor:
        cursor.execute("SELECT PG_BACKEND_PID()" if connection.vendor == "postgresql" else "SELECT CONNECTION_ID()")
        return cursor.fetchone()[0]


def end_connection(number: int) -> None:
    """Let the server end a connection."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT PG_TERMINATE_BACKEND(%s, 30000)", [number])
            assert cursor.fetchone()[0]
        else:
            cursor.execute(f"KILL {number}")


def place_of_the_last_insert() -> int:
    """Return the number that this connection's last INSERT gave to one of its rows; 0 where no caller needs it."""
    needs_one()
    if connection.vendor == "sqlite":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT LASTVAL()" if connection.vendor == "postgresql" else "SELECT LAST_INSERT_ID()")
        return cursor.fetchone()[0]


def crash_a_process() -> None:
    """Kill the PostgreSQL process that serves this connection, and return when the server has recovered from it.

    It then ends all connections, those too that it has let in since: so wait until it says that it has begun anew.
    """
    before = look(LOG).identity
    os.kill(connection_id(), signal.SIGKILL)
    wait_until(lambda: look_again() not in (None, before), 60)


def look_again() -> str | None:
    """Look at the server over a new connection; None while there is none to be had."""
    connection.close()
    try:
        return look(LOG).identity
    except Error:
        return None


@contextmanager
def late_commits() -> Iterator[None]:
    """Let the server show commits long before they are safe on its disk, until it is started again inside the block."""
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
            yield
            return
        cursor.execute("ALTER SYSTEM SET synchronous_commit = off")
        cursor.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        cursor.execute("SELECT PG_RELOAD_CONF()")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER SYSTEM RESET synchronous_commit")
            cursor.execute("ALTER SYSTEM RESET wal_writer_delay")
            cursor.execute("SELECT PG_RELOAD_CONF()")
