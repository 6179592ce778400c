"""Measure how fast a log is collected that is larger than the server's buffer pool, beside bulk publishing, and what
publishers notice of it: `python -m tests.benchmarks.collecting`, on a private MariaDB server with a pool of 64 MB.

Messages of 1 kB (`--bytes`), 16 partitions, 997 keys, no groups. MariaDB reads and writes its files past the kernel's
cache (O_DIRECT, its default). The last messages of the log are in the pool, the others are not.
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

NAME = len('{"filler": ""}')  # of a payload besides its filler
BULK = 1_000  # messages of one publish_many
ALONE = 5.0  # seconds that a publisher is watched beside nothing


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
    from sqlqueue.log.topics import create
    from sqlqueue.models import Topic

    create("default", "cold", 16)
    create("default", "beside", 16)
    began = time.perf_counter()
    for first in range(0, messages, BULK):
        publish_many("cold", [NewMessage(payload, key=f"k{n % 997}") for n in range(first, first + BULK)])
    bulk = messages / (time.perf_counter() - began)
    Topic.objects.filter(name="cold").update(retention=0.0)
    horizon = Horizon("default")
    horizon.wait()
    alone = latencies(payload, lambda: time.sleep(ALONE))
    taken: list[float] = []

    def collect_half() -> None:
        began = time.perf_counter()
        deleted, _ = collect_topic("default", "cold", horizon.value, messages // 2_000)
        taken.append(deleted / (time.perf_counter() - began))

    collect_half()
    beside = latencies(payload, collect_half)
    size = len(json.dumps(payload))
    table = Table(title=f"{messages:,} messages of {size:,} bytes, a load of {os.getloadavg()[0]:.1f}")
    for name in ("what", "messages/s", "ratio to publish_many"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, rate in (("publish_many", bulk), ("collect", taken[0]), ("collect beside a publisher", taken[1])):
        table.add_row(what, f"{rate:,.0f}", f"{rate / bulk:.2f}")
    Console().print(table)
    before, after = (statistics.quantiles(each, n=100)[98] for each in (alone, beside))
    Console().print(
        f"publish, p99: {1000 * before:.1f} ms alone, {1000 * after:.1f} ms beside: {after / before:.2f} times"
    )


def latencies(payload: dict[str, str], work: Callable[[], object]) -> list[float]:
    """Return how many seconds each of a publisher's transactions takes while work is done."""
    from django.db import connection

    from sqlqueue import publish

    times: list[float] = []
    ended = threading.Event()

    def publish_on() -> None:
        while not ended.is_set():
            began = time.perf_counter()
            publish("beside", payload)
            times.append(time.perf_counter() - began)
        connection.close()

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        work()
    finally:
        ended.set()
        publisher.join()
    return times


if __name__ == "__main__":
    main()
