"""Measure what each server does for a message when the log is on 1, 2 and 4 MariaDB servers: `python -m
tests.benchmarks.several_databases`.

All servers and the one client process share this machine, so its messages a second say nothing of separate ones. What
says something is the work of a server for a message: statements, rows and CPU time, by the server's own counters. If
it stays the same while servers are added, so many servers do so many times as much; that is a projection.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from sqlqueue.database.log import Log
from tests.servers.mariadb import PrivateMariaDB

COUNTS = (1, 2, 4)
AT_ONCE = 100  # messages of one publish_many
PAYLOAD = {"filler": "x" * 285}
KEYS = 997
WRITTEN = ("HANDLER_WRITE", "HANDLER_UPDATE", "HANDLER_DELETE")
READ = (
    *(f"HANDLER_READ_{how}" for how in ("FIRST", "KEY", "LAST", "NEXT", "PREV", "RND", "RND_NEXT")),
    "HANDLER_ICP_MATCH",
)
ALIASES = ("default", "queue_b", "queue_c", "queue_d")


class Work(NamedTuple):
    """What a server has done since it started: statements, rows read and written, seconds of CPU time."""

    statements: float
    read: float
    written: float
    cpu: float

    def since(self, before: "Work") -> "Work":
        """Return the work since then."""
        return Work(*(now - then for now, then in zip(self, before)))


class Measured(NamedTuple):
    """One kind of work on so many servers. shares: their messages; each: what each has done for one of its own."""

    what: str
    servers: int
    shares: list[int]
    each: list[Work]
    rate: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--messages", type=int, default=20_000, help="of each server")
    count = parser.parse_args().messages
    with servers(max(COUNTS)) as running:
        table = Table(title="Work of each server for each of its messages: the mean of the servers (the most)")
        names = (
            "what",
            "servers",
            "share of messages",
            "statements",
            "rows read",
            "rows written",
            "CPU µs",
            "messages/s",
        )
        for name in names:
            table.add_column(name, justify="left" if name == "what" else "right")
        found = [one for used in COUNTS for one in measure(running[:used], used * count)]
        for one in sorted(found, key=lambda one: [each.what for each in found].index(one.what)):
            table.add_row(*row(one))
        console = Console(width=140)
        console.print(table)
        console.print(f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.")


def row(one: Measured) -> tuple[str, ...]:
    total = sum(one.shares)

    def figure(of: Callable[[Work], float], digits: int) -> str:
        values = [of(work) for work in one.each]
        return f"{sum(values) / len(values):,.{digits}f} ({max(values):,.{digits}f})"

    return (
        one.what,
        str(one.servers),
        f"{min(one.shares) / total:.2f}–{max(one.shares) / total:.2f}",
        figure(lambda work: work.statements, 3),
        figure(lambda work: work.read, 2),
        figure(lambda work: work.written, 2),
        figure(lambda work: work.cpu * 1e6, 0),
        f"{one.rate:,.0f}",
    )


@contextmanager
def servers(count: int) -> Iterator[list[PrivateMariaDB]]:
    """Start so many servers, each with the queue's tables, and set Django up on them."""
    with ExitStack() as stack:
        running = [stack.enter_context(PrivateMariaDB()) for _ in range(count)]
        os.environ |= {
            "DATABASE_URL": running[0].url("mysql"),
            "FURTHER_URLS": " ".join(f"{a}={server.url('mysql')}" for a, server in zip(ALIASES[1:], running[1:])),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "SQLQUEUE": json.dumps({"TOPICS": {"all": {"databases": ALIASES[:count]}}, "STRICT_TOPICS": False}),
        }
        import django

        django.setup()
        from django.core.management import call_command

        for alias in ALIASES[:count]:
            for label in ("sqlqueue", "sqlqueue_people"):
                call_command("migrate", label, database=alias, verbosity=0)
        yield running


def measure(used: Sequence[PrivateMariaDB], count: int) -> Iterator[Measured]:
    """Publish, consume and collect messages on these servers."""
    from django.test import override_settings

    aliases = ALIASES[: len(used)]
    options: dict[str, Any] = {"PARTITIONS": 16, "RETENTION": 0, "STRICT_TOPICS": False, "WAKE": False}
    topic = f"of{len(used)}"
    with override_settings(SQLQUEUE=options | {"TOPICS": {topic: {"databases": aliases}}}):
        from sqlqueue.log.topics import forget_topics

        forget_topics()
        yield from (_watched(what, used, aliases, topic, act, count) for what, act in ACTS.items())


def _watched(
    what: str,
    used: Sequence[PrivateMariaDB],
    aliases: Sequence[str],
    topic: str,
    act: Callable[[Sequence[str], str, int], int],
    count: int,
) -> Measured:
    act(aliases, f"{topic}-first", 4 * AT_ONCE)  # not counted: topics and leases are made
    stored = [messages(alias) for alias in aliases]
    first = [work(*each) for each in zip(used, aliases)]
    before, began = [work(*each) for each in zip(used, aliases)], time.perf_counter()
    done = act(aliases, topic, count)
    seconds = time.perf_counter() - began
    after = [work(*each) for each in zip(used, aliases)]
    shares = [abs(messages(alias) - then) or then for alias, then in zip(aliases, stored)]  # all, if it only read them
    each = [
        Work(*((own - look) / share for own, look in zip(now.since(then), then.since(once))))  # without the look itself
        for now, then, once, share in zip(after, before, first, shares)
    ]
    return Measured(what, len(used), shares, each, done / seconds)


def messages(alias: str) -> int:
    """Return how many messages of the measured topics there are."""
    from sqlqueue.models import Message

    return Message.objects.using(alias).exclude(topic__endswith="-first").count()


def work(server: PrivateMariaDB, alias: str) -> Work:
    """Return what a server has done so far."""
    from django.db import connections

    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT variable_name, variable_value FROM information_schema.global_status")
        told = dict(cursor.fetchall())
    read, written = (sum(float(told.get(name, 0)) for name in names) for names in (READ, WRITTEN))
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])  # utime and stime, after the name
    return Work(float(told["QUESTIONS"]), read, written, ticks / os.sysconf("SC_CLK_TCK"))


def publish_one_by_one(aliases: Sequence[str], topic: str, count: int) -> int:
    from sqlqueue import publish

    for number in range(count // 2):
        publish(topic, PAYLOAD, key=f"k{number % KEYS}")
    return count // 2


def publish_together(aliases: Sequence[str], topic: str, count: int) -> int:
    """Publish lists of so many messages for each server: each list makes a transaction on every one."""
    from sqlqueue import NewMessage, publish_many

    size = AT_ONCE * len(aliases)
    for start in range(0, count // 2, size):
        publish_many(topic, [NewMessage(PAYLOAD, key=f"k{n % KEYS}") for n in range(start, start + size)])
    return count // 2


def consume(aliases: Sequence[str], topic: str, count: int) -> int:
    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber
    from sqlqueue.database.log import Log

    made = build(topic, {"group": "g"})
    settled = 0
    for alias in aliases:
        consumer = replace(made, handler=lambda message: None)
        subscriber = Subscriber([consumer], log=Log.of(alias), background_tasks=False)
        subscriber.run(drain=True)
        settled += subscriber.settled
    return settled


def collect_all(aliases: Sequence[str], topic: str, count: int) -> int:
    if topic.endswith("-first"):
        return 0
    from sqlqueue.log.collect import collect

    return sum(collect(Log.of(alias)).messages for alias in aliases)


ACTS: dict[str, Callable[[Sequence[str], str, int], int]] = {
    "publish, one a transaction": publish_one_by_one,
    f"publish_many, {AT_ONCE} of each server": publish_together,
    "consume and settle": consume,
    "collect": collect_all,
}

if __name__ == "__main__":
    main()
