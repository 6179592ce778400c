"""Measure how fast a group reads a log from the start that is larger than the server's buffer pool, beside the same
with a pool that holds it: `python -m tests.benchmarks.rereading`, on a private MariaDB server with 24 MB or 1 GB
(`--pool`, `--large`).

Messages of 1 kB (`--bytes`), 16 partitions, 997 keys, handlers that do nothing. MariaDB reads its files past the
kernel's cache (O_DIRECT, its default), so what is not in the pool is read from the disk. The rounds are interleaved,
and the ratios are medians of those within a round. Pages are those that the server reads from its files, and those that
the log has.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.logs import LOG

PARTITIONS = 16
NAME = len('{"filler": ""}')  # of a payload besides its filler
KINDS: dict[str, dict[str, Any]] = {"handler": {}, "batch handler (500)": {"batch": True, "batch_size": 500}}
MB = 1_048_576
PAGES_READ = "Innodb_pages_read"
LOG_PAGES = """
    SELECT SUM(data_length + index_length) / @@innodb_page_size FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name = 'sqlqueue_message'
"""
# Into the pool: the rows, and the index by which partitions are read.
WARM = (
    'SELECT SUM(LENGTH(payload)) FROM sqlqueue_message FORCE INDEX (PRIMARY) WHERE "offset" > 0',
    "SELECT COUNT(*) FROM sqlqueue_message FORCE INDEX (sqlqueue_message_fetch) WHERE priority = 0",
)


class Reading(NamedTuple):
    """Of one pass through the log. fetching: the part of the time in statements that read messages."""

    rate: float
    fetching: float
    pages: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--pool", type=int, default=24, help="MB of the small buffer pool")
    parser.add_argument("--large", type=int, default=1_024, help="MB of the one that holds the log")
    parser.add_argument("--bytes", type=int, default=1_000, help="of a payload")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    from tests.servers.mariadb import PrivateMariaDB

    with PrivateMariaDB(options=(f"--innodb-buffer-pool-size={arguments.pool}M",)) as server:
        os.environ |= {"DATABASE_URL": server.url("mysql"), "DJANGO_SETTINGS_MODULE": "tests.settings"}
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
        show(measure(arguments), arguments)


def show(readings: dict[str, list[tuple[Reading, Reading]]], arguments: argparse.Namespace) -> None:
    log = f"{arguments.messages:,} messages of {arguments.bytes:,} bytes ({int(one_value(LOG_PAGES)):,} pages)"
    table = Table(title=f"{log}, a pool of {arguments.pool} MB, a load of {os.getloadavg()[0]:.1f}")
    for name in ("what", "messages/s", "warm", "ratio", "fetching", "warm", "pages read"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for kind, rounds in readings.items():
        ratio = statistics.median(cold.rate / warm.rate for cold, warm in rounds)
        cold, warm = (Reading(*map(statistics.median, zip(*each))) for each in zip(*rounds))
        parts = (f"{cold.fetching:.0%}", f"{warm.fetching:.0%}", f"{cold.pages:,.0f}")
        table.add_row(kind, f"{cold.rate:,.0f}", f"{warm.rate:,.0f}", f"{ratio:.2f}", *parts)
    Console().print(table)


def measure(arguments: argparse.Namespace) -> dict[str, list[tuple[Reading, Reading]]]:
    """Return for each kind of handler and round a cold reading and a warm one."""
    from sqlqueue import NewMessage, publish_many
    from sqlqueue.log.topics import insert

    messages, payload = arguments.messages, {"filler": "x" * (arguments.bytes - NAME)}
    insert(LOG, "read-again", PARTITIONS)
    resize(arguments.large)
    for first in range(0, messages, 1_000):
        publish_many("read-again", [NewMessage(payload, key=f"k{n % 997}") for n in range(first, first + 1_000)])
    readings: dict[str, list[tuple[Reading, Reading]]] = {kind: [] for kind in KINDS}
    for number in range(arguments.rounds):
        resize(arguments.large)
        for statement in WARM:
            one_value(statement)
        warm = {kind: read(messages, f"warm-{number}", kind) for kind in KINDS}
        resize(arguments.pool)
        for kind in KINDS:
            readings[kind].append((read(messages, f"cold-{number}", kind), warm[kind]))
    return readings


def read(messages: int, name: str, kind: str) -> Reading:
    """Let a new group read the whole log."""
    from django.db import connection

    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber

    made = build("read-again", {"group": f"{name}-{len(KINDS[kind])}", **KINDS[kind]})
    subscriber = Subscriber([replace(made, handler=lambda delivery: None)])
    fetching = 0.0

    def timed(execute: Callable[..., Any], sql: str, *call: Any) -> Any:
        nonlocal fetching
        began = time.perf_counter()
        try:
            return execute(sql, *call)
        finally:
            if "payload" in sql:
                fetching += time.perf_counter() - began

    pages = pages_read()
    began = time.perf_counter()
    with connection.execute_wrapper(timed):
        subscriber.run(drain=True)
    seconds = time.perf_counter() - began
    return Reading(messages / seconds, fetching / seconds, pages_read() - pages)


def resize(pool: int) -> None:
    """Give the server a buffer pool of so many MB, and wait until it has it."""
    from django.db import connection

    from tests.processes import wait_until

    with connection.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_buffer_pool_size = %s", [pool * MB])
    wait_until(lambda: one_value("SELECT @@innodb_buffer_pool_size") == pool * MB, 60.0)


def pages_read() -> int:
    """Return how many pages the server has read from its files since it was started."""
    return int(one_value(f"SHOW GLOBAL STATUS LIKE '{PAGES_READ}'", 1))


def one_value(statement: str, column: int = 0) -> Any:

    return LOG.execute(statement).fetchone()[column]


if __name__ == "__main__":
    main()
