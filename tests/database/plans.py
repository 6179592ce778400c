"""How the database says that it would carry a statement out."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from sqlqueue.models import (
    AckedMark,
    BlockedRange,
    CollectedMessage,
    DeliveryState,
    Message,
    Offset,
    PartitionLease,
    Receipt,
    Result,
    ScheduledMessage,
    UniqueMessage,
)

TABLES = (
    AckedMark,
    Message,
    DeliveryState,
    BlockedRange,
    CollectedMessage,
    Offset,
    PartitionLease,
    Receipt,
    Result,
    ScheduledMessage,
    UniqueMessage,
)


NOT_WAITING = re.compile(r"/\*.*?\*/ ?")  # what lets a statement of MySQL's and MariaDB's not wait for a table's lock


class Recorder:
    """The statements that were run, once each, however many values stood in them."""

    def __init__(self) -> None:
        self.statements: dict[str, tuple[str, tuple]] = {}
        self.count = 0

    def __call__(self, execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        self.count += 1
        sql = NOT_WAITING.sub("", sql)
        if re.match(r"\s*\(?\s*(SELECT|UPDATE|DELETE|WITH)\b", sql) and "sqlqueue_" in sql:
            self.statements.setdefault(re.sub(r"(%s, )+", "%s, ", sql), (sql, tuple(params or ())))
        return result


EXPLAIN = {"sqlite": "QUERY PLAN", "mysql": "FORMAT=TRADITIONAL", "postgresql": "(FORMAT JSON)"}


def plan_of(sql: str, params: tuple) -> list[dict[str, object]]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {EXPLAIN[connection.vendor]} {sql}", params)
        if connection.vendor == "postgresql":
            return list(nodes(cursor.fetchone()[0][0]["Plan"]))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def nodes(plan: dict, subquery: bool = False) -> Iterator[dict[str, object]]:
    """Yield PostgreSQL's plan, and all that is below it; each says whether it is in a subquery."""
    subquery = subquery or plan.get("Parent Relationship") in ("InitPlan", "SubPlan")
    yield plan | {"subquery": subquery}
    for below in plan.get("Plans", ()):
        yield from nodes(below, subquery)


@contextmanager
def an_index_if_there_is_one() -> Iterator[None]:
    """Let PostgreSQL read a whole table or index only where no lookup serves: small ones it rightly had rather read
    whole, also to join them. Nor does it plan with workers, to which such a ban makes everything look dear."""
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql":
            yield
            return
        ways = ("seqscan", "mergejoin", "hashjoin")
        for way in ways:
            cursor.execute(f"SET enable_{way} = off")
        cursor.execute("SET max_parallel_workers_per_gather = 0")
        yield
        cursor.execute("RESET max_parallel_workers_per_gather")
        for way in ways:
            cursor.execute(f"RESET enable_{way}")


def full_scans(sql: str, params: tuple) -> list[str]:
    """Return the tables that a statement reads without an index, as the database says. Looks into the catalogue are not
    asked: it has no indexes."""
    if "information_schema" in sql:
        return []
    bounded = "LIMIT" in sql and "WHERE" not in sql  # the first or last so many, by the primary key
    if connection.vendor == "sqlite":
        details = [str(row["detail"]) for row in plan_of(sql, params)]
        # What the statement makes itself.
        made_here = r"\(|CONSTANT|\d|above|dead_letters|open_items|late_items|subquery|wanted$|f$"
        return [d for d in details if re.match(f"SCAN (?!{made_here})", d) and " USING " not in d and not bounded]
    if connection.vendor == "postgresql":
        return [
            f"{node['Relation Name']} ({node['Node Type']}, {node['Plan Rows']} rows)"
            for node in plan_of(sql, params)
            if node.get("Relation Name") in {model._meta.db_table for model in TABLES}
            and (node["Node Type"] == "Seq Scan" or ("Index Name" in node and "Index Cond" not in node and not bounded))
        ]
    return [
        f"{row['table']} ({row['type']}, {row['rows']} rows)"
        for row in plan_of(sql, params)
        if (row["type"] == "ALL" or (row["type"] == "index" and not bounded))
        and not str(row["table"]).startswith("<derived")  # a list of keys that the statement itself has made
    ]
