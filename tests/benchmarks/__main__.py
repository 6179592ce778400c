"""Measure publishing, consuming and waiting on a private server, MariaDB or `--database postgresql`: `make benchmark`.

Every figure is messages a second of this run on this machine; what can be compared with other runs are the ratios to
the bare statements beside them. 300-byte payloads, 16 partitions, 997 keys, one consumer process, handlers that do
nothing.
"""

import argparse
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.postgresql import PrivatePostgreSQL
from tests.transactions import OpenTransaction

PARTITIONS = 16
BATCH = 500
PAYLOAD = {"filler": "x" * 285}
WATCHED = 10.0  # seconds
# In the words of sqlqueue.database.dialects.
BARE_FETCH = (
    'SELECT "offset", partition_key, message_id, payload, headers, created_at FROM sqlqueue_message{by_stream}'
    " WHERE {beyond} ORDER BY {by_place} LIMIT %s"
)
BARE_INSERT = 'INSERT INTO sqlqueue_message (topic, "partition", message_id, partition_key, payload) VALUES '


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--database", choices=["mariadb", "postgresql"], default="mariadb")
    arguments = parser.parse_args()
    count = arguments.messages
    logging.basicConfig(filename=os.devnull)  # failures are logged, as everywhere; the terminal is not measured
    server = PrivateMariaDB() if arguments.database == "mariadb" else PrivatePostgreSQL(durable=True)
    with server:
        os.environ["DATABASE_URL"] = server.url("mysql" if arguments.database == "mariadb" else "postgres")
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        show("Publish", publishing(count))
        show("Consume", consuming(count))
        show_waiting(waiting(count))


def show(title: str, figures: Iterator[tuple[str, float, float]]) -> None:
    table = Table(title=title)
    for name in ("what", "messages/s", "ratio to the bare statement"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, rate, bare in figures:
        table.add_row(what, f"{rate:,.0f}", f"{rate / bare:.2f}")
    Console().print(table)


def show_waiting(figures: Iterator[tuple[str, float, float]]) -> None:
    table = Table(title="Wait, with nothing to do")
    for name in ("what", "statements/s", "CPU of the loop's thread, ms/s"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, statements, busy in figures:
        table.add_row(what, f"{statements:,.1f}", f"{busy:,.1f}")
    Console().print(table)


def rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def publishing(count: int) -> Iterator[tuple[str, float, float]]:
    from sqlqueue import NewMessage, publish, publish_many
    from sqlqueue.core.codec import encode
    from sqlqueue.core.keys import new_id
    from sqlqueue.database.dialects import execute

    singles = max(1, count // 20)
    text = encode(PAYLOAD)
    publish("bare", PAYLOAD)

    def row(number: int) -> tuple[str, int, str, str, str]:
        return "bare", number % PARTITIONS, new_id(), f"k{number % 997}", text

    def bare_singles() -> None:
        for number in range(singles):
            execute("default", BARE_INSERT + "(%s, %s, %s, %s, %s)", row(number))

    def bare_bulk() -> None:
        for first in range(0, count, 1000):
            rows = [row(number) for number in range(first, first + 1000)]
            marks = ", ".join(["(%s, %s, %s, %s, %s)"] * len(rows))
            execute("default", BARE_INSERT + marks, [value for values in rows for value in values])

    def bulk() -> None:
        for first in range(0, count, 1000):
            publish_many("bulk", [NewMessage(PAYLOAD, key=f"k{n % 997}") for n in range(first, first + 1000)])

    bare = rate(singles, bare_singles)
    yield "bare autocommit INSERT", bare, bare
    yield (
        "publish",
        rate(singles, lambda: [publish("single", PAYLOAD, key=f"k{n % 997}") for n in range(singles)]),
        bare,
    )
    bare = rate(count, bare_bulk)
    yield "bare INSERT of 1,000 rows", bare, bare
    yield "publish_many", rate(count, bulk), bare


def consuming(count: int) -> Iterator[tuple[str, float, float]]:
    from sqlqueue import Retry
    from sqlqueue.consumers.registry import Consumer, build
    from sqlqueue.consumers.subscriber import Subscriber
    from sqlqueue.database.dialects import dialect, execute
    from sqlqueue.log.topics import create

    create("default", "bench", PARTITIONS)
    publish_some(count)

    def bare_fetch() -> None:
        for partition in range(PARTITIONS):
            last, rows = 0, [()] * BATCH
            while len(rows) == BATCH:
                place = dialect("default").place("bench", partition, 0, last)
                rows = execute("default", BARE_FETCH, (*place, BATCH)).fetchall()
                last = rows[-1][0] if rows else last

    def failing(one_in: int) -> Callable[[object], None]:
        def handle(delivery: object) -> None:
            if delivery.attempt == 1 and delivery.offset % one_in == 0:
                raise Retry(delay=0)

        return handle

    bare = rate(count, bare_fetch)
    yield "bare fetch", bare, bare
    kinds: list[tuple[str, Callable[[Any], object], dict[str, Any]]] = [
        ("batch handler (500)", lambda deliveries: None, {"batch": True, "batch_size": BATCH}),
        ("atomic batch handler (500)", lambda deliveries: None, {"batch": True, "batch_size": BATCH, "atomic": True}),
        ("handler", lambda delivery: None, {}),
        ("handler, 1 % fail once", failing(100), {"backoff": 0}),
        ("handler, 10 % fail once", failing(10), {"backoff": 0}),
    ]
    for name, handler, options in kinds:
        made = build("bench", {"group": name.replace(" ", "-").translate({ord(c): None for c in "(),%"}), **options})
        subscriber = Subscriber([Consumer(topic="bench", handler=handler, **made)])
        yield name, rate(count, lambda: subscriber.run(drain=True)), bare  # noqa: B023  run before the next turn
    with held_back():
        for name, handler, options in (kinds[0], kinds[2]):
            made = build("bench", {"group": f"held-{len(options)}", **options})
            subscriber = Subscriber([Consumer(topic="bench", handler=handler, **made)])
            consume = functools.partial(subscriber.run, drain=True)
            yield f"{name}, beside an open publishing transaction", rate(count, consume), bare
    with without_metrics():
        for name, handler, options in (kinds[0], kinds[2]):
            subscriber = Subscriber(
                [Consumer(topic="bench", handler=handler, **build("bench", {"group": f"no-{len(options)}", **options}))]
            )
            yield f"{name}, no metrics", rate(count, lambda: subscriber.run(drain=True)), bare  # noqa: B023


def waiting(count: int) -> Iterator[tuple[str, float, float]]:
    """What a consumer of all of it costs that has nothing left to do, in the loop's thread: 16 streams."""
    yield "the horizon is at the log's end", *idling("held-0")
    with held_back():
        publish_some(count)
        yield f"the horizon is held back, {count:,} messages were delivered beyond it", *idling("held-0")


def idling(group: str) -> tuple[float, float]:
    """Let a consumer work until it has nothing to do, and then turn for a while; return (statements a second, ms of CPU
    time a second)."""
    from django.db import connection

    from sqlqueue.consumers.registry import Consumer, build
    from sqlqueue.consumers.subscriber import Subscriber

    made = build("bench", {"group": group})
    subscriber = Subscriber([Consumer(topic="bench", handler=lambda delivery: None, **made)], residents=False)
    statements = 0

    def counted(execute: Callable[..., Any], *call: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*call)

    subscriber.start()
    try:
        while not subscriber.idle or subscriber.anything_due():
            time.sleep(min(0.05, subscriber.turn()))
        for _ in range(20):  # it polls less and less often
            time.sleep(subscriber.turn())
        began, busy = time.perf_counter(), time.thread_time()
        with connection.execute_wrapper(counted):
            while time.perf_counter() < began + WATCHED:
                time.sleep(subscriber.turn())
        seconds = time.perf_counter() - began
        return statements / seconds, 1000 * (time.thread_time() - busy) / seconds
    finally:
        subscriber.close()


def publish_some(count: int) -> None:
    from sqlqueue import NewMessage, publish_many

    for first in range(0, count, 1000):
        publish_many("bench", [NewMessage(PAYLOAD, key=f"k{n % 997}") for n in range(first, first + 1000)])


@contextmanager
def held_back() -> Iterator[None]:
    """Keep a transaction open that has published to another topic."""
    from sqlqueue import publish

    with OpenTransaction() as slow:
        slow.do(lambda: publish("other", PAYLOAD))
        yield


@contextmanager
def without_metrics() -> Iterator[None]:
    """Let nobody count, as where prometheus_client is not installed."""
    from sqlqueue.observe import metrics

    for signal, receiver in metrics.RECEIVERS:
        signal.disconnect(dispatch_uid=metrics.uid(receiver))
    try:
        yield
    finally:
        metrics.connect_receivers()


if __name__ == "__main__":
    main()
