"""Counts what a path costs: the statements that the server is sent, and the rows that they change.

No clock decides it, so a statement or a row more fails at once. BEGIN, COMMIT and savepoints are not counted, nor are
the looks at the log's end and at the gate: how many of these there are depends on other publishers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from django.db import connections

# A common table expression may only read: PostgreSQL and SQLite join given rows by one.
CHANGE = re.compile(r"\s*(INSERT|UPDATE|DELETE|WITH\b.*(INSERT INTO|UPDATE \S+ SET|DELETE FROM))\b", re.DOTALL | re.I)
# The last two: of a new connection, when the last one got too old; PostgreSQL then says which server it is.
NOT_COUNTED = ("BEGIN", "SAVEPOINT", "RELEASE", "SET", "SELECT CONCAT(EXTRACT")
OF_A_CONNECTION = ("UUID", "2001-02-03")  # once for each: which server it is, and whether its session changes values
LOOKS = (*OF_A_CONNECTION, "MAX(", "sqlqueue_publish_gate", "pg_locks")  # and at the log's end, and the gate


class Cost(NamedTuple):
    """Statements that read, statements that change rows, and how many rows they change. Of an upsert MySQL and MariaDB
    say 2 rows for one that was there."""

    reads: int
    changes: int
    rows: int


# What one path costs: everywhere, or by the database's name, where "" stands for all others.
Costs = Cost | Mapping[str, Cost]


class Counter:
    """Counts the statements that pass it, of one connection or several."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.changes: list[str] = []
        self.rows = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        result = execute(sql, params, many, context)
        if CHANGE.match(sql):
            self.changes.append(sql)
            if context["connection"].vendor != "sqlite":  # which does not tell where rows are returned
                self.rows += max(0, context["cursor"].cursor.rowcount)
        elif not sql.lstrip().upper().startswith(NOT_COUNTED) and not any(look in sql for look in LOOKS):
            self.reads.append(sql)
        return result

    def check(self, expected: Costs) -> None:
        """Fail unless it has been exactly this; the message has the statements. On SQLite rows are not compared."""
        database = os.environ["DATABASE"]  # the suite's
        if not isinstance(expected, Cost):
            expected = expected.get(database) or expected[""]
        cost = Cost(len(self.reads), len(self.changes), expected.rows if database == "sqlite" else self.rows)
        assert cost == expected, "\n".join(self.reads + self.changes)


@contextmanager
def counted(*aliases: str) -> Iterator[Counter]:
    """Count what this thread sends to these databases, `default` if none is named."""
    counter = Counter()
    with ExitStack() as stack:
        for alias in aliases or ("default",):
            stack.enter_context(connections[alias].execute_wrapper(counter))
        yield counter
