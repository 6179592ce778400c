"""Statements beside the caller's transaction, on a connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from sqlqueue.database.statements import dialect, execute
from sqlqueue.database.transactions import in_callers_transaction, in_test_case


@contextmanager
def aside(alias: str) -> Iterator[Callable[[str, Any], Any]]:
    """Yield a function that executes statements outside the caller's transaction, on a separate connection; inside it
    if it is a test case's, which has to see what they do."""
    connection = connections[alias]
    if not in_callers_transaction(connection) or not dialect(alias).gated or in_test_case(connection):
        yield lambda text, values: execute(alias, text, values)
        return
    separate = connection.copy()

    def run(text: str, values: Any) -> Any:
        cursor.execute(dialect(alias).sql(text), values)
        return cursor

    try:
        with separate.cursor() as cursor:
            yield run
    finally:
        separate.close()
