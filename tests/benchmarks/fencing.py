"""Measure what it costs to compare the server's identity in every fence and read: `python -m tests.benchmarks.fencing`.

One process and handlers that do nothing consume the same messages again and again, in turn with and without the
comparison, each time as another group. The ratios are medians over the rounds of what stood side by side.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.benchmarks.__main__ import BATCH, PARTITIONS, publish_some
from tests.benchmarks.databases import NAMES, migrated
from tests.logs import LOG

KINDS: dict[str, dict[str, Any]] = {
    "handler": {},
    "atomic handler": {"atomic": True},
    f"batch handler ({BATCH})": {"batch": True, "batch_size": BATCH},
}


class Cost(NamedTuple):
    """Of one message: seconds, seconds of the process's CPU time, statements of the loop."""

    seconds: float
    cpu: float
    statements: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with migrated(arguments.database, "tests.benchmarks.settings"):
        from sqlqueue.log.topics import insert

        insert(LOG, "bench", PARTITIONS)
        publish_some(arguments.messages)
        table = Table(title=f"With the server's identity, by the same without it, {arguments.database}")
        for name in ("what", "messages/s", "ratio", "CPU", "statements", "ratio"):
            table.add_column(name, justify="left" if name == "what" else "right")
        for what in KINDS:
            table.add_row(what, *compare(what, arguments.messages, arguments.rounds))
        Console().print(table)
        Console().print(f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.")


def compare(what: str, count: int, rounds: int) -> tuple[str, ...]:
    """Return a row of the table."""
    pairs: list[tuple[Cost, Cost]] = []
    consume(f"{len(what)}-first", KINDS[what], count, True)  # not counted
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        found = {fenced: consume(f"{len(what)}-{number}-{fenced}", KINDS[what], count, fenced) for fenced in order}
        pairs.append((found[True], found[False]))

    def ratio(of: Callable[[Cost], float]) -> str:
        return f"{statistics.median(of(fenced) / of(blind) for fenced, blind in pairs):.3f}"

    rate = statistics.median(1 / fenced.seconds for fenced, _ in pairs)
    statements = statistics.median(fenced.statements for fenced, _ in pairs)
    by_rate = f"{statistics.median(blind.seconds / fenced.seconds for fenced, blind in pairs):.3f}"
    return (
        f"{rate:,.0f}",
        by_rate,
        ratio(lambda cost: cost.cpu),
        f"{statements:.4f}",
        ratio(lambda cost: cost.statements),
    )


def consume(group: str, options: dict[str, Any], count: int, fenced: bool) -> Cost:
    """Consume all messages once."""
    from django.db import connection

    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber
    from tests.blind import make_blind

    made = build("bench", {"group": group, **options})
    subscriber = Subscriber([replace(made, handler=lambda message: None)], background_tasks=False)
    if not fenced:
        make_blind(subscriber)
    statements = 0

    def counted(execute: Callable[..., Any], *call: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*call)

    with connection.execute_wrapper(counted):
        began, busy = time.perf_counter(), time.process_time()
        subscriber.run(drain=True)
        seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    return Cost(seconds / count, cpu / count, statements / count)


if __name__ == "__main__":
    main()
