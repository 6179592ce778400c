"""Measure how fast a log is collected that is larger than the server's buffer pool, beside bulk publishing, and what
publishers notice of it: `python -m tests.benchmarks.collecting`, on a private MariaDB server with a pool of 64 MB.

Messages of 1 kB (`--bytes`), 16 partitions, 997 keys, no groups. MariaDB reads and writes its files past the kernel's
cache (O_DIRECT, its default). The last messages of the log are in the pool, the others are not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.logs import LOG

NAME = len('{"filler": ""}')  # of a payload besides its filler
BULK = 1_000  # messages of one publish_many
RATE = 200  # messages/s of the publisher
ALONE = 5.0  # seconds that it is watched beside nothing


class Publish(NamedTuple):
    """How many seconds a publisher's transaction took, from when it was due; and from its begin, less what its thread
    and that of the server waited for a CPU."""

    took: float
    worked: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--pool", type=int, default=64, help="MB of the buffer pool")
    parser.add_argument("--bytes", type=int, default=1_000, help="of a payload")
    arguments = parser.parse_args()
    from tests.servers.mariadb import PrivateMariaDB

    with PrivateMariaDB(options=(f"--innodb-buffer-pool-size={arguments.pool}M",)) as server:
        os.environ |= {"DATABASE_URL": server.url("mysql"), "DJANGO_SETTINGS_MODULE": "tests.settings"}
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
        measure(arguments.messages, {"filler": "x" * (arguments.bytes - NAME)})


def measure(messages: int, payload: dict[str, str]) -> None:
    from sqlqueue import NewMessage, publish_many
    from sqlqueue.database.horizon import Horizon
    from sqlqueue.log.collect import collect_topic
    from sqlqueue.log.topics import insert
    from sqlqueue.models import Topic

    def publish_some(begin: int, end: int) -> float:
        """Return how many messages/s were published."""
        began = time.perf_counter()
        for first in range(begin, end, BULK):
            publish_many("cold", [NewMessage(payload, key=f"k{n % 997}") for n in range(first, first + BULK)])
        return (end - begin) / (time.perf_counter() - began)

    def collect_half() -> float:
        """Return how many messages/s were collected."""
        began = time.perf_counter()
        deleted, _ = collect_topic(LOG, "cold", horizon.value, messages // 2_000)
        return deleted / (time.perf_counter() - began)

    insert(LOG, "cold", 16)
    insert(LOG, "beside", 16)
    tenth = messages // 10 // BULK * BULK
    rates = {"publish_many": publish_some(0, messages - tenth)}
    with Publisher(payload) as publisher:
        time.sleep(ALONE)
    found = {"": publisher.found}
    with Publisher(payload) as publisher:
        rates["publish_many beside a publisher"] = publish_some(messages - tenth, messages)
    found["publish_many beside a publisher"] = publisher.found
    Topic.objects.filter(name="cold").update(retention=0.0)
    horizon = Horizon(LOG)
    horizon.wait()
    rates["collect"] = collect_half()
    with Publisher(payload) as publisher:
        rates["collect beside a publisher"] = collect_half()
    found["collect beside a publisher"] = publisher.found
    size = len(json.dumps(payload))
    table = Table(title=f"{messages:,} messages of {size:,} bytes, a load of {os.getloadavg()[0]:.1f}")
    for name in ("what", "messages/s", "ratio", "publish p50, ms", "p99, ms", "less waits for a CPU"):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=True)
    table.add_row("a publisher alone", "", "", *quantiles(found.pop("")))
    for what, rate in rates.items():
        ratio = rate / rates["publish_many"]
        table.add_row(what, f"{rate:,.0f}", f"{ratio:.2f}", *quantiles(found.get(what, ())))
    Console(width=120).print(table)


def quantiles(found: Sequence[Publish]) -> tuple[str, ...]:
    """Return the median, the 99th of a hundred parts, and that of what was no wait for a CPU."""
    if not found:
        return ()
    took, worked = (statistics.quantiles(times, n=100) for times in zip(*found, strict=True))
    return f"{1000 * took[49]:.2f}", f"{1000 * took[98]:.2f}", f"{1000 * worked[98]:.2f}"


class Publisher:
    """A process that publishes RATE messages/s, each in a transaction of its own."""

    def __init__(self, payload: dict[str, str]):
        self.found: list[Publish] = []
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=publish_on, args=(theirs, payload))

    def __enter__(self) -> Publisher:
        self.process.start()
        self.ours.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.send(None)
        self.found = self.ours.recv()
        self.process.join()


def publish_on(ours: Connection, payload: dict[str, str]) -> None:
    import django

    django.setup()
    from django.db import connection

    from sqlqueue import publish

    publish("beside", payload)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tid FROM information_schema.processlist WHERE id = connection_id()")
        (at_the_server,) = cursor.fetchone()
    (there,) = Path("/proc").glob(f"[0-9]*/task/{at_the_server}/schedstat")
    threads = (Path("/proc/self/schedstat"), there)
    ours.send(None)
    found: list[Publish] = []
    due = time.perf_counter()
    while not ours.poll():
        due += 1 / RATE
        time.sleep(max(0.0, due - time.perf_counter()))
        began, queued = time.perf_counter(), waited(threads)
        publish("beside", payload)
        ended = time.perf_counter()
        found.append(Publish(ended - due, ended - began - (waited(threads) - queued)))
    ours.send(found)


def waited(threads: Sequence[Path]) -> float:
    """Return for how many seconds in all threads were ready and had no CPU."""
    return sum(int(thread.read_text().split()[1]) for thread in threads) / 1e9


if __name__ == "__main__":
    main()
