"""What publishing costs beside the bare INSERT: python -m tests.benchmarks.publishing [--database mariadb]

The bare statements do the same: the same columns of the same table, with fresh ids, committed as often. The rounds are
interleaved, and short, so that a busy machine concerns all of them; every ratio is the median of those of one round. Of
CPU time the ratio is that of the sums: the process's own, and with the server's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tests.benchmarks.databases import NAMES, cpu_seconds, migrated
from tests.logs import LOG

PARTITIONS = 16
TOGETHER = 1_000  # rows of a statement
PAYLOAD = {"filler": "x" * 285}
INSERT = 'INSERT INTO sqlqueue_message (topic, "partition", partition_key, message_id, payload) VALUES '
MARKS = "(%s, %s, %s, %s, %s)"
BARE = "one INSERT a transaction"
BARE_TOGETHER = f"INSERT of {TOGETHER:,} rows"
BARE_STREAM = "the same, 5 a transaction"


class Cost(NamedTuple):
    """Of one message, in µs: the time, the process's CPU time, the server's."""

    wall: float
    cpu: float
    server: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--singles", type=int, default=200, help="messages of a round that are published one by one")
    arguments = parser.parse_args()
    with migrated(arguments.database) as server:
        costs = measure(arguments.rounds, arguments.singles, server)
    table = Table(title=f"Publishing, {arguments.database}")
    names = ("what", "messages/s", "CPU µs", "server's CPU µs", "rate", "CPU", "CPU with the server's")
    for name in names:
        table.add_column(name, justify="left" if name == "what" else "right")
    for (what, bare), found in costs.items():
        table.add_row(what, *figures(found, costs[bare, bare]))
    console = Console(width=140)
    console.print(table)
    console.print("The ratios are to the INSERT above. ", f"Load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.")


def figures(found: list[Cost], bare: list[Cost]) -> tuple[str, ...]:
    rate = statistics.median(its.wall / mine.wall for mine, its in zip(found, bare))
    cpu, its_cpu, server, its_server = (
        statistics.fmean(getattr(cost, name) for cost in costs) for name in ("cpu", "server") for costs in (found, bare)
    )
    seconds = statistics.median(cost.wall for cost in found) / 1e6
    ratios = (rate, its_cpu / cpu, (its_cpu + its_server) / (cpu + server))
    return f"{1 / seconds:,.0f}", f"{cpu:,.1f}", f"{server:,.1f}", *(f"{ratio:.2f}" for ratio in ratios)


def measure(rounds: int, singles: int, server: int | None) -> dict[tuple[str, str], list[Cost]]:
    """Return the costs of each way, one a round, by its name and that of the bare statement beside it."""
    from django.db import transaction

    from sqlqueue import NewMessage, publish, publish_many
    from sqlqueue.core.codec import JSON_OPTIONS
    from sqlqueue.core.keys import new_id, partition_of
    from sqlqueue.log.topics import insert

    insert(LOG, "published", PARTITIONS)
    encode = json.JSONEncoder(**JSON_OPTIONS).encode

    def row(number: int) -> tuple[Any, ...]:
        key = f"k{number % 997}"
        return "published", partition_of(key, PARTITIONS), key, new_id(), encode(PAYLOAD)

    def message(number: int) -> NewMessage:
        return NewMessage(PAYLOAD, key=f"k{number % 997}")

    def bare(count: int) -> None:
        for number in range(count):
            LOG.execute(INSERT + MARKS, row(number))

    def one_by_one(count: int) -> None:
        for number in range(count):
            publish("published", PAYLOAD, key=f"k{number % 997}")

    def bare_together(count: int) -> None:
        for first in range(0, count, TOGETHER):
            values = [value for number in range(first, first + TOGETHER) for value in row(number)]
            LOG.execute(INSERT + ", ".join([MARKS] * TOGETHER), values)

    def together(count: int) -> None:
        for first in range(0, count, TOGETHER):
            publish_many("published", [message(number) for number in range(first, first + TOGETHER)])

    def bare_stream(count: int) -> None:
        with transaction.atomic():
            bare_together(count)

    def stream(count: int) -> None:
        publish_many("published", (message(number) for number in range(count)))

    ways: list[tuple[str, str, Callable[[int], None], int]] = [
        (BARE, BARE, bare, singles),
        ("publish", BARE, one_by_one, singles),
        (BARE_TOGETHER, BARE_TOGETHER, bare_together, 5 * TOGETHER),
        (f"publish_many of {TOGETHER:,}", BARE_TOGETHER, together, 5 * TOGETHER),
        (BARE_STREAM, BARE_STREAM, bare_stream, 5 * TOGETHER),
        ("publish_many of a generator", BARE_STREAM, stream, 5 * TOGETHER),
    ]
    costs: dict[tuple[str, str], list[Cost]] = {}
    for number in range(-1, rounds):
        for what, other, work, count in ways if number % 2 else [*ways[1::-1], *ways[3:1:-1], *ways[:3:-1]]:
            cost = cost_of(lambda: work(count), count, server)  # noqa: B023  run in this iteration
            if number >= 0:  # the first round only warms up
                costs.setdefault((what, other), []).append(cost)
    return {(what, other): costs[what, other] for what, other, *_ in ways}


def cost_of(work: Callable[[], object], count: int, server: int | None) -> Cost:
    before, began, busy = cpu_seconds(server), time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - began, time.process_time() - busy
    return Cost(*(1e6 * seconds / count for seconds in (wall, cpu, cpu_seconds(server) - before)))


if __name__ == "__main__":
    main()
