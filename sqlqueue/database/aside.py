"""Statements beside the caller's transaction, on a connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue.database.insert_sql import HERE
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import CONNECTIONS_TRIED
from sqlqueue.database.transactions import in_callers_transaction, in_test_case

IN_CLUSTER = "SHOW SESSION VARIABLES LIKE 'wsrep_on'"


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
            if not _in_cluster(separate) or _here(separate) == _here(connection):
                return elsewhere.pop()
            # Kept until another one is found: a balancer would lead to the server with the fewest connections again.
        raise OperationalError("no second connection leads to the node of this transaction: run it again")
    finally:
        for each in elsewhere:
            each.close()


def _in_cluster(connection: BaseDatabaseWrapper) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(IN_CLUSTER)
        row = cursor.fetchone()
    return row is not None and row[1] == "ON"


def _here(connection: BaseDatabaseWrapper) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {HERE}")
        return str(cursor.fetchone()[0])
