"""Measure what the admin's pages cost in a long log, on a private MariaDB server: `python -m tests.benchmarks.admin`.

For every page: how many queries it takes, how many rows the server reads for it, and its time, the middle one of
three. Then the same for a step of a replay, which is no page.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tests.logs import LOG
from tests.servers.mariadb import PrivateMariaDB

AT_ONCE = 100_000
VISITS = 3
# As tests.admin.crowd publishes them.
PUBLISHED = """
    INSERT INTO sqlqueue_message (topic, `partition`, partition_key, message_id, payload)
    SELECT IF(seq %% 4, 't', 'busy'), CRC32(CONCAT('k', seq %% 10007)) %% IF(seq %% 4, 200, 8),
    CONCAT('k', seq %% 10007), CONCAT('more-', seq), CONCAT('{{"filler": "', REPEAT('x', 200), '"}}')
    FROM seq_{first}_to_{last}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--letters", type=int, default=10_000)
    arguments = parser.parse_args()
    with PrivateMariaDB() as server:
        os.environ["DATABASE_URL"] = server.url("mysql")
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        fill(arguments.messages, arguments.letters)
        measure()


def fill(messages: int, letters: int) -> None:
    from django.db import connection

    from tests.admin.crowd import Crowd

    began = time.perf_counter()
    Crowd(messages=30_000 + letters, letters=letters)
    with connection.cursor() as cursor:
        for first in range(30_000 + letters + 1, messages + 1, AT_ONCE):
            cursor.execute(PUBLISHED.format(first=first, last=min(messages, first + AT_ONCE - 1)), ())
        cursor.execute("ANALYZE TABLE sqlqueue_message")
        cursor.fetchall()
        cursor.execute("SELECT COUNT(*) FROM sqlqueue_message")
        print(f"{cursor.fetchone()[0]:,} messages after {time.perf_counter() - began:.0f} s", flush=True)


def measure() -> None:
    from django.contrib.auth.models import User
    from django.test import Client
    from django.test.utils import setup_test_environment

    from sqlqueue.operations import replay_requests, requests
    from tests.admin.pages import visits

    setup_test_environment()
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    table = Table(title="The admin")
    for name in ("page", "queries", "rows read", "ms", "full scans"):
        table.add_column(name, justify="left" if name == "page" else "right")

    def visit(address: str, values: dict[str, object] | None) -> None:
        answer = client.get(address) if values is None else client.post(address, values)
        assert answer.status_code == 200, (address, answer.status_code)

    def add(name: str, act: Callable[[], object]) -> None:
        queries, rows, scans = cost(act)
        times = [timed(act) for _ in range(VISITS)]
        table.add_row(name, str(queries), f"{rows:,}", f"{statistics.median(times) * 1000:,.0f}", str(len(scans)))
        for scan in scans:
            print(f"{name}: {scan}")

    for name, (address, values) in visits().items():
        add(name, lambda address=address, values=values: visit(address, values))
    add("(requesting a replay of all dead letters)", lambda: replay_requests.request_replay(LOG, "t"))
    add("(a step of four replays)", lambda: requests.carry_out(LOG))
    Console().print(table)


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def cost(act: Callable[[], object]) -> tuple[int, int, list[str]]:
    """Return how many statements something takes, how many rows are read for them, and which tables are read whole."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from tests.database.plans import Recorder, full_scans

    recorder = Recorder()
    before = rows_read()
    with CaptureQueriesContext(connection) as queries, connection.execute_wrapper(recorder):
        act()
    read = rows_read() - before
    scans = [
        f"{' '.join(sql.split())[:200]} → {found}"
        for sql, params in recorder.statements.values()
        if "sqlqueue_message" in sql and (found := full_scans(sql, params))
    ]
    return len(queries), read, scans


def rows_read() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'", ())
        return sum(int(value) for _, value in cursor.fetchall())


if __name__ == "__main__":
    main()
