"""Count what a message costs a MySQL server at a steady rate: `python -m tests.benchmarks.statements`.

500 messages a second, published one by one, for three groups whose handlers do nothing. Time is simulated, so a busy
machine changes nothing: the consumer process is woken for every `--together` messages (at this rate it takes a few
milliseconds to read, claim and settle), and goes on until it would sleep. The server counts statements, rows changed
and examined (performance schema), and the bytes of its binary log.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.logs import LOG
from tests.servers.mysql import PrivateMySQL

GROUPS = ("first", "second", "third")
TOPIC = "steady"
FILLER = "x" * 285
PARTITIONS, KEYS = 16, 997
WARM = 750  # messages
TOLD = 14  # statements
QUICK = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0")  # nothing is timed
DIGESTS = """
    SELECT digest_text, SUM(count_star), SUM(sum_rows_examined), SUM(sum_rows_affected)
    FROM performance_schema.events_statements_summary_by_digest WHERE schema_name = %s GROUP BY digest_text
"""


class Counted(NamedTuple):
    """What the server has done: of each statement how often, rows examined and changed; and the bytes of its log."""

    statements: dict[str, tuple[int, int, int]]
    bytes: int

    def since(self, before: "Counted") -> "Counted":
        differences = {}
        for text, (often, examined, changed) in self.statements.items():
            then = before.statements.get(text, (0, 0, 0))
            differences[text] = (often - then[0], examined - then[1], changed - then[2])
        return Counted(differences, self.bytes - before.bytes)

    def totals(self) -> tuple[int, int, int, int]:
        """Return statements, rows changed, rows examined, bytes."""
        often, examined, changed = (sum(values) for values in zip(*self.statements.values()))
        return often, changed, examined, self.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rate", type=float, default=500.0, help="messages a second, in simulated time")
    parser.add_argument("--messages", type=int, default=1_000)
    parser.add_argument("--together", type=int, default=5, help="messages for which the process is woken once")
    arguments = parser.parse_args()
    with PrivateMySQL(log_bin=True, options=QUICK) as server:
        os.environ |= {
            "DATABASE_URL": server.url("mysql"),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "SQLQUEUE": '{"WAKE": false}',
        }
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
        show(measured(arguments.rate, arguments.messages, arguments.together), arguments.messages)


def measured(rate: float, messages: int, together: int) -> Counted:
    """Publish and consume; return what the server has done meanwhile."""
    from sqlqueue import publish
    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber
    from sqlqueue.consumers.handlers import executor
    from sqlqueue.consumers.handlers.inline import InlinePool
    from sqlqueue.log.topics import insert

    insert(LOG, TOPIC, PARTITIONS)
    consumers = [replace(build(TOPIC, {"group": name}), handler=lambda _: None) for name in GROUPS]
    subscriber = Subscriber(consumers, background_tasks=False, pool=InlinePool)
    now, numbers = subscriber.clock(), count()
    subscriber.clock = executor.now = lambda: now
    subscriber.start()

    def go_on(until: Callable[[], bool]) -> None:
        nonlocal now
        while not until():
            for _ in range(together):
                publish(TOPIC, {"filler": FILLER}, key=f"k{next(numbers) % KEYS}")
            now += together / rate
            while subscriber.run_once() == 0.0:
                pass
            subscriber.renew_leases()

    try:
        go_on(lambda: subscriber.settled >= WARM * len(GROUPS))
        before, done = counted(), subscriber.settled
        go_on(lambda: subscriber.settled >= done + messages * len(GROUPS))
        return counted().since(before)
    finally:
        subscriber.close()


def counted() -> Counted:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(DIGESTS, [connection.settings_dict["NAME"]])
        statements = {
            str(text): (int(often), int(examined), int(changed))
            for text, often, examined, changed in cursor.fetchall()
            if "performance_schema" not in str(text)
        }
        cursor.execute("SHOW BINARY LOGS")
        return Counted(statements, sum(int(row[1]) for row in cursor.fetchall()))


def show(counted: Counted, messages: int) -> None:
    console = Console(width=170)
    table = Table(title=f"For each of {messages:,} messages, which {len(GROUPS)} groups consume")
    for name in ("statements", "rows changed", "rows examined", "bytes of the binary log"):
        table.add_column(name, justify="right")
    table.add_row(*(f"{total / messages:,.2f}" for total in counted.totals()))
    console.print(table)
    table = Table(title="The statements, for each message")
    for name in ("times", "changed", "examined", "statement"):
        table.add_column(name, justify="left" if name == "statement" else "right", no_wrap=True)
    for text, (often, examined, changed) in sorted(counted.statements.items(), key=lambda one: -sum(one[1]))[:TOLD]:
        table.add_row(*(f"{value / messages:,.3f}" for value in (often, changed, examined)), text[:130])
    console.print(table)


if __name__ == "__main__":
    main()
