"""Migrate a log of many messages, and publish meanwhile: python -m tests.benchmarks.migrating --database mariadb.

Says how long each migration behind `--since` takes, and the longest time that a publisher waited meanwhile.
"""

import argparse
import os
import threading
import time

ROWS_AT_ONCE = 1_000
PAUSE = 0.01  # seconds between two messages of the publisher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", default="sqlite", choices=["sqlite", "mariadb", "mysql", "postgresql"])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--since", default="0009_failing_tasks", help="the migration that the log was filled at")
    arguments = parser.parse_args()
    os.environ["DATABASE"] = arguments.database
    os.environ.pop("DATABASE_URL", None)
    from tests.servers import TestDatabase

    database = TestDatabase.start(os.environ)
    os.environ["DATABASE_URL"] = (
        database.server.url(server_database(arguments.database)) if database.server else database.url
    )
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    try:
        import django

        django.setup()
        measure(arguments.messages, arguments.since)
    finally:
        from django.db import connections

        connections.close_all()
        database.end()


def server_database(name: str) -> str:
    """Return a database that a fresh server has."""
    return "postgres" if name == "postgresql" else "mysql"


def measure(messages: int, since: str) -> None:
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    call_command("migrate", "sqlqueue", since, verbosity=0)
    began = time.perf_counter()
    for first in range(0, messages, ROWS_AT_ONCE):
        insert(first, min(messages, first + ROWS_AT_ONCE))
    print(f"{messages:,} messages after {time.perf_counter() - began:.0f} s", flush=True)
    for name in sorted(name for app, name in MigrationLoader(connection).graph.nodes if app == "sqlqueue"):
        if name <= since:
            continue
        publisher = Publisher(messages)
        publisher.start()
        began = time.perf_counter()
        call_command("migrate", "sqlqueue", name, verbosity=0)
        seconds = time.perf_counter() - began
        publisher.end()
        print(
            f"{name}: {seconds:.1f} s; {publisher.count} messages published meanwhile,"
            f" each within {publisher.longest:.2f} s"
        )


def insert(first: int, last: int) -> None:
    """Add messages of ten thousand customers, with growing ids."""
    from sqlqueue.core.keys import new_id, partition_of
    from sqlqueue.database.gate import insert_many
    from sqlqueue.database.insert_sql import LogRow

    keys = [f"customer-{number % 9_973}" for number in range(first, last)]
    payload = '{"number": 1, "text": "%s"}' % ("x" * 150)
    rows = [LogRow("orders", partition_of(key, 32), 0, key, new_id(), payload, None, "") for key in keys]
    insert_many("default", rows, may_repeat=False)


class Publisher(threading.Thread):
    """Publishes one message after another until end(); `longest` is the longest time, in seconds, that one took."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._done = threading.Event()
        self.count, self.longest = 0, 0.0

    def run(self) -> None:
        from django.db import connections

        insert(self._number, self._number + 1)
        while not self._done.wait(PAUSE):
            began = time.perf_counter()
            insert(self._number, self._number + 1)
            self.longest = max(self.longest, time.perf_counter() - began)
            self.count += 1
        connections.close_all()

    def end(self) -> None:
        """Let it end, and wait for that."""
        self._done.set()
        self.join()


if __name__ == "__main__":
    main()
