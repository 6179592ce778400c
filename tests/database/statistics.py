"""What the optimizer knows of the tables: of a time when they held other rows, nothing, or how they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import factory
from django.db import connection

from sqlqueue import NewMessage, publish_many
from tests.database.plans import an_index_if_there_is_one
from tests.factories import (
    BlockedRangeFactory,
    DeliveryStateFactory,
    OffsetFactory,
    PartitionLeaseFactory,
    ScheduledMessageFactory,
)

# No server may gather statistics by itself meanwhile.
BY_ITSELF = {
    "mysql": ("SET GLOBAL innodb_stats_auto_recalc = {}",),
    "postgresql": ("ALTER SYSTEM SET autovacuum = {}", "SELECT pg_reload_conf()"),
    "sqlite": (),
}
# As if the tables had never been analysed, or while they were empty.
FORGET = {
    "mysql": (
        "UPDATE mysql.innodb_table_stats SET n_rows = 0, clustered_index_size = 1 WHERE database_name = DATABASE()",
        "UPDATE mysql.innodb_index_stats SET stat_value = stat_name = 'size' WHERE database_name = DATABASE()",
        "FLUSH TABLES",
    ),
    "postgresql": (
        "DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE relname LIKE 'sqlqueue%%')",
        "UPDATE pg_class SET relpages = 0, reltuples = -1 WHERE relname LIKE 'sqlqueue%%' AND relkind IN ('r', 'i')",
    ),
    "sqlite": ("DELETE FROM sqlite_stat1",),
}


def run(*statements: str) -> None:
    """Run statements; the next one has a connection that knows what they have changed."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            if cursor.description:
                cursor.fetchall()
    connection.close()  # SQLite reads its statistics once a connection


def analyze(*tables: str) -> None:
    """Gather the statistics of these tables, or of all."""
    names = tables or tuple(connection.introspection.table_names())
    run(*(f"ANALYZE TABLE {name}" if connection.vendor == "mysql" else f"ANALYZE {name}" for name in names))


@contextmanager
def left_alone() -> Iterator[None]:
    """Let the server gather no statistics by itself."""
    run(*(statement.format("OFF") for statement in BY_ITSELF[connection.vendor]))
    try:
        yield
    finally:
        run(*(statement.format("ON") for statement in BY_ITSELF[connection.vendor]))


def skew() -> None:
    """Gather them while everything is of one topic, key, group and holder."""
    publish_many("orders", [NewMessage(n, key="k") for n in range(2_000)])
    ScheduledMessageFactory.insert(500, topic="orders", partition_key="k")
    each = {"consumer_group": "one", "topic": "orders", "partition": factory.Iterator(range(500))}
    PartitionLeaseFactory.insert(500, **each, holder="one")
    OffsetFactory.insert(500, **each, position=1)
    DeliveryStateFactory.insert(500, **each, message_offset=1, acked=True)
    BlockedRangeFactory.insert(500, **each, partition_key="k")
    analyze()


def states() -> Iterator[str]:
    """Yield what the statistics are, one after another, for a test that has called skew() and filled the tables.

    SQLite has none until ANALYZE is run. It then knows of an index only how many rows a value has on average:
    where all are of one group it reads the table, and skewed ones are left out here. MySQL reads a table that it takes
    for empty by any plan, whatever FORCE INDEX says, but for some seconds only: as soon as it has rows it gathers
    statistics by itself. So there are none that have none.
    """
    product = "MySQL" if connection.vendor == "mysql" and not connection.mysql_is_mariadb else connection.vendor
    changes: dict[str, Callable[[], None]] = {
        "skewed": lambda: None,
        "none": lambda: run(*FORGET[connection.vendor]),
        "known": analyze,
    }
    for name, change in changes.items():
        if (product, name) in (("sqlite", "skewed"), ("MySQL", "none")):
            continue
        change()
        with an_index_if_there_is_one():
            yield name
