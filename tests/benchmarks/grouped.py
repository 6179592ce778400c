"""What a transaction for many atomic handlers brings: python -m tests.benchmarks.grouped [--database mariadb]

A handler inserts one row by the ORM. It runs with atomic=True alone, and with commit_every=100; beside them the same
inserts in the same numbers of transactions without any queue, in as many threads. The rounds are interleaved; ratios
are medians of those of one round.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from sqlqueue.database.log import Log
from tests.benchmarks.databases import NAMES, migrated
from tests.logs import LOG

PARTITIONS = 16
TOGETHER = 100
ALONE, GROUPED = "atomic=True", f"atomic=True, commit_every={TOGETHER}"
BARE, BARE_TOGETHER = "the inserts alone, one a transaction", f"the inserts alone, {TOGETHER} a transaction"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument("--messages", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    logging.basicConfig(filename=os.devnull)
    with migrated(arguments.database):
        rates = measure(arguments.messages, arguments.rounds, arguments.threads)

    def ratio(one: str, other: str) -> str:
        return f"{statistics.median(mine / its for mine, its in zip(rates[one], rates[other])):.2f}"

    table = Table(title=f"Atomic handlers with one ORM insert, {arguments.database}, {arguments.threads} threads")
    for name in ("what", "messages/s", f"ratio to {ALONE}", "ratio to the inserts alone"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, without in ((ALONE, BARE), (GROUPED, BARE_TOGETHER), (BARE, BARE), (BARE_TOGETHER, BARE_TOGETHER)):
        table.add_row(what, f"{statistics.median(rates[what]):,.0f}", ratio(what, ALONE), ratio(what, without))
    Console().print(table)


def measure(count: int, rounds: int, threads: int) -> dict[str, list[float]]:
    """Return the rates of each kind, one a round."""
    from sqlqueue import NewMessage, publish_many
    from sqlqueue.log.topics import insert

    insert(LOG, "inserting", PARTITIONS)
    publish_many("inserting", [NewMessage({"filler": "x" * 285}, key=f"k{n % 997}") for n in range(count)])
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        rates.setdefault(ALONE, []).append(consume(count, f"alone-{number}", threads, {}))
        rates.setdefault(GROUPED, []).append(consume(count, f"grouped-{number}", threads, {"commit_every": TOGETHER}))
        rates.setdefault(BARE, []).append(insert(Log.of(count), 1, threads))
        rates.setdefault(BARE_TOGETHER, []).append(insert(Log.of(count), TOGETHER, threads))
    return rates


def consume(count: int, group: str, threads: int, options: dict[str, Any]) -> float:
    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber
    from tests.app.models import Effect

    def handle(delivery: Any) -> None:
        Effect.objects.create(name="benchmark", value=delivery.id)

    Effect.objects.all().delete()
    made = build("inserting", {"group": group, "atomic": True, **options})
    subscriber = Subscriber([replace(made, handler=handle)], threads=threads)
    began = time.perf_counter()
    subscriber.run(drain=True)
    rate = count / (time.perf_counter() - began)
    assert Effect.objects.count() == count
    return rate


def insert(count: int, together: int, threads: int) -> float:
    from django.db import connection, transaction

    from tests.app.models import Effect

    def insert_some(number: int) -> None:
        try:
            for first in range(number * together, count, threads * together):
                with transaction.atomic():
                    for value in range(first, min(first + together, count)):
                        Effect.objects.create(name="benchmark", value=f"{value:032}")
        finally:
            connection.close()

    Effect.objects.all().delete()
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(insert_some, range(threads)))
    rate = count / (time.perf_counter() - began)
    assert Effect.objects.count() == count
    return rate


if __name__ == "__main__":
    main()
