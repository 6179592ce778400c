"""What failures cost: python -m tests.benchmarks.failures [--database mariadb] [--messages 20000] [--rounds 5]

Handlers that do nothing, and the same with 1 % and 10 % of the messages failing at their first attempt: one by one, and
in batches of 500. The rounds are interleaved, so that a busy minute of the machine concerns all of them; every ratio is
the median of those to the same handler without failures in the same round, of the rates and of the process's CPU time.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.databases import NAMES, migrated
from tests.logs import LOG

PARTITIONS = 16
KINDS = {"handler": {}, "batch handler (500)": {"batch": True, "batch_size": 500}}
SHARES = {"": 0, ", 1 % fail once": 100, ", 10 % fail once": 10}  # one in so many
ORDERINGS = ("key", "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ordering", choices=ORDERINGS, default="key")
    arguments = parser.parse_args()
    logging.basicConfig(filename=os.devnull)
    with migrated(arguments.database):
        rates = measure(arguments.messages, arguments.rounds, arguments.ordering)
    table = Table(title=f"Failures, {arguments.database}, ordering {arguments.ordering}")
    for name in ("what", "messages/s", "CPU µs", "ratio to no failures", "of CPU time"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, found in rates.items():
        without = rates[what.partition(",")[0]]
        ratio, of_cpu = (
            statistics.median(other[each] / mine[each] for mine, other in zip(found, without)) for each in (0, 1)
        )
        wall, cpu = (statistics.median(each) for each in zip(*found))
        table.add_row(what, f"{1e6 / wall:,.0f}", f"{cpu:,.1f}", f"{ratio:.2f}", f"{of_cpu:.2f}")
    Console().print(table)


def measure(count: int, rounds: int, ordering: str) -> dict[str, list[tuple[float, float]]]:
    """Return for each kind, one a round, the time and the process's CPU time of a message, in µs."""
    from sqlqueue import NewMessage, publish_many
    from sqlqueue.consumers.process.worker import look_less_often
    from sqlqueue.log.topics import insert

    look_less_often()  # as a consumer process does
    insert(LOG, "failing", PARTITIONS)
    for first in range(0, count, 1000):
        publish_many(
            "failing", [NewMessage({"filler": "x" * 285}, key=f"k{n % 997}") for n in range(first, first + 1000)]
        )
    rates: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        for kind, options in KINDS.items():
            for share, one_in in SHARES.items():
                group = f"{kind[:5]}-{one_in}-{number}"
                rates.setdefault(kind + share, []).append(consume(count, group, one_in, ordering, options))
    return rates


def consume(count: int, group: str, one_in: int, ordering: str, options: dict[str, Any]) -> tuple[float, float]:
    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber

    made = build("failing", {"group": group, "backoff": 0, "ordering": ordering, **options})
    handler = failing_batch(one_in) if options else failing(one_in)
    subscriber = Subscriber([replace(made, handler=handler)])
    began, busy = time.perf_counter(), time.process_time()
    subscriber.run(drain=True)
    return 1e6 * (time.perf_counter() - began) / count, 1e6 * (time.process_time() - busy) / count


def failing(one_in: int) -> Callable[[Any], None]:
    def handle(delivery: Any) -> None:
        if one_in and delivery.attempt == 1 and delivery.offset % one_in == 0:
            raise ValueError("at the first attempt")

    return handle


def failing_batch(one_in: int) -> Callable[[Any], None]:
    handle = failing(one_in)

    def handle_all(deliveries: Any) -> None:
        for delivery in deliveries:
            handle(delivery)

    return handle_all


if __name__ == "__main__":
    main()
